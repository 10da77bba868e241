"""What the engine says about itself is wrong: renamed, missing, NaN, twice, going back, of another time."""

from __future__ import annotations

import copy

import httpx
import pytest

from controller.effect import Effect

TABLE = '[{"min_batch_size": 1, "depth": 3}, {"min_batch_size": 32, "depth": 0}]'
BY_LOAD = {"policy__name": "threshold", "policies__threshold__rows": TABLE}


def metrics(*lines):
    async def fault(request):
        return httpx.Response(200, content="\n".join(lines).encode(), request=request)

    return fault


async def away(request):
    return httpx.Response(502, request=request)


async def json_of(t, path):
    """What the engine would say, to be changed."""
    request = httpx.Request("GET", f"http://engine{path}")
    answer = await t.engine.between._inner.handle_async_request(request)
    await answer.aread()
    return answer.json()


RUNNING, QUEUE = 'sglang:num_running_reqs{tp_rank="0"}', 'sglang:num_queue_reqs{tp_rank="0"}'
REST = ('sglang:num_used_tokens{tp_rank="0"} 400.0', 'sglang:token_usage{tp_rank="0"} 0.1')
SERIES = {
    "renamed": (('sglang_num_running_requests{tp_rank="0"} 90.0', f"{QUEUE} 0.0", *REST), "schema"),
    "missing": ((f"{QUEUE} 0.0", *REST), "schema"),
    "NaN": ((f"{RUNNING} NaN", f"{QUEUE} 0.0", *REST), "schema"),
    "negative": ((f"{RUNNING} -1.0", f"{QUEUE} 0.0", *REST), "schema"),
    "infinite": ((f"{RUNNING} +Inf", f"{QUEUE} 0.0", *REST), "schema"),
    "twice": (
        (f"{RUNNING} 4.0", 'sglang:num_running_reqs{tp_rank="1"} 90.0', f"{QUEUE} 0.0", *REST),
        "schema",
    ),
    "no_number": ((f"{RUNNING} many", f"{QUEUE} 0.0", *REST), "schema"),
    "half_a_line": ((f"{RUNNING[:-4]}", f"{QUEUE} 0.0", *REST), "schema"),
    "empty": ((), "stale_input"),
}


@pytest.mark.parametrize("name", SERIES)
async def test_series_that_are_unsound_are_unknown_and_never_zero(trial, name):
    """With `/v1/loads` away and the ranks idle: the plan is held, the fault is said, and it ends with it."""
    lines, condition = SERIES[name]
    t = await trial(**BY_LOAD, engine__metrics_period_s=1.0)
    await t.governed()
    t.faults["/v1/loads"], t.faults["/metrics"] = away, metrics(*lines)
    plan = t.engine.plan["schedule"]
    for _ in range(5):
        await t.bench.tick()
    assert condition in t.bench.conditions()
    assert t.bench.loop.last.observation.running_reqs is None or name == "empty"
    assert t.engine.plan["schedule"] == plan
    t.faults.clear()
    await t.recovers()


def without(*names):
    def change(state):
        for name in names:
            state.pop(name)

    return change


def cells(**changes):
    def change(state):
        for cell in state["telemetry"][0]["cells"]:
            cell.update(changes)

    return change


TELEMETRY = {
    "steps_are_gone": (cells(steps=None), "schema"),
    "seconds_are_nan_text": (cells(timed_seconds="NaN"), "schema"),
    "tokens_are_negative": (cells(tokens=-5), "schema"),
    "histogram_is_text": (cells(accepted="many"), "schema"),
    "rank_is_unknown": (lambda s: s["telemetry"][0].update(dp_rank=None), "schema"),
    "schedule_is_no_table": (lambda s: s.update(schedule=[{"min_batch_size": 9, "depth": 1}]), "schema"),
    "ranks_disagree": (lambda s: s.update(ranks_agree=False), "ranks_disagree"),
    "the_hook_failed": (lambda s: s["telemetry"][0].update(hook_errors=3), "hook_errors"),
    "not_controllable": (lambda s: s.update(controllable=False, reason="why not"), "not_controllable"),
    "no_telemetry": (without("telemetry"), None),
    "no_ranks": (without("ranks"), None),
}


