"""Leases, sequences and acknowledgements in the HTTP process, in virtual time."""

import asyncio
import time

import pytest

from sglang_hooks.control_plane import ControlError, ControlPlane, parse_fallback, ranks_agree
from sglang_hooks.schedule import InvalidPlanError, Row, Schedule
from tests.hooks.fakes import FakeEngine

pytestmark = pytest.mark.looptime


def make_plane(engine, **kwargs):
    clock = asyncio.get_running_loop().time
    return ControlPlane(engine, engine.board, sglang_version="0.5.23", clock=clock, **kwargs)


def plan(sequence=1, *, depth=3, lease_s=15, holder="a", **more):
    rows = [{"min_batch_size": 1, "depth": depth}]
    return {"schedule": rows, "lease_s": lease_s, "sequence": sequence, "holder": holder, **more}


async def test_a_plan_is_in_force_on_every_rank_when_the_answer_is_200():
    """Two DP ranks of two TP ranks each: all four follow it, at the step that each acknowledged."""
    engine = FakeEngine(dp_size=2, tp_size=2)
    plane = make_plane(engine)
    status, state = await plane.put(plan(42))
    assert status == 200
    assert (state["state"], state["sequence"], state["holder"]) == ("governed", 42, "a")
    assert state["schedule"] == [{"min_batch_size": 1, "depth": 3}]
    assert [(r["dp_rank"], r["tp_rank"], r["sequence"]) for r in state["ranks"]] == [
        (0, 0, 42),
        (0, 1, 42),
        (1, 0, 42),
        (1, 1, 42),
    ]
    assert state["ranks_agree"] is True
    assert engine.depths_at(1) == [3, 3, 3, 3]


async def test_before_any_plan_sglang_rules():
    """`state` native, nothing in force, and no rank to compare."""
    state = await make_plane(FakeEngine(tp_size=2)).state()
    assert (state["controllable"], state["state"], state["schedule"], state["holder"]) == (
        True,
        "native",
        None,
        None,
    )
    assert state["lease"] == {"lease_s": None, "left_s": None, "expired": 0}
    assert state["ranks_agree"] is None


async def test_a_dead_holder_hands_back_when_the_lease_ends():
    """Nobody asks anything after the PUT: the watch alone falls back, at the lease's end and not before."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(lease_s=10))
    await asyncio.sleep(9.9)
    assert engine.depths_at(1) == [3]
    await asyncio.sleep(0.2)
    assert engine.depths_at(1) == [2]  # SGLang's own
    state = await plane.state()
    assert (state["state"], state["holder"], state["lease"]["expired"]) == ("fallback", None, 1)


async def test_a_renewal_prolongs_the_lease():
    """Renewed at 8 s for another 10 s: in force at 17.9 s, over at 18.1 s."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(1, lease_s=10))
    await asyncio.sleep(8)
    await plane.put(plan(2, lease_s=10))
    await asyncio.sleep(9.9)
    assert engine.depths_at(1) == [3]
    await asyncio.sleep(0.2)
    assert engine.depths_at(1) == [2]


