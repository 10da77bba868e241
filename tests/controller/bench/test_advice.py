"""The conclusion, from curves whose answer is known."""

import pytest

from controller.bench.advice import advise, best_arm, crossovers, schedule, worth
from controller.bench.statistics import Estimate


def curve(**points):
    """`c16=100` is 100 tokens/s at 16."""
    return {int(name[1:]): Estimate(value, None, 1) for name, value in points.items()}


ON = curve(c1=400, c16=3200, c64=5600)
OFF = curve(c1=200, c16=2700, c64=7800)
PLAIN = curve(c1=206, c16=2745, c64=7843)
DEPTHS = {"depth-2": 2, "off-cold": 0, "plain": 0}


def test_crossover_is_interpolated_in_log_concurrency():
    """Ratios e^0.5 at 16 and e^-0.5 at 64 cross half-way: 2^5 = 32."""
    a, b = curve(c16=164.872, c64=60.653), curve(c16=100, c64=100)
    (found,) = crossovers("a", a, "b", b)
    assert found.concurrency == pytest.approx(32, abs=0.01)


def test_a_curve_that_stays_above_has_no_crossover():
    """Nothing is extrapolated."""
    assert crossovers("a", curve(c1=2, c4=2), "b", curve(c1=1, c4=1)) == ()


def test_equal_arms_are_settled_for_the_shallower():
    """0.5 % is no reason to draft."""
    assert best_arm({"depth-2": curve(c1=100.5), "off-cold": curve(c1=100)}, DEPTHS, 1) == "off-cold"
    assert best_arm({"depth-2": curve(c1=105), "off-cold": curve(c1=100)}, DEPTHS, 1) == "depth-2"


def test_a_difference_within_its_standard_error_is_none():
    """110 +- 20 against 100 +- 20: the error of the difference is 28."""
    loose = {"depth-2": {1: Estimate(110, 90, 3, 20)}, "off-cold": {1: Estimate(100, 90, 3, 20)}}
    assert best_arm(loose, DEPTHS, 1) == "off-cold"


def test_the_schedule_switches_where_the_curves_cross_in_batch_sizes():
    """ln(3200/2700) = 0.170, ln(5600/7800) = -0.331: at 16 * 4^(0.170/0.501) = 25.6 requests, 20 a batch."""
    halved = {1: 1.0, 16: 14.0, 64: 46.0}
    assert schedule({"depth-2": ON, "off-cold": OFF}, DEPTHS, halved) == ((1, "depth-2"), (20, "off-cold"))


def test_the_advice_says_what_the_schedule_is_worth():
    """Against depth 2: 1, 1, 7800/5600, mean 1.117; plain is best at 64 but cannot be steered to."""
    curves = {"depth-2": ON, "off-cold": OFF, "plain": PLAIN}
    found = advise(curves, DEPTHS, steerable=["depth-2", "off-cold"], batch_sizes={1: 1, 16: 16, 64: 64})
    assert found.best == {1: "depth-2", 16: "depth-2", 64: "plain"}
    assert found.worth["depth-2"] == pytest.approx((7800 / 5600) ** (1 / 3))
    assert [arm for _, arm in found.schedule] == ["depth-2", "off-cold"]
    assert found.crossovers[0].concurrency == pytest.approx(24.9, abs=0.6)


def test_worth_is_unknown_without_a_common_concurrency():
    """Unknown is not one."""
    assert worth(curve(c1=1), curve(c2=1)) is None


def test_the_schedule_begins_where_it_was_measured():
    """From 16 requests on, 14 a batch: below that nothing is known."""
    on, off = curve(c16=3200, c64=5600), curve(c16=2700, c64=7800)
    halved = {16: 14.0, 64: 46.0}
    assert schedule({"depth-2": on, "off-cold": off}, DEPTHS, halved) == ((14, "depth-2"), (20, "off-cold"))