@pytest.mark.parametrize("name", TELEMETRY)
async def test_telemetry_that_is_unsound_is_said_and_survived(trial, name):
    """For ten turns; then it is sound again."""
    change, condition = TELEMETRY[name]
    t = await trial()
    await t.governed()

    async def changed(request):
        state = copy.deepcopy(t.engine.state())
        change(state)
        return httpx.Response(200, json=state, request=request)

    t.faults["GET /speculation"] = changed
    conditions = await t.run(10)
    assert condition is None or condition in conditions
    t.faults.clear()
    await t.recovers()


async def test_counters_that_go_back_begin_an_epoch_and_are_no_negative_rate(trial):
    """As at a restart, though nobody said so; throughput is unknown in that turn, not below zero."""
    t = await trial()
    await t.governed()
    t.engine.decode_steps -= 15
    for cell in t.engine.cells.values():
        cell["steps"] -= 5
        cell["tokens"] -= 40
    await t.bench.tick()
    seen = t.bench.loop.last.observation
    assert (seen.engine_epoch, seen.decode_steps, seen.cells) == (1, None, ())
    await t.recovers()


async def test_counters_that_leap_by_2_to_the_60_do_not_stop_a_turn(trial):
    """Absurd is survived; what it taught is gone with the next epoch."""
    t = await trial(policy__name="goodput")
    await t.run(5)
    for cell in t.engine.cells.values():
        cell["tokens"] += 1 << 60
        cell["steps"] += 1 << 60
    await t.run(5)
    assert t.bench.loop.failed_ticks == 0
    assert (await t.bench.api.get("/metrics")).status_code == 200


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0], ids=["forward", "back"])
async def test_the_engines_clock_jumps(trial, jump_s):
    """Between taking figures and sending them: an hour old is stale and held, a future one is fresh."""
    t = await trial(**BY_LOAD)
    await t.governed()
    plan = t.engine.plan["schedule"]

    async def jumped(request):
        body = await json_of(t, "/v1/loads")
        body["loads"][0]["timestamp"] -= jump_s
        return httpx.Response(200, json=body, request=request)

    t.faults["/v1/loads"] = jumped
    for _ in range(5):
        await t.bench.tick()
    assert ("stale_input" in t.bench.conditions()) is (jump_s > 0)
    assert t.engine.plan["schedule"] == plan
    t.faults.clear()
    await t.recovers()


@pytest.mark.parametrize("jump_s", [7200.0, -7200.0], ids=["forward", "back"])
async def test_the_wall_clock_of_the_sidecar_jumps(trial, monkeypatch, jump_s):
    """An order for 60 s lasts 60 s of real time, leases go on, and no turn fails."""
    t = await trial()
    await t.governed()
    await t.order(mode="off", ttl_s=60)
    await t.run(2)
    jumped = t.bench.clock.wall() + jump_s - t.bench.clock.now_s
    monkeypatch.setattr(t.bench.loop, "_wall_clock", lambda: jumped + t.bench.clock.now_s)
    monkeypatch.setattr(t.bench.assembly.sidecar, "_wall_clock", lambda: jumped + t.bench.clock.now_s)
    await t.run(50)
    assert t.engine.plan["schedule"][0]["depth"] == 0
    assert (await t.bench.api.get("/v1/override")).json()["mode"] == "off"
    await t.run(12)
    assert t.engine.plan["schedule"][0]["depth"] == 2
    assert t.bench.loop.last.effect.effect is Effect.APPLIED
    assert (await t.bench.api.get("/healthz")).status_code == 200
    assert t.bench.loop.failed_ticks == 0