async def test_a_shorter_lease_ends_at_its_own_time():
    """After a plan of 60 s, given back or renewed, one of 2 s is over after 2 s."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(1, lease_s=60))
    await plane.delete(None)
    await plane.put(plan(2, lease_s=60))
    await plane.put(plan(3, lease_s=2))
    await asyncio.sleep(2.1)
    assert engine.depths_at(1) == [2]


@pytest.mark.parametrize(("fallback", "depth"), [("native", 2), ("hold", 3), (1, 1), (0, 0)])
async def test_the_fallback_of_the_launch_takes_over(fallback, depth):
    """`hold` keeps the schedule, `depth:N` is one depth for all batch sizes; neither probes."""
    engine = FakeEngine()
    plane = make_plane(engine, fallback=fallback)
    await plane.put(plan(probe={"depth": 2, "every_steps": 1, "burst_steps": 1}))
    assert engine.depths_at(1) == [2]  # the probe
    await plane.delete(None)
    assert engine.depths_at(1) == [depth]
    assert (await plane.state())["state"] == "fallback"


async def test_a_fallback_to_a_depth_that_was_not_built_is_native(caplog):
    """It is said in the log as soon as the built depths are known, not when the lease ends."""
    plane = make_plane(FakeEngine(), fallback=7)
    assert (await plane.state())["fallback"] == "native"
    assert "must name a built depth" in caplog.text


@pytest.mark.parametrize(
    ("text", "fallback"),
    [(None, "native"), ("hold", "hold"), ("depth:0", 0), ("depth:12", 12), ("native", "native")],
)
def test_the_fallback_is_read_from_the_environment(text, fallback):
    """The three forms."""
    assert parse_fallback(text) == fallback


@pytest.mark.parametrize("text", ["off", "depth:", "depth:-1", "depth:1.5", "depth:²", "depth:99999"])
def test_a_bad_fallback_is_native_and_said(text, caplog):
    """A typo at launch must not stop the server."""
    assert parse_fallback(text) == "native"
    assert "SPECGOV_FALLBACK must be" in caplog.text


@pytest.mark.parametrize("sequence", [41, 42])
async def test_a_sequence_that_is_not_newer_is_refused(sequence):
    """409, and the plan in force stays."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(42))
    with pytest.raises(ControlError, match="sequence must be above 42") as caught:
        await plane.put(plan(sequence, depth=1))
    assert (caught.value.status, caught.value.field) == (409, "sequence")
    assert engine.depths_at(1) == [3]


async def test_an_old_plan_cannot_come_back_after_its_lease():
    """A PUT that was delayed on its way is still older than what was in force."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(42, lease_s=1))
    await asyncio.sleep(2)
    with pytest.raises(ControlError):
        await plane.put(plan(42))
    assert engine.depths_at(1) == [2]


async def test_only_the_holder_steers_while_its_lease_is_live():
    """A second sidecar is told who holds it and for how long; after the lease it may."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(1, holder="a", lease_s=10))
    with pytest.raises(ControlError, match=r"a holds the lease for another 10\.0 s") as caught:
        await plane.put(plan(2, holder="b"))
    assert caught.value.status == 409
    with pytest.raises(ControlError, match="a holds the lease, not b"):
        await plane.delete("b")
    await asyncio.sleep(11)
    assert (await plane.put(plan(2, holder="b")))[0] == 200


async def test_anybody_may_delete_without_a_name():
    """An operator's way to turn it off at once; again and again."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan())
    for _ in range(2):
        status, state = await plane.delete(None)
        assert (status, state["state"]) == (200, "fallback")
    assert engine.depths_at(1) == [2]
    assert len(engine.sent) == 2


async def test_a_bad_plan_changes_nothing():
    """Neither what is in force nor the lease."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(1, lease_s=10))
    with pytest.raises(InvalidPlanError):
        await plane.put(plan(2, depth=9, lease_s=100))
    await asyncio.sleep(11)
    assert engine.depths_at(1) == [2]
    assert len(engine.sent) == 2


async def test_a_server_that_cannot_be_governed_is_not():
    """503 with the reason; nothing is sent."""
    engine = FakeEngine(reason="speculation is off")
    plane = make_plane(engine)
    with pytest.raises(ControlError, match="speculation is off") as caught:
        await plane.put(plan())
    assert caught.value.status == 503
    assert engine.sent == []
    state = await plane.state()
    assert (state["controllable"], state["reason"]) == (False, "speculation is off")


async def test_a_rank_that_is_not_hooked_stops_control_before_it_starts():
    """Its peers would change depth without it, and hang."""
    engine = FakeEngine(tp_size=2)
    engine.board._buffer[64:] = bytes(64)
    with pytest.raises(ControlError, match="not active in the scheduler of dp rank 0 tp rank 1"):
        await make_plane(engine).put(plan())
    assert engine.sent == []


