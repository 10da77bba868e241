"""Depth 0 as plain decoding on the real SGLang: its gears change what is run, and no token."""

import asyncio
import itertools
import json
import random
import subprocess

import httpx
import pytest

from tests.engine import draft_log
from tests.engine.environment import HERE
from tests.engine.load import check, successors
from tests.engine.server import Server, write_entry_point
from tests.engine.test_governing import in_modes, launches, put, settled, since, state_of, switches_of

pytestmark = pytest.mark.timeout(2400)
GEARS = ("warm", "cold", "frozen")
DEEPEST = 3
EVERY_OTHER_STEP = {"every_steps": 2, "burst_steps": 1}


def probe(depth, gear=None):
    """A step at `depth` after every step of the schedule: each step is a switch."""
    return {"depth": depth, **EVERY_OTHER_STEP} | ({"gear": gear} if depth == 0 else {})


async def patiently(ask, unready):
    """The answer of `ask()`, asked again while its status is in `unready`: a busy machine takes its time."""
    for _ in range(20):
        answer = await ask()
        if answer.status_code not in unready:
            assert answer.status_code == 200, answer.text
            return answer.json()
        await asyncio.sleep(0.5)
    pytest.fail(answer.text)


async def state_now(client):
    return await patiently(lambda: client.get("/speculation"), {504})


async def apply(client, row, wanted=None):
    """Put a one-row plan in force on every rank."""

    async def attempt():
        sequence = ((await state_now(client))["sequence"] or 0) + 1
        return await put(client, row, probe=wanted, sequence=sequence)

    return await patiently(attempt, {202, 504})


async def tokens_of(client, prompt, count):
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
    }
    answer = await client.post("/generate", json=body)
    answer.raise_for_status()
    return answer.json()["output_ids"]


# -- attention, on a target whose every token depends on its whole context


@pytest.fixture(scope="module")
def random_models(engine, tmp_path_factory):
    """A target and a draft in float32, where equal computations give equal tokens."""
    folder = tmp_path_factory.mktemp("random-models")
    subprocess.run([engine[0], HERE / "make_random_target.py", folder], check=True)
    return folder


def flags_of(models):
    return [*target_flags_of(models), "--speculative-draft-model-path", str(models / "draft")]


def target_flags_of(models):
    return ["--dtype", "float32", "--model-path", str(models / "target")]


def prompts():
    """One token, some, more than a page, more than one prefill chunk, and two that share a long prefix."""
    rng = random.Random(5)
    shared = [rng.randint(3, 500) for _ in range(70)]
    return [[rng.randint(3, 500) for _ in range(n)] for n in (1, 3, 17, 90)] + [
        [*shared, 5, 6],
        [*shared, 7, 8, 9],
    ]


def many_prompts():
    """`prompts()` and twelve of random lengths, more than run at a time."""
    rng = random.Random(77)
    return prompts() + [[rng.randint(3, 500) for _ in range(rng.randint(2, 150))] for _ in range(12)]


PLANS = {
    "speculation": [((1, 3), None)],
    "warm": [((1, 0, "warm"), None)],
    "cold": [((1, 0, "cold"), None)],
    "frozen": [((1, 0, "frozen"), None)],
    "on and cold by turns": [((1, 3), probe(0, "cold"))],
    "frozen and on by turns": [((1, 0, "frozen"), probe(2))],
    "warm and cold by turns": [((1, 0, "warm"), probe(0, "cold"))],
}


CHUNKED = ["--chunked-prefill-size", "64"]


@pytest.fixture(scope="module", params=[1, 16])
def answers(request, engine, random_models, tmp_path_factory):
    """By plan, those of a speculative server with the hook, at a page size."""
    flags = [*flags_of(random_models), "--page-size", str(request.param), *CHUNKED]
    server = Server("overlap", *engine, tmp_path_factory.mktemp("overlap"), flags=flags).start()
    try:
        return asyncio.run(answers_of_every_plan(server))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def answers_without_speculation(engine, random_models, tmp_path_factory):
    """Those of SGLang as it is, no plugin, with pages of 16 and the same attention kernels."""
    kernels = ["--attention-backend", "intel_amx"]
    flags = [*target_flags_of(random_models), "--page-size", "16", *CHUNKED, *kernels]
    server = Server("bare", *engine, tmp_path_factory.mktemp("bare"), flags=flags).start()
    try:
        return asyncio.run(answers_of(server))
    finally:
        server.stop()


def test_depth_0_reads_the_cache_that_speculation_wrote_and_the_other_way_round(answers):
    """At float32 all greedy answers are equal, in every gear and through a switch at every step.

    Chunked prefill (64 tokens a chunk), shared prefixes and several requests a batch are among the prompts.
    """
    reference = answers["speculation"]
    assert len({tuple(a) for a in reference}) == len(reference)
    assert all(len(set(a)) > 5 for a in reference), "a target that repeats itself would prove nothing"
    for name, found in answers.items():
        assert found == reference, name


