"""How far the ratio of two arms may move along the batch size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.growth import Timings, pace
from policies.step_cost import KNOTS, LOG2_KNOTS, StepCost
from policies.types import OFF_COLD, OFF_WARM, Arm, CellDelta


def timed(*arms: dict[int, float], variance: float = 1e-6) -> Timings:
    """Arms from least to most work: seconds by batch size."""
    rows = [(a, math.log2(b), math.log(s)) for a, seconds in enumerate(arms) for b, s in seconds.items()]
    arm, where, log_s = np.array(rows).T
    return Timings(arm.astype(np.intp), where, log_s, np.full(len(rows), variance))


def test_where_no_arm_of_more_work_was_timed_a_ratio_may_move_as_far_as_usual() -> None:
    """Depth 1 was timed, depth 4 not: what depth 1 does bounds off to 1, and nothing of 1 to 4."""
    found = pace(timed({}, {1: 10.0, 2: 10.0}, {}), 3, LOG2_KNOTS)
    assert found[0, 0] < 0.001
    assert found[0, 1] == 1.0
    assert found[1, 0] == 1.0


def test_the_clock_of_a_ratio_runs_as_the_square_of_the_growth() -> None:
    """Depth 4 takes 10 ms for one and 15 for two: (log 1.5)^2 = 0.1644 and 2e-6 of error, over 0.2125."""
    found = pace(timed({}, {1: 10.0, 2: 15.0}), 2, LOG2_KNOTS)
    assert found[0, 0] == pytest.approx(0.1644 / 0.2125, rel=0.001)


def test_a_wide_gap_leaves_open_where_in_it_the_time_grows() -> None:
    """As long for 8 requests as for one, three octaves: 0.35^2 * (1 - 1/3) = 0.0817 of 0.2125 stays open."""
    found = pace(timed({}, {1: 10.0, 8: 10.0}), 2, LOG2_KNOTS)
    assert found[:5, 0] == pytest.approx(0.0817 / 0.2125, rel=0.001)
    assert found[5, 0] == 1.0


def test_a_ratio_moves_as_far_as_usual_where_one_batch_size_was_timed() -> None:
    """One place has no growth, and two arms at one place each have none either."""
    assert (pace(timed({}, {8: 10.0}), 2, LOG2_KNOTS) == 1.0).all()
    assert (pace(timed({8: 10.0}, {16: 20.0}), 2, LOG2_KNOTS) == 1.0).all()
    assert pace(timed({8: 10.0}), 1, LOG2_KNOTS).shape == (len(KNOTS) - 1, 0)


def cell(batch: int, arm: Arm, s: float, steps: int = 100) -> CellDelta:
    return CellDelta(
        batch, arm, steps, steps * batch, steps * batch, (), (),
        steps, steps * s, steps * s * s, steps * batch, steps * batch * 300,
    )  # fmt: skip


def ratio(cost: StepCost, batch: float, one: Arm, other: Arm) -> tuple[float, float]:
    """Log of the step time of `other` over that of `one`, and its error."""
    field = cost.field((OFF_COLD, OFF_WARM, Arm(1), Arm(2), Arm(4)))
    a, b = field.arms.index(one), field.arms.index(other)
    mean, covariance = field.at([batch])
    c = covariance[0]
    return float(mean[0, b] - mean[0, a]), math.sqrt(c[a, a] + c[b, b] - 2 * c[a, b])


def test_a_ratio_that_was_measured_holds_where_steps_take_no_longer() -> None:
    """Depth 4 takes 10 ms from 1 to 12 requests, depth 2 took 9 for one: at 12 so it does, to 3 %.

    At 96, where nothing was timed, the error is more than five times as much.
    """
    cost = StepCost()
    cost.observe([cell(b, Arm(4), 0.010) for b in (1, 2, 3, 4, 6, 8, 12)] + [cell(1, Arm(2), 0.009)], 1.0)
    log_ratio, error = ratio(cost, 12, Arm(2), Arm(4))
    assert log_ratio == pytest.approx(math.log(10 / 9), abs=0.02)
    assert error < 0.03
    assert ratio(cost, 96, Arm(2), Arm(4))[1] > 5 * error