async def test_ranks_with_other_depths_stop_control_before_it_starts():
    """The same config on every rank is what the schedule relies on."""
    engine = FakeEngine(tp_size=2)
    engine.board.write(1, engine.board.read(1)._replace(depths_mask=0b111))
    with pytest.raises(ControlError, match="tp rank 1 has built other depths"):
        await make_plane(engine).put(plan())


async def test_ranks_with_other_gears_stop_control_before_it_starts():
    """Plain decoding failed on one rank: it would run draft-extends that its peer leaves out, and hang."""
    engine = FakeEngine(tp_size=2, gears=("warm", "cold"))
    engine.ranks[1]._plain_decode.gears = ("warm",)
    engine.ranks[1].report()
    for depth in (0, 3):
        with pytest.raises(ControlError, match="tp rank 1 has other gears of off than rank 0"):
            await make_plane(engine).put(plan(depth=depth))
    assert engine.sent == []


async def test_a_gear_that_a_rank_lost_unseen_is_never_acknowledged_there():
    """It has the depth and not the gear: it refuses the command, and nobody is told that it follows it."""
    engine = FakeEngine(tp_size=2, gears=("warm", "cold"))
    plane = make_plane(engine)
    await plane.put(plan(1))
    engine.ranks[1]._plain_decode.gears = ("warm",)
    cold = {"schedule": [{"min_batch_size": 1, "depth": 0, "gear": "cold"}]}
    status, state = await plane.put(plan(2) | cold)
    assert status == 202
    assert [(rank["tp_rank"], rank["sequence"]) for rank in state["ranks"]] == [(0, 2), (1, 1)]
    assert state["controllable"] is False
    assert state["reason"] == "dp rank 0 tp rank 1 has other gears of off than rank 0"


async def test_ranks_that_ran_one_depth_in_different_gears_do_not_agree():
    """Same depth, same number of steps, same order acknowledged: the digest knows of the gear."""
    engine = FakeEngine(tp_size=2, gears=("warm", "cold"))
    plane = make_plane(engine)
    cold = {"schedule": [{"min_batch_size": 1, "depth": 0, "gear": "cold"}]}
    await plane.put(plan(1) | cold)
    warm = Schedule([Row(1, 0, "warm")])
    engine.ranks[1].policy.follow(warm, None)
    assert engine.depths_at(1) == [0, 0]
    _, state = await plane.put(plan(2, depth=3))
    assert [rank["sequence"] for rank in state["ranks"]] == [2, 2]
    assert state["ranks_agree"] is False


async def test_a_fallback_that_a_rank_refuses_becomes_native():
    """Nobody waits for its answer; the dead holder's schedule must not stay on the rank that refused."""
    engine = FakeEngine(dp_size=2)
    plane = make_plane(engine, fallback=0)
    await plane.put(plan(lease_s=5))
    engine.ranks[1]._plain_decode.gears = ()
    await asyncio.sleep(6)
    assert engine.depths_at(1) == [2, 2]


async def test_a_missing_dp_rank_stops_control():
    """One of two DP ranks does not report: it is unknown, not absent."""
    engine = FakeEngine(dp_size=2)
    engine.ranks.pop()
    with pytest.raises(ControlError, match="1 of 2 DP ranks only"):
        await make_plane(engine).put(plan())


async def test_a_scheduler_that_does_not_answer_gives_202_and_gets_the_latest_plan_only():
    """Three plans while it is stuck: each answered after 2 s, one command carried when it comes back."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.state()
    engine.answers.clear()
    for sequence, depth in ((1, 0), (2, 1), (3, 3)):
        before = asyncio.get_running_loop().time()
        status, _ = await plane.put(plan(sequence, depth=depth))
        assert status == 202
        assert asyncio.get_running_loop().time() - before == pytest.approx(2.1, abs=0.02)
    engine.answers.set()
    await asyncio.sleep(0.1)
    assert [flat["specgov.sequence"] for flat in engine.sent] == [1, 3]
    assert engine.depths_at(1) == [3]


async def test_a_lease_that_ends_while_the_scheduler_is_stuck_falls_back_when_it_comes_back():
    """The fallback waits behind the plan and then takes over, though nobody asks."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.state()
    engine.answers.clear()
    await plane.put(plan(1, lease_s=5))
    await asyncio.sleep(60)
    engine.answers.set()
    await asyncio.sleep(0.1)
    assert engine.depths_at(1) == [2]


