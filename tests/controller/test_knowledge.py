"""What was learned is there after a restart, for the same deployment only."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller import knowledge
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


def test_only_so_many_deployments_are_kept(store):
    """The longest unused goes."""
    for i in range(MAX_LEARNED + 3):
        store.save_learned(str(i), {}, float(i))
    assert [store.learned(str(i)) is not None for i in range(5)] == [False, False, False, True, True]
