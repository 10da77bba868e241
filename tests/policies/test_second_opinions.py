from __future__ import annotations

import pytest

from policies.bandit import Bandit, BanditParams
from policies.shadow import Comparison
from policies.types import OFF_COLD, Action, Arm, CellDelta, Decision, Forecast, Reason, Row, Schedule
from tests.policies.bench import Bench


def test_the_bandit_finds_the_better_arm_without_a_model() -> None:
    """At 256 requests off takes 10 ms for 1 token, depth 4 53 ms for 3: off holds the last minute."""
    bench = Bench(Bandit(), batch=lambda _t: 256).run(180)
    last = [d.schedule.arm_for(256) for d in bench.decisions[-60:]]
    assert last.count(OFF_COLD) >= 55


def test_the_bandit_keeps_buckets_apart() -> None:
    """Depth 4 or 2 at 4 requests, off at 256, learned in turns."""
    bench = Bench(Bandit(), batch=lambda t: 4 if t % 60 < 30 else 256).run(600)
    assert bench.schedule.arm_for(4).depth >= 2
    assert bench.schedule.arm_for(256) == OFF_COLD


def test_the_bandit_draws_the_same_from_the_same_seed() -> None:
    """Two bandits with seed 5 decide alike, one with seed 6 does not (over two minutes)."""
    bench = Bench(Bandit(BanditParams(seed=5)), batch=lambda _t: 24).run(120)
    replayed = [
        [p.decide(o) for o in bench.observations]
        for p in (Bandit(BanditParams(seed=5)), Bandit(BanditParams(seed=6)))
    ]
    assert replayed[0] == bench.decisions
    assert replayed[1] != bench.decisions


def decision(schedule: Schedule | None) -> Decision:
    action = Action.GOVERN if schedule else Action.HOLD
    return Decision(action, Reason.FIXED, "", schedule)


def cell(batch: int, steps: int) -> CellDelta:
    return CellDelta(batch, Arm(3), steps, steps * batch, steps * batch, (), (), 0, 0.0, 0.0, 0, 0)


def test_two_policies_differ_by_the_load_that_sees_them_differ() -> None:
    """They differ from 32 requests up; 30 of 100 steps ran there.  Off: 900 tok/s against 600 at depth 3.

    (70 * 500 + 30 * 900) / (70 * 500 + 30 * 600) - 1 = 62000 / 53000 - 1 = 17.0 %.
    """
    active, shadow = Schedule.constant(Arm(3)), Schedule((Row(1, Arm(3)), Row(32, OFF_COLD)))
    forecasts = [
        Forecast(Arm(3), 8, 500.0, 1.0), Forecast(Arm(3), 48, 600.0, 1.0), Forecast(OFF_COLD, 48, 900.0, 1.0),
    ]  # fmt: skip
    found = Comparison().add(decision(active), decision(shadow), [cell(8, 70), cell(48, 30)], forecasts)
    assert found.differing_share == pytest.approx(0.3, abs=0.01)
    assert found.predicted_gain == pytest.approx(0.170, abs=0.01)


def test_without_a_forecast_the_gain_is_unknown() -> None:
    """None, not zero."""
    table = Schedule.constant(Arm(3))
    found = Comparison().add(decision(table), decision(table), [cell(8, 10)])
    assert (found.differing_share, found.predicted_gain) == (0.0, None)


def test_a_hold_keeps_the_schedule_that_was_named_before() -> None:
    """The shadow held: it is compared by what it wanted last."""
    comparison = Comparison()
    comparison.add(decision(Schedule.constant(Arm(3))), decision(Schedule.constant(OFF_COLD)), [])
    found = comparison.add(decision(Schedule.constant(Arm(3))), decision(None), [cell(8, 10)])
    assert found.differing_share == 1.0


def test_nothing_is_said_before_both_have_named_a_schedule() -> None:
    """The shadow never governed."""
    assert Comparison().add(decision(Schedule.constant(Arm(3))), decision(None), [cell(8, 10)]) is None
