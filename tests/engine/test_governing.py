"""The hook on the real SGLang: a schedule that is pushed changes the depth in use, and no token."""

import asyncio
import itertools
import time

import pytest

from tests.engine import step_log
from tests.engine.load import Load, check

SPECULATING = ("sync", "overlap", "tp2", "dp2")
RANKS = {"sync": [(0, 0)], "overlap": [(0, 0)], "tp2": [(0, 0), (0, 1)], "dp2": [(0, 0), (1, 0)]}


def in_modes(*modes):
    return pytest.mark.parametrize("server", modes, indirect=True)


async def state_of(client):
    answer = await client.get("/speculation")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def put(client, *rows, probe=None, lease_s=60, holder="test", sequence=None):
    """Put `(min_batch_size, depth[, gear])` rows in force with the next sequence; the answer."""
    if sequence is None:
        sequence = ((await state_of(client))["sequence"] or 0) + 1
    names = ("min_batch_size", "depth", "gear")
    schedule = [dict(zip(names, row, strict=False)) for row in rows]
    body = {"schedule": schedule, "lease_s": lease_s, "sequence": sequence, "holder": holder, "probe": probe}
    return await client.put("/speculation", json=body)


def launches(server):
    """Launches so far, of each rank, as the test's own plugin logged them."""
    return step_log.read(server.folder)


def since(server, before):
    return {rank: log[len(before.get(rank, [])) :] for rank, log in launches(server).items()}


@in_modes(*SPECULATING)
async def test_a_schedule_changes_the_depth_in_use_on_every_rank_and_no_token(server, client):
    """Each depth in turn, and a table of two: what ranks launch is what was asked, every output right."""
    for depth in (0, 1, 2, 3):
        answer = await put(client, (1, depth))
        assert answer.status_code == 200, answer.text
        before = launches(server)
        await asyncio.gather(*[check(client, 20 + n, 16) for n in range(4)])
        used = {rank: {d for _, d in log} for rank, log in since(server, before).items()}
        assert used == {rank: {depth} for rank in RANKS[server.mode]}
    await put(client, (1, 3), (2, 0))
    before = launches(server)
    await asyncio.gather(*[check(client, 40 + n, 24) for n in range(4)])
    for log in since(server, before).values():
        assert log
        assert all(d == (3 if batch_size == 1 else 0) for batch_size, d in log)


@in_modes(*SPECULATING)
async def test_every_token_is_right_while_schedules_change_under_load(server, client):
    """Tables with all depths, one after another until twenty switches, under more load than fits at once."""
    tables = itertools.cycle(
        [[(1, 3), (3, 1)], [(1, 0)], [(1, 1), (2, 2), (4, 0)], [(1, 2)], [(1, 0), (2, 3)]]
    )
    before, first = await state_of(client), launches(server)
    codes, sequence = [], before["sequence"] or 0
    async with Load(client, concurrency=6) as load:
        while fewest_switches(since(server, first)) < 20:
            sequence += 1
            codes.append((await put(client, *next(tables), sequence=sequence)).status_code)
    assert set(codes) <= {200, 202}  # 202: on a slow machine a step may take longer than the 2 s of a PUT
    assert load.done
    await settled(client)
    after = await state_of(client)
    for rank, (was, now) in enumerate(zip(before["telemetry"], after["telemetry"], strict=True)):
        log = since(server, first)[RANKS[server.mode][rank]]
        assert now["decode_steps"] - was["decode_steps"] == len(log)
        assert now["switches"] - was["switches"] in (switches_of(log), switches_of(log) + 1)
        assert now["hook_errors"] == 0


@in_modes("tp2")
async def test_tensor_parallel_ranks_launch_the_same_steps_over_500_switches(server, client):
    """A probe every other step makes each step a switch; plans, leases that end and aborts come between."""
    before = launches(server)
    sequence = (await state_of(client))["sequence"] or 0
    depths = itertools.cycle([(1, 3), (2, 0), (0, 2), (3, 1)])
    agreed = []
    async with Load(client, concurrency=3) as load:
        while switches_of(since(server, before)[0, 0]) < 520:
            sequence += 1
            ends = sequence % 20 == 0
            depth, probe = next(depths)
            answer = await put(
                client,
                (1, depth),
                probe={"depth": probe, "every_steps": 2, "burst_steps": 1},
                sequence=sequence,
                lease_s=1 if ends else 60,
            )
            agreed.append(answer.json().get("ranks_agree"))
            if sequence % 10 == 0:
                await abort_one(client)
            await asyncio.sleep(1.5 if ends else 0.2)
    await client.delete("/speculation")
    await settled(client)
    first, second = (since(server, before)[0, tp_rank] for tp_rank in (0, 1))
    assert first == second
    assert switches_of(first) >= 500
    assert True in agreed
    assert False not in agreed
    assert load.done
    assert (await state_of(client))["lease"]["expired"] > 0


def fewest_switches(logs):
    return min((switches_of(log) for log in logs.values()), default=0)


def switches_of(log):
    return sum(a[1] != b[1] for a, b in itertools.pairwise(log))