def test_depth_0_answers_as_a_server_without_speculation(answers, answers_without_speculation):
    """At float32, token for token: every gear held by a schedule, and two of them by turns."""
    assert len({tuple(a) for a in answers_without_speculation}) == 18
    for name in (*GEARS, "warm and cold by turns"):
        assert answers[name] == answers_without_speculation, name


async def answers_of_every_plan(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        state = await state_of(client)
        assert state["plain_decode"] == {"in_force": True, "backend": "IntelAMXAttnBackend", "reason": None}
        answers = {}
        for name, [(row, wanted)] in PLANS.items():
            await apply(client, row, wanted)
            answers[name] = await answers_of_all(client)
        await settled(client)
        (telemetry,) = (await state_of(client))["telemetry"]
        assert telemetry["hook_errors"] == 0
        assert {cell["gear"] for cell in telemetry["cells"] if cell["steps"]} == {"on", *GEARS}
    assert server.alive()
    return answers


async def answers_of(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        return await answers_of_all(client)


async def answers_of_all(client):
    return await asyncio.gather(*[tokens_of(client, p, 14) for p in many_prompts()])


def test_drafts_after_a_warm_spell_are_those_of_a_draft_that_never_paused(engine, random_models, tmp_path):
    """Draft tokens of every verify that follows, against SGLang's own depth 0, which extends at every step.

    The spells are 1, 3, 5 and 7 steps long and the draft-extend takes in 4 at a time, so that something is
    left over to catch up with after each.  Likewise where the draft extends its chains by decoding.
    """
    drafts = {}
    for name, environment in (
        ("ours", {}),
        ("by decoding", {"SPECGOV_CHAIN_VERIFY": "1"}),
        ("sglang", {"SPECGOV_PLAIN_DECODE": "0"}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        write_entry_point(folder / "plugins", "draft_log", "tests.engine.draft_log:register")
        server = Server(
            "overlap", *engine, folder, flags=flags_of(random_models), environment=environment
        ).start()
        try:
            asyncio.run(rise_after_warm_spells(server))
        finally:
            server.stop()
        drafts[name] = draft_log.read(folder)
    assert len(drafts["sglang"]) >= 12
    assert len({tuple(rows[0]) for rows in drafts["sglang"]}) >= 10
    assert drafts["ours"] == drafts["sglang"]
    assert drafts["by decoding"] == drafts["sglang"]


async def rise_after_warm_spells(server):
    """One request at a time, so that both servers batch alike: spells of depth 0 and a step at depth 2."""
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        for spell, prompt in zip((1, 3, 5, 7), prompts(), strict=False):
            steps = {"depth": 2, "every_steps": spell + 1, "burst_steps": 1}
            await apply(client, (1, 0, "warm"), steps)
            await tokens_of(client, prompt, 20)
            await apply(client, (1, 0, "warm"))


def test_turned_off_nothing_of_it_is_there(engine, tmp_path):
    """SPECGOV_PLAIN_DECODE=0: SGLang's own depth 0 and gear, the reason in the state, right tokens."""
    server = Server("overlap", *engine, tmp_path, environment={"SPECGOV_PLAIN_DECODE": "0"}).start()
    try:
        asyncio.run(see_that_it_is_off(server))
    finally:
        server.stop()
    assert "_draft_extend_for_decode" not in server.log()


async def see_that_it_is_off(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        state = await state_of(client)
        assert state["plain_decode"] == {
            "in_force": False,
            "backend": None,
            "reason": "turned off by SPECGOV_PLAIN_DECODE=0",
        }
        assert state["gears"] == ["warm"]
        refused = await put(client, (1, 0, "cold"))
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "schedule[0].gear")
        await apply(client, (1, 0, "warm"))
        await check(client, 20, 12)


# -- switching under load, on the target whose every token is known


@in_modes("overlap", "tp2", "sync")
async def test_what_is_in_force_is_reported(server, client):
    """The backend by its name, all gears, no reason."""
    state = await state_of(client)
    assert state["plain_decode"] == {"in_force": True, "backend": "IntelAMXAttnBackend", "reason": None}
    assert state["gears"] == ["warm", "cold", "frozen"]


@in_modes("overlap", "tp2", "sync")
async def test_every_token_is_right_through_500_switches_of_depth_and_gear(server, client):
    """A switch at every step between on, warm, cold and frozen, with long prompts and aborts in between."""
    turns = itertools.cycle(
        [((1, 3), probe(0, "cold")), ((1, 0, "frozen"), probe(2)), ((1, 0, "cold"), probe(0, "warm")),
         ((1, 1), probe(0, "frozen")), ((1, 0, "warm"), probe(3))]
    )  # fmt: skip
    before, first = launches(server), await state_now(client)
    async with Mixed(client, concurrency=4) as load:
        while load.switches(first["telemetry"], await state_now(client)) < 520:
            assert (await apply(client, *next(turns)))["ranks_agree"] is not False
            await asyncio.sleep(1.0)
    await client.delete("/speculation")
    await settled(client)
    logs = list(since(server, before).values())
    assert all(log == logs[0] for log in logs)
    assert switches_of(logs[0]) >= 200  # of depth alone; the rest changes gear
    assert load.done >= 10
    assert load.aborted >= 1
    state = await state_now(client)
    assert {t["hook_errors"] for t in state["telemetry"]} == {0}
    assert state["plain_decode"]["reason"] is None
    used = {cell["gear"] for cell in state["telemetry"][0]["cells"] if cell["steps"]}
    assert used == {"on", *GEARS}


class Mixed:
    """Requests with short, long and shared prompts; every token checked, and some of them aborted."""

    def __init__(self, client, concurrency):
        self.done = self.aborted = 0
        self._client, self._concurrency = client, concurrency
        self._leaving, self._tasks = False, []
        self._shared = [random.Random(9).randint(3, 500) for _ in range(60)]

    def switches(self, before, state):
        return sum(
            b["switches"] - a["switches"] for a, b in zip(before, state["telemetry"], strict=True)
        ) // len(before)

    async def __aenter__(self):
        numbers = itertools.count()
        self._tasks = [asyncio.create_task(self._work(numbers)) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_):
        self._leaving = True
        await asyncio.gather(*self._tasks)

    async def _work(self, numbers):
        while not self._leaving:
            await self._one(next(numbers))

    async def _one(self, n):
        last = 3 + 37 * n % 500
        prompt = [*(((), self._shared, self._shared[: n % 60], range(3, 80))[n % 4]), last]
        rid, count = f"mixed-{n}", 8 + 7 * n % 23
        body = {
            "rid": rid,
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
        }
        asked = asyncio.create_task(self._client.post("/generate", json=body, timeout=900))
        if n % 5 == 4:
            await asyncio.sleep(0.4)
            await self._client.post("/abort_request", json={"rid": rid})
        answer = (await asked).raise_for_status().json()
        tokens = answer["output_ids"]
        if answer["meta_info"]["finish_reason"]["type"] == "abort":
            self.aborted += 1
            # SGLang cuts what a step drafts past the end of a request, but not of one aborted in that step
            assert len(tokens) <= count + DEEPEST
            assert tokens == successors(last, len(tokens))
        else:
            assert tokens == successors(last, count)
        self.done += 1


FIELDS = {
    "colour": {"enum": ["red", "green"]},
    "n": {"type": "integer", "minimum": 0, "maximum": 99},
    "ok": {"type": "boolean"},
}
SCHEMA = {"type": "object", "additionalProperties": False, "required": list(FIELDS), "properties": FIELDS}


@in_modes("overlap")
async def test_constrained_answers_stay_valid_while_depth_and_gear_switch_every_step(server, client):
    """JSON by a schema, between speculation and every gear of off."""
    for row, wanted in (
        ((1, 2), probe(0, "cold")),
        ((1, 0, "frozen"), probe(1)),
        ((1, 0, "warm"), probe(0, "cold")),
    ):
        await apply(client, row, wanted)
        sampling = {"max_new_tokens": 120, "temperature": 0, "json_schema": json.dumps(SCHEMA)}
        bodies = [{"input_ids": [20 + n], "sampling_params": sampling} for n in range(4)]
        for answer in await asyncio.gather(*[client.post("/generate", json=body) for body in bodies]):
            found = json.loads(answer.raise_for_status().json()["text"])
            assert set(found) == {"colour", "n", "ok"}
            assert found["colour"] in {"red", "green"}


@in_modes("overlap")
async def test_sglangs_own_acceptance_metrics_live_through_cold(server, client):
    """They divide by the steps that verified, which depth 0 must go on counting."""
    await apply(client, (1, 0, "cold"))
    await asyncio.gather(*[check(client, 30 + n, 60) for n in range(3)])
    text = (await client.get("/metrics")).text
    lengths = [line.split()[-1] for line in text.splitlines() if line.startswith("sglang:spec_accept_length")]
    assert [float(length) for length in lengths] == [1.0] * len(lengths)
    assert lengths
    await check(client, 5, 8)


@in_modes("overlap", "tp2", "sync")
async def test_nothing_is_lost_when_all_is_idle(server, client):
    """SGLang checks its pools when idle and dies if they do not add up; nothing of ours failed on the way."""
    await see_that_nothing_is_lost(server, client)


async def see_that_nothing_is_lost(server, client):
    """`AssertionError` if, once idle, the server died, answers wrongly or has logged a failure or a leak."""
    await client.delete("/speculation")
    await settled(client)
    await asyncio.sleep(1.5)
    assert server.alive()
    await check(client, 11, 12)
    log = server.log()
    for bad in ("Traceback", "leak", "SGLang goes on", "switched off after a failure"):
        assert bad not in log, [line for line in log.splitlines() if bad in line][:3]
