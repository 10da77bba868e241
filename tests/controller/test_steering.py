"""Push, renew, revoke: the cases that the loop's tests do not reach."""

from __future__ import annotations

import httpx
import pytest

from controller.control_state import parse_control_state
from controller.steering import Lease, LeaseParams, Steering
from policies.types import Action, Arm, Decision, Probe, Reason, Schedule
from tests.controller.conftest import Clock
from tests.controller.fake_engine import FakeEngine
from tests.controller.test_engine_client import client

PROBE = Probe(Arm(1), every_steps=100, burst_steps=8, min_batch_size=1, max_batch_size=8, bursts=2)
HOLD = Decision(Action.HOLD, Reason.DWELL, "held")
RELEASE = Decision(Action.RELEASE, Reason.NATIVE, "native")


def govern(depth, probe=None):
    return Decision(Action.GOVERN, Reason.FIXED, "x", Schedule.constant(Arm(depth)), probe)


def plan_of(holder):
    table = [{"min_batch_size": 1, "depth": 1}]
    return {"schedule": table, "probe": None, "lease_s": 15, "sequence": 5, "holder": holder}


class Rig:
    """Steering against a fake engine."""

    def __init__(self, dry_run=False):
        self.clock = Clock()
        self.engine = FakeEngine(self.clock)
        transport = self.engine.transport()

        async def handler(request):
            return await transport.handle_async_request(request)

        self.steering = Steering(LeaseParams("me", 15, 10, 3), client(handler), dry_run=dry_run)

    async def apply(self, decision, seconds=1.0):
        self.clock.now_s += seconds
        return await self.steering.apply(decision, parse_control_state(self.engine.state()), self.clock.now_s)


@pytest.fixture
def rig():
    """Steering against a fake engine."""
    return Rig()


async def test_a_probe_alone_is_pushed_at_once(rig):
    """The same table with another probe is another plan."""
    await rig.apply(govern(2))
    await rig.apply(govern(2, PROBE))
    assert [put["probe"] and put["probe"]["depth"] for put in rig.engine.puts] == [None, 1]
    steered = await rig.apply(govern(2, PROBE))
    assert steered.acknowledged
    assert len(rig.engine.puts) == 2


async def test_a_hold_renews_what_is_in_force_and_pushes_it_again_when_the_engine_lost_it(rig):
    """Nothing new is decided, and nothing is let go."""
    await rig.apply(govern(2, PROBE))
    await rig.apply(HOLD, 3.0)
    assert [put["sequence"] for put in rig.engine.puts] == [1, 2]
    rig.engine.start()
    await rig.apply(HOLD)
    assert rig.engine.plan["probe"]["bursts"] == 2


async def test_a_hold_with_nothing_in_force_sends_nothing(rig):
    """A fresh sidecar that has not decided yet."""
    await rig.apply(HOLD)
    assert rig.engine.puts == rig.engine.deletes == []


async def test_a_release_revokes_once(rig):
    """In our own name."""
    await rig.apply(govern(2))
    await rig.apply(RELEASE)
    steered = await rig.apply(RELEASE)
    assert rig.engine.deletes == ["me"]
    assert (steered.lease, steered.wanted) == (Lease.NONE, None)


async def test_a_put_that_came_through_after_all_is_revoked_when_nothing_is_wanted_any_more(rig):
    """Its answer was lost, then the decision changed: the engine is not left on the old plan."""
    rig.engine.lose_put_answer = True
    await rig.apply(govern(2))
    rig.engine.lose_put_answer = False
    await rig.apply(RELEASE)
    assert rig.engine.plan is None


async def test_a_release_leaves_another_holders_plan_alone(rig):
    """It is not ours to give back."""
    rig.engine._put(
        {
            "schedule": [{"min_batch_size": 1, "depth": 1}],
            "probe": None,
            "lease_s": 15,
            "sequence": 5,
            "holder": "other",
        }
    )
    steered = await rig.apply(RELEASE)
    assert steered.lease is Lease.FOREIGN
    assert rig.engine.deletes == []


async def test_a_lost_race_for_the_sequence_is_made_up_for_in_the_next_turn(rig):
    """409 is reported, then the engine is asked again and its number topped."""
    state = parse_control_state(rig.engine.state())
    rig.engine.sequence = 7
    steered = await rig.steering.apply(govern(2), state, rig.clock.now_s)
    assert "sequence must be above 7" in steered.error
    await rig.apply(govern(2))
    assert rig.engine.sequence == 8


async def test_a_failing_engine_is_reported_and_tried_again(rig):
    """Every PUT is reset: wanted, not acknowledged, an error each turn."""
    rig.engine.fail["PUT /speculation"] = httpx.ConnectError("reset")
    for _ in range(2):
        steered = await rig.apply(govern(2))
        assert not steered.acknowledged
        assert "reset" in steered.error
    rig.engine.fail.clear()
    assert (await rig.apply(govern(2))).acknowledged


async def test_a_dry_sidecar_neither_adopts_nor_revokes():
    """Not even what it put in force itself before."""
    rig = Rig(dry_run=True)
    rig.engine._put(
        {
            "schedule": [{"min_batch_size": 1, "depth": 1}],
            "probe": None,
            "lease_s": 15,
            "sequence": 5,
            "holder": "me",
        }
    )
    await rig.apply(HOLD)
    await rig.apply(RELEASE)
    await rig.steering.shut_down()
    assert rig.engine.plan is not None
    assert len(rig.engine.puts) == 1