@in_modes("tp4")
async def test_four_tensor_parallel_ranks_launch_the_same_steps(server, client):
    """Depths 3 and 0 in turn under load, with a switch at every step in between: four equal sequences."""
    before = launches(server)
    async with Load(client, concurrency=4) as load:
        for depth, probe in ((3, 0), (0, 3), (2, 1), (1, 2)):
            plan = {"depth": probe, "every_steps": 2, "burst_steps": 1}
            answer = await put(client, (1, depth), probe=plan, lease_s=600)
            assert answer.status_code in (200, 202), answer.text  # 202: four ranks on two cores are slow
            assert answer.json().get("ranks_agree") is not False
            await asyncio.sleep(5)
    await settled(client)
    first, *others = (since(server, before)[0, tp_rank] for tp_rank in range(4))
    assert others == [first] * 3
    assert switches_of(first) > 50
    assert load.done > 4


async def abort_one(client):
    """Start a long request and abort it."""
    body = {"rid": "doomed", "input_ids": [7], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    doomed = asyncio.create_task(client.post("/generate", json=body))
    await asyncio.sleep(0.2)
    await client.post("/abort_request", json={"rid": "doomed"})
    await doomed


async def settled(client):
    """Wait until no more steps are launched."""
    steps = None
    while steps != (steps := [t["decode_steps"] for t in (await state_of(client))["telemetry"]]):
        await asyncio.sleep(0.5)


@in_modes("overlap", "dp2")
async def test_a_holder_that_dies_loses_control_when_its_lease_ends(server, client):
    """Nobody renews: at the lease's end every rank is told to follow SGLang's own policy, under load."""
    sequence = ((await state_of(client))["sequence"] or 0) + 1
    async with Load(client, concurrency=2):
        asked_s = time.monotonic()
        governed = (await put(client, (1, 3), lease_s=3, holder="doomed", sequence=sequence)).json()
        assert governed["state"] == "governed"
        while "the lease of doomed ended, falling back to native" not in server.log():
            assert time.monotonic() - asked_s < 6
            await asyncio.sleep(0.05)
        assert time.monotonic() - asked_s > 3
        while await orders(client) <= max(rank["order"] for rank in governed["ranks"]):
            assert time.monotonic() - asked_s < 20
        state = await state_of(client)
    assert (state["state"], state["holder"], state["schedule"]) == ("fallback", None, None)
    assert state["sequence"] == governed["sequence"]


async def orders(client):
    """The oldest command that a rank is at."""
    return min(rank["order"] for rank in (await state_of(client))["ranks"])


@in_modes("overlap")
async def test_a_probe_runs_its_bursts_and_no_more(server, client):
    """Three bursts of two steps every six, at depth 1 of a schedule at 3, counted by the test's own log."""
    before, first = await state_of(client), launches(server)
    await put(client, (1, 3), probe={"depth": 1, "every_steps": 6, "burst_steps": 2, "bursts": 3})
    await check(client, 30, 60)
    depths = [d for _, d in since(server, first)[0, 0]]
    assert depths[:18] == [3, 3, 3, 3, 1, 1] * 3
    assert set(depths[18:]) == {3}
    after = await state_of(client)
    (a,), (b,) = before["telemetry"], after["telemetry"]
    assert (b["probe_steps"] - a["probe_steps"], b["probe_bursts"] - a["probe_bursts"]) == (6, 3)


@in_modes("overlap", "sync")
async def test_the_counters_add_up(server, client):
    """One request of 40 tokens at depth 2: as many steps as launches, and every token accounted for."""
    await put(client, (1, 2))
    before, first = cells_of(await state_of(client)), launches(server)
    await check(client, 24, 40)
    await settled(client)
    delta = subtract(cells_of(await state_of(client)), before)
    ((bucket, depth, gear), cell), *others = [item for item in delta.items() if item[1]["steps"]]
    assert others == []
    assert (bucket, depth, gear) == (1, 2, "on")
    launched = len(since(server, first)[0, 0])
    assert launched - 1 <= cell["steps"] <= launched  # under overlap one stale step ran after the end
    assert sum(cell["accepted"]) == cell["request_steps"] == cell["steps"]
    assert cell["tokens"] == sum((n + 1) * count for n, count in enumerate(cell["accepted"]))
    assert 39 <= cell["tokens"] <= 39 + 2  # the first token is the prefill's; the last step may overshoot
    assert cell["accepted"][1] > 0
    assert cell["accepted"][2] == 0  # this draft is never right at its second position
    skipped = cell["skipped_idle"] + cell["skipped_prefill"] + cell["skipped_switch"]
    assert cell["timed_steps"] + skipped == cell["steps"]
    assert skipped >= 1
    assert 0 < cell["timed_seconds"] / cell["timed_steps"] < 2


@in_modes("overlap")
async def test_what_prefills_add_is_counted_beside_the_steps_that_they_hold_up(server, client):
    """Four requests of one token join one that decodes: four tokens; its own prefill is in no interval."""
    await put(client, (1, 2))
    await settled(client)
    before = cells_of(await state_of(client))
    long = asyncio.create_task(check(client, 24, 400))
    while not sum(cell["steps"] for cell in subtract(cells_of(await state_of(client)), before).values()):
        await asyncio.sleep(0.05)
    for n in range(4):
        await check(client, 100 + n, 8)
    assert not long.done()
    await long
    await settled(client)
    delta = subtract(cells_of(await state_of(client)), before).values()
    total = {
        name: sum(cell[name] for cell in delta)
        for name in next(iter(delta))
        if not name.startswith("accepted")
    }
    assert (total["prefill_spells"], total["prefilled_requests"], total["prefilled_tokens"]) == (4, 4, 4)
    assert (
        4 <= total["skipped_prefill"] <= 8
    )  # the interval in which each is launched, and the one it runs in
    assert 0 < total["skipped_prefill_seconds"] / total["skipped_prefill"] < 2


def cells_of(state):
    names = ("batch_bucket", "depth", "gear")
    return {
        tuple(cell.pop(name) for name in names): cell
        for telemetry in state["telemetry"]
        for cell in telemetry["cells"]
    }


def subtract(after, before):
    def minus(name, cell, old):
        value = cell[name]
        if isinstance(value, list):
            return [a - b for a, b in zip(value, old[name], strict=True)] if old else value
        return value - (old[name] if old else 0)

    return {key: {name: minus(name, cell, before.get(key)) for name in cell} for key, cell in after.items()}


HOSTILE = {
    "unknown depth": ({"schedule": [{"min_batch_size": 1, "depth": 9}]}, 422, "schedule[0].depth"),
    "gap": ({"schedule": [{"min_batch_size": 2, "depth": 1}]}, 422, "schedule[0].min_batch_size"),
    "negative": ({"schedule": [{"min_batch_size": 1, "depth": -1}]}, 422, "schedule[0].depth"),
    "string": ({"schedule": [{"min_batch_size": 1, "depth": "1"}]}, 422, "schedule[0].depth"),
    "true": ({"schedule": [{"min_batch_size": 1, "depth": True}]}, 422, "schedule[0].depth"),
    "huge table": ({"schedule": [{"min_batch_size": i, "depth": 1} for i in range(1, 999)]}, 422, "schedule"),
    "old sequence": ({"sequence": 1}, 409, "sequence"),
    "other holder": ({"holder": "thief"}, 409, "holder"),
    "lease": ({"lease_s": 1e9}, 422, "lease_s"),
    "a megabyte": ({"schedule": ["x" * 1_000_000]}, 413, None),
}


@in_modes("overlap")
async def test_a_hostile_put_changes_nothing(server, client):
    """4xx with the field; schedule, holder and what the ranks applied stay, and the server serves on."""
    answer = await put(client, (1, 3))
    good = {key: answer.json()[key] for key in ("schedule", "sequence", "holder", "ranks")}
    for name, (changes, status, field) in HOSTILE.items():
        body = {
            "schedule": [{"min_batch_size": 1, "depth": 1}],
            "lease_s": 60,
            "sequence": good["sequence"] + 1,
            "holder": "test",
        } | changes
        refused = await client.put("/speculation", json=body)
        assert (refused.status_code, refused.json()["error"]["field"]) == (status, field), name
    for raw, status in (("[" * 50_000, 400), ('{"lease_s": NaN', 400), ("", 400)):
        assert (await client.put("/speculation", content=raw)).status_code == status
    state = await state_of(client)
    assert {key: state[key] for key in good} == good
    await check(client, 9, 12)


@in_modes("overlap")
async def test_our_keys_on_sglangs_own_endpoint_are_checked_again_in_the_scheduler(server, client):
    """Whoever may post to `/set_internal_state` may send them, coerced or not; bad ones change nothing."""
    await put(client, (1, 3))
    for keys in (
        {"specgov.order": 10**6, "specgov.sequence": 1, "specgov.rows": 1},
        {"specgov.order": "1000000", "specgov.sequence": True, "specgov.rows": 0, "specgov.x": 1},
        {"specgov.order": 1, "specgov.sequence": 1, "specgov.rows": 0},
    ):
        answer = await client.post("/set_internal_state", json={"server_args": keys})
        assert answer.json() == [False]
    before = launches(server)
    await check(client, 9, 12)
    assert {d for _, d in since(server, before)[0, 0]} == {3}


@in_modes(*SPECULATING)
async def test_sglangs_own_checks_stay_quiet(server, client):
    """After all of the above: idle, SGLang finds no leaked memory, and nothing of ours ever failed."""
    await client.delete("/speculation")
    await settled(client)
    await asyncio.sleep(1)  # SGLang checks its pools when idle and dies if they do not add up
    assert server.alive()
    await check(client, 11, 12)
    log = server.log()
    for bad in ("Traceback", "leak", "specgov: looking", "failed; SGLang goes on"):
        assert bad not in log, [line for line in log.splitlines() if bad in line][:3]
    state = await state_of(client)
    assert [t["hook_errors"] for t in state["telemetry"]] == [0] * len(
        RANKS[server.mode]
    ) or server.mode == "tp2"
    assert state["controllable"]
