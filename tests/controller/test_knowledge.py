"""What was learned is there after a restart, for the same deployment only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller import cli, knowledge, knowledge_file, wiring
from controller.errors import KnowledgeFileError
from controller.knowledge import KnowledgeKeeper
from controller.store import MAX_LEARNED, Store


class Learner:
    """Learns one number."""

    name = "learner"

    def __init__(self):
        self.known = 0

    def decide(self, observation):
        raise NotImplementedError

    def export_state(self):
        return {"known": self.known}

    def import_state(self, state):
        if not isinstance(state["known"], int):
            raise ValueError("known must be a number")  # noqa: TRY004  as `Learner` says
        self.known = state["known"]


@pytest.fixture
def store():
    """A database in memory."""
    made = Store(Path(":memory:"), max_rows=100, max_bytes=1 << 20)
    yield made
    made.close()


@pytest.fixture
async def turn(make):
    """Turns of a sidecar, with what `/server_info` is made to say."""
    bench = await make()

    async def run(**info):
        bench.engine.info.update(info)
        bench.clock.now_s += 61
        return await bench.run(2)

    return run


async def test_what_was_learned_is_taken_up_again(store, turn):
    """Saved at the end, loaded as soon as the deployment is known."""
    result = await turn()
    first = KnowledgeKeeper(store, Learner(), "learner")
    first.record(result)
    first._learner.known = 7
    first.save()
    again = KnowledgeKeeper(store, Learner(), "learner")
    again.record(result)
    assert again._learner.known == 7


async def test_the_deployment_is_known_also_where_nothing_learns(store, turn):
    """Whoever waits for it does not wait for ever."""
    keeper = KnowledgeKeeper(store, object(), "fixed")
    assert keeper.key is None
    keeper.record(await turn())
    assert json.loads(keeper.key)["policy"] == "fixed"
    assert keeper.export() == []


@pytest.mark.parametrize(
    "change",
    [{"version": "0.5.17"}, {"served_model_name": "other"}, {"tp_size": 8}, {"attention_backend": "fa3"}],
)
async def test_another_deployment_starts_afresh_and_the_first_is_kept(store, turn, change):
    """Other step times, other acceptance: refused, not averaged in."""
    keeper = KnowledgeKeeper(store, Learner(), "learner")
    before = await turn()
    keeper.record(before)
    keeper._learner.known = 7
    keeper.record(await turn(**change))
    assert keeper._learner.known == 0
    keeper.record(before)
    assert keeper._learner.known == 7


async def test_it_is_saved_now_and_again(store, turn):
    """So that a crash costs five minutes."""
    keeper = KnowledgeKeeper(store, Learner(), "learner")
    result = await turn()
    keeper.record(result)
    keeper._learner.known = 7
    for _ in range(int(knowledge.SAVE_EVERY_S // 60)):
        keeper.record(await turn())
    assert store.learned(keeper.key) == {"known": 7}


async def test_knowledge_that_cannot_be_read_is_dropped(store, turn):
    """An older release may have written another form."""
    keeper = KnowledgeKeeper(store, Learner(), "learner")
    result = await turn()
    store.save_learned(knowledge.deployment("learner", result), {"known": "much"}, 1.0)
    keeper.record(result)
    assert keeper._learner.known == 0


async def test_a_new_pod_starts_from_what_a_sibling_exported(store, turn, tmp_path):
    """Through a file, for the same deployment; what it learned itself comes first."""
    result = await turn()
    sibling = KnowledgeKeeper(store, Learner(), "learner")
    sibling.record(result)
    sibling._learner.known = 7
    file = tmp_path / "seed.json"
    file.write_text(json.dumps(knowledge_file.to_json(sibling.export())))
    own = Store(Path(":memory:"), max_rows=100, max_bytes=1 << 20)
    new = KnowledgeKeeper(own, Learner(), "learner", knowledge_file.read(file))
    new.record(result)
    assert new._learner.known == 7
    own.save_learned(new.key, {"known": 8}, 1.0)
    again = KnowledgeKeeper(own, Learner(), "learner", knowledge_file.read(file))
    again.record(result)
    assert again._learner.known == 8
    other = KnowledgeKeeper(own, Learner(), "learner", knowledge_file.read(file))
    other.record(await turn(tp_size=8))
    assert other._learner.known == 0
    own.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema must be 1, got 'list'"),
        ('{"schema": 2, "learned": []}', "schema must be 1, got 2"),
        ('{"schema": 1}', "learned must be a list, got NoneType"),
        ('{"schema": 1, "learned": [3]}', "learned[0].deployment must be an object, got None"),
        (
            '{"schema": 1, "learned": [{"deployment": {}, "state": {}, "at_unix_s": true}]}',
            "learned[0].at_unix_s must be a number, got True",
        ),
    ],
)
def test_a_file_that_is_no_knowledge_is_refused_with_its_field(tmp_path, text, message):
    """The path too; a sidecar whose seed is such a file starts without it."""
    file = tmp_path / "seed.json"
    file.write_text(text)
    with pytest.raises(KnowledgeFileError) as caught:
        knowledge_file.read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert wiring._seed(file) == []


def test_import_puts_a_file_into_the_state_database(tmp_path, monkeypatch):
    """And what is there comes out of the same database again."""
    database, file = tmp_path / "state.db", tmp_path / "seed.json"
    piece = {"deployment": {"sglang": "0.5.23"}, "at_unix_s": 1.0, "state": {"known": 7}}
    file.write_text(json.dumps({"schema": 1, "learned": [piece]}))
    monkeypatch.setenv("SPECGOV_STORE__PATH", str(database))
    assert CliRunner().invoke(cli.make_app(), ["knowledge", "import", str(file)]).exit_code == 0
    kept = Store(database, max_rows=100, max_bytes=1 << 20)
    assert knowledge_file.to_json(kept.all_learned())["learned"] == [piece]
    kept.close()


async def test_the_api_gives_the_file_that_others_start_from(make):
    """`specgov knowledge export` writes this answer as it is."""
    bench = await make()
    await bench.run(2)
    body = (await bench.api.get("/v1/knowledge")).json()
    assert body["schema"] == 1
    assert all(set(piece) == {"deployment", "at_unix_s", "state"} for piece in body["learned"])
    knowledge_file.parse(body)


def test_only_so_many_deployments_are_kept(store):
    """The longest unused goes."""
    for i in range(MAX_LEARNED + 3):
        store.save_learned(str(i), {}, float(i))
    assert [store.learned(str(i)) is not None for i in range(5)] == [False, False, False, True, True]