async def test_a_command_that_cannot_be_sent_is_sent_again(caplog):
    """The fallback must arrive even if a send failed."""
    engine = FakeEngine()
    plane = make_plane(engine)
    await plane.put(plan(1, lease_s=5))
    engine.error = OSError("socket")
    await asyncio.sleep(6)
    engine.error = None
    await asyncio.sleep(1.1)
    assert engine.depths_at(1) == [2]
    assert "could not be sent" in caplog.text


async def test_a_rank_that_refuses_puts_all_back_to_sglang():
    """500, and no rank is left with another schedule than its peers."""
    engine = FakeEngine(dp_size=2)
    plane = make_plane(engine)
    await plane.state()
    engine.ranks[1]._plain_decode.gears = ()
    with pytest.raises(ControlError, match="a rank refused") as caught:
        await plane.put(plan(depth=0))
    assert caught.value.status == 500
    await asyncio.sleep(0.1)
    assert engine.depths_at(1) == [2, 2]
    assert (await plane.state())["state"] == "fallback"


async def test_get_says_when_the_scheduler_does_not_answer():
    """504 after 5 s; calls that overlap share one request to it."""
    engine = FakeEngine()
    plane = make_plane(engine)
    engine.answers.clear()
    results = await asyncio.gather(*[plane.state() for _ in range(3)], return_exceptions=True)
    assert [error.status for error in results] == [504, 504, 504]
    assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.01)
    engine.answers.set()
    assert (await plane.state())["controllable"]


async def test_a_busy_event_loop_does_not_prolong_a_lease():
    """The loop was blocked past the end: the first one that gets to run falls back."""
    engine = FakeEngine()
    now = [0.0]
    plane = ControlPlane(engine, engine.board, sglang_version=None, clock=lambda: now[0])
    await plane.put(plan(1, lease_s=10))
    now[0] = 30.0  # time passed, no task ran
    state = await plane.state()
    await asyncio.sleep(0)
    assert state["state"] == "fallback"
    assert engine.depths_at(1) == [2]


async def test_control_that_is_impossible_from_the_start_says_why():
    """A mismatch with SGLang: the endpoint is there to tell."""
    plane = ControlPlane(None, None, sglang_version="9.9.9", reason="Scheduler.x is missing")
    state = await plane.state()
    assert (state["controllable"], state["reason"], state["ranks"], state["telemetry"]) == (
        False,
        "Scheduler.x is missing",
        [],
        [],
    )
    with pytest.raises(ControlError, match=r"Scheduler\.x is missing"):
        await plane.put(plan())


def rank(dp=0, tp=0, order=5, steps=10, digest=1):
    return {"dp_rank": dp, "tp_rank": tp, "order": order, "decode_steps": steps, "digest": digest}


@pytest.mark.parametrize(
    ("ranks", "agree"),
    [
        ([rank(), rank(tp=1)], True),
        ([rank(), rank(tp=1, steps=11)], False),
        ([rank(), rank(tp=1, digest=2)], False),
        ([rank(), rank(tp=1, order=4, steps=9)], None),
        ([rank(), rank(dp=1, steps=99)], None),
        ([rank(order=None), rank(tp=1, order=None)], None),
        ([rank(order=0), rank(tp=1, order=0)], None),
        ([], None),
    ],
)
def test_ranks_are_compared_where_they_applied_the_same_command(ranks, agree):
    """DP ranks run apart; a rank that is a command behind says nothing yet."""
    assert ranks_agree(ranks) is agree


def test_wall_time_is_not_what_leases_are_measured_by():
    """The default clock is monotonic: setting the wall clock moves no lease."""
    assert ControlPlane(None, None, sglang_version=None)._clock is time.monotonic
