"""A crash loop's pin: it outlives the sidecar, `auto` ends it, and everything that is said names that."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.crash_pin import CrashPin
from controller.store import Store
from policies.types import Reason

OFF = [{"min_batch_size": 1, "depth": 0, "gear": "cold"}]
DEPTH_2 = [{"min_batch_size": 1, "depth": 2}]


async def crash(bench):
    """Three restarts of the engine, a turn after each."""
    await bench.tick()
    for _ in range(3):
        bench.engine.start()
        result = await bench.tick()
    return result


async def order(bench, mode, **more):
    """Give an order and let a turn pass; the answer."""
    answer = await bench.api.put("/v1/override", json={"mode": mode, "reason": "x", **more})
    await bench.tick()
    return answer.json()


async def test_a_pin_is_there_again_after_a_restart_of_the_sidecar(make):
    """Ended by SIGTERM in between: off in the first turn, for what is left, and never the policy's depth."""
    first = await make()
    await crash(first)
    assert first.engine.plan["schedule"] == OFF
    await first.loop._shut_down()
    await first.assembly.aclose()
    second = await make(engine=first.engine)
    result = await second.tick()
    assert result.decision.reason is Reason.CRASH_LOOP
    assert 3500 < result.decision.evidence["left_s"] < 3600
    assert second.engine.plan["schedule"] == OFF


@pytest.mark.parametrize("above", [None, "native", "on"])
async def test_auto_ends_the_pin_whatever_order_stood_above_it(make, above):
    """The policy governs in the next turn, and after a restart of the sidecar too; the answer says so."""
    bench = await make()
    await crash(bench)
    if above:
        assert (await order(bench, above))["pin_ended"] is False
    assert (await order(bench, "auto"))["pin_ended"] is True
    assert bench.engine.plan["schedule"] == DEPTH_2
    assert (await order(bench, "auto"))["pin_ended"] is False
    assert bench.assembly.sidecar.decisions(kind="override")[0].reason == "auto"
    await bench.assembly.aclose()
    again = await make(engine=bench.engine)
    assert (await again.tick()).decision.reason is Reason.FIXED


async def test_delete_ends_the_pin_as_auto_does(make):
    """Two ways to say the same."""
    bench = await make()
    await crash(bench)
    await bench.api.delete("/v1/override", params={"reason": "x"})
    await bench.tick()
    assert bench.engine.plan["schedule"] == DEPTH_2


async def test_an_order_that_ends_by_itself_leaves_the_pin(make):
    """On for 60 s stands above it; nobody said that the policy shall govern."""
    bench = await make()
    await crash(bench)
    await order(bench, "on", depth=1, ttl_s=60)
    assert bench.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 1}]
    result = await bench.tick(61)
    assert result.decision.reason is Reason.CRASH_LOOP
    assert bench.engine.plan["schedule"] == OFF


async def test_the_headline_names_the_guard_and_all_that_advises_names_the_command(make):
    """Status and explain; neither calls it the policy's choice, nor advises what ends nothing."""
    bench = await make()
    await crash(bench)
    status = (await bench.api.get("/v1/status")).json()
    assert status["headline"].startswith("governed (guard: crash loop), ")
    assert "mend the engine, then let the policy govern again: specgov override auto" in status["type"]
    explained = (await bench.api.get("/v1/explain")).json()
    assert explained["would_change"][0].endswith("specgov override auto")


def test_a_pin_that_a_late_store_holds_comes_into_force_unless_one_was_ended_here(tmp_path):
    """The file could not be opened at the start: it is taken up once it can be, or overwritten."""
    store = Store(tmp_path / "state.db", max_rows=10, max_bytes=1 << 20)
    store.save_crash_pin(1000.0)
    memory = Store(Path(":memory:"), max_rows=10, max_bytes=1 << 20)
    late, ended = CrashPin(memory), CrashPin(memory)
    late.adopt(store)
    assert (late.left_before_s(400.0), late.left_before_s(1000.0)) == (600.0, None)
    ended.end()
    ended.adopt(store)
    assert ended.left_before_s(400.0) is None
    assert store.crash_pin() is None
    store.close()
    memory.close()


def test_the_end_is_written_again_only_when_it_moves():
    """Clocks drift apart by milliseconds each turn; another restart moves it by more."""
    store = Store(Path(":memory:"), max_rows=10, max_bytes=1 << 20)
    pin = CrashPin(store)
    kept = []
    for now_unix_s, left_s in [(0.0, 3600.0), (1.0, 3599.01), (30.0, 3600.0), (40.0, None)]:
        pin.note(left_s, now_unix_s, auto_orders=0)
        pin.record(None)
        kept.append(store.crash_pin())
    assert kept == [3600.0, 3600.0, 3630.0, None]
    store.close()
