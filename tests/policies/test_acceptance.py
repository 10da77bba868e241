from __future__ import annotations

import numpy as np
import pytest

from policies.acceptance import AcceptanceParams, Survival, expected_tokens, exposure, yields
from policies.types import Arm, CellDelta


def cell(depth: int, accepted: tuple[int, ...], after_cold: tuple[int, ...] = ()) -> CellDelta:
    n = sum(accepted) + sum(after_cold)
    return CellDelta(8, Arm(depth), n, n, n, accepted, after_cold, 0, 0.0, 0.0, 0, 0)


def test_a_count_equal_to_the_depth_is_at_least_so_many() -> None:
    """Depth 2 with 50 / 30 / 20: 50 of 100 passed the first, 20 of 50 the second.

    Depth 1 with 40 / 60 adds 60 of 100 to the first only.
    """
    hits, exposed = exposure([(50, 30, 20), (40, 60)], [2, 1])
    assert (hits, exposed) == ([110.0, 20.0], [200.0, 50.0])


def test_deep_runs_tell_about_shallow_depths() -> None:
    """1000 request-steps at depth 3 with p = 0.5 give E(1) = 1.5, E(2) = 1.75, without running them."""
    survival = Survival()
    survival.observe([cell(3, (500, 250, 125, 125))], 1.0)
    p, _ = survival.conditional(3)
    assert expected_tokens(p, 1) == pytest.approx(1.5, abs=0.01)
    assert expected_tokens(p, 2) == pytest.approx(1.75, abs=0.01)


def test_a_position_never_seen_takes_the_one_before_and_is_unsure() -> None:
    """Only depth 1 was run, 800 of 1000 accepted: p_2 is 0.8 too, with 14 times the error of p_1 and more."""
    survival = Survival()
    survival.observe([cell(1, (200, 800))], 1.0)
    p, variance = survival.conditional(2)
    assert p[1] == pytest.approx(p[0])
    assert variance[1] ** 0.5 > 10 * variance[0] ** 0.5


def test_requests_from_a_cold_spell_are_kept_apart() -> None:
    """They accept 10 of 100; the clean ones 80 of 100, and only those count."""
    survival = Survival()
    survival.observe([cell(1, (20, 80), (90, 10))], 1.0)
    assert survival.conditional(1)[0][0] == pytest.approx((80 + 2) / 104)


def test_a_drop_raises_the_alarm_and_is_learned_at_once() -> None:
    """From 0.8 to 0.3 at 400 request-steps a second: alarm within 5 s, and then an estimate below 0.35."""
    survival = Survival()
    for _ in range(60):
        assert not survival.observe([cell(1, (80, 320))], 1.0)
    alarms = [survival.observe([cell(1, (280, 120))], 1.0) for _ in range(5)]
    assert any(alarms)
    for _ in range(5):
        survival.observe([cell(1, (280, 120))], 1.0)
    assert survival.conditional(1)[0][0] < 0.35


def test_the_longer_nothing_was_seen_the_less_is_known() -> None:
    """An hour without drafting: the error grows towards that of knowing nothing."""
    survival = Survival()
    survival.observe([cell(1, (200, 800))], 1.0)
    errors = []
    for _ in range(3):
        errors.append(survival.conditional(1)[1][0] ** 0.5)
        survival.observe([], 1200.0)
    assert errors[0] < 0.02 < errors[1] < errors[2]


def test_few_fresh_counts_outweigh_many_old_ones() -> None:
    """4000 request-steps at 0.8, 20 minutes of silence, then 40 at 0.25: the estimate is nearer to 0.25."""
    survival = Survival()
    survival.observe([cell(1, (800, 3200))], 1.0)
    survival.observe([], 1200.0)
    survival.observe([cell(1, (30, 10))], 1.0)
    assert survival.conditional(1)[0][0] < 0.45


def test_the_error_of_a_difference_is_less_than_that_of_its_parts() -> None:
    """Depth 1 and 2 share p_1: what is unsure about it is unsure in both."""
    survival = Survival()
    survival.observe([cell(2, (30, 30, 40))], 1.0)
    p, variance = survival.conditional(2)
    result = yields(p, variance, [1, 2])
    alone = (result.gradient**2) @ variance
    between = result.difference_variance(np.array([0]))[0, 1]
    assert between < alone[1]


def test_parameters_must_be_positive() -> None:
    """The error names the parameter."""
    with pytest.raises(ValueError, match="memory_s must be > 0"):
        AcceptanceParams(memory_s=0.0)


def test_what_may_have_changed_since_widens_the_error_and_not_what_was_last_seen() -> None:
    """Ten minutes without a draft, one change in half an hour expected: a chance of 28 % that p is anything.

    As it was last seen, after 1000 request-steps, p is still known to 0.016.
    """
    survival = Survival()
    survival.observe([cell(1, (500, 500))], 1.0)
    for _ in range(600):
        survival.observe([], 1.0)
    assert survival.conditional(1)[1][0] ** 0.5 > 0.12
    assert survival.last_seen(1)[1][0] ** 0.5 == pytest.approx(0.0158, abs=0.001)
    assert survival.last_seen(1)[0] == survival.conditional(1)[0]
