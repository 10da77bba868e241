"""The conclusion, from curves whose answer is known."""

import pytest

from controller.bench.advice import advise, best_arm, crossovers, fastest, schedule, worth
from controller.bench.statistics import Estimate


def curve(**points):
    """`c16=100` is 100 tokens/s at 16."""
    return {int(name[1:]): Estimate(value, None, 1) for name, value in points.items()}


ON = curve(c1=400, c16=3200, c64=5600)
OFF = curve(c1=200, c16=2700, c64=7800)
PLAIN = curve(c1=206, c16=2745, c64=7843)
DEPTHS = {"depth-2": 2, "off-cold": 0, "plain": 0}
OTHER = {"plain": "another server"}


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
    found = advise(curves, DEPTHS, not_in_schedule=OTHER, batch_sizes={1: 1, 16: 16, 64: 64})
    assert found.best == {1: ("depth-2",), 16: ("depth-2",), 64: ("plain", "off-cold")}
    assert found.compared == (1, 16, 64)
    assert found.not_in_schedule == OTHER
    assert found.worth["depth-2"] == pytest.approx((7800 / 5600) ** (1 / 3))
    assert [arm for _, arm in found.schedule] == ["depth-2", "off-cold"]
    assert found.crossovers[0].concurrency == pytest.approx(24.9, abs=0.6)


def test_the_fastest_is_that_of_all_arms_whatever_is_known_of_their_depth():
    """A server as it is with 929 against a plain one with 612: no depth is known, no schedule is made."""
    curves = {"engine": curve(c4=300, c16=929), "plain": curve(c4=320, c16=612)}
    why = {"engine": "as it is", "plain": "another server"}
    found = advise(curves, {"plain": 0}, not_in_schedule=why, batch_sizes={4: 4, 16: 16})
    assert found.best == {4: ("plain",), 16: ("engine",)}
    assert (found.schedule, dict(found.worth), found.not_in_schedule) == ((), {}, why)
    assert (found.compared, found.crossovers) == ((), ())


def test_arms_that_chance_may_have_put_apart_have_no_fastest():
    """Of three windows, errors 3 and 4: 5 * 2.776 = 13.9. 12 may be chance, 14 is not; 0.5 is within 1 %."""

    def found(mean):
        return fastest({"a": {1: Estimate(100, 12.9, 3, 3)}, "b": {1: Estimate(mean, 17.2, 3, 4)}}, 1)

    assert found(112) == ("b", "a")
    assert found(114) == ("b",)
    assert fastest({"a": curve(c1=100), "b": curve(c1=100.5)}, 1) == ("b", "a")


def test_one_arm_alone_is_not_the_fastest():
    """Nothing was compared with it."""
    assert fastest({"a": curve(c1=100), "b": curve(c4=100)}, 1) == ()


def test_what_is_ahead_or_behind_within_its_error_crosses_nothing():
    """At 1 ahead by 0.5 %, at 64 behind by 0.5 %; with 10 % it crosses half-way, at 8."""

    def found(share):
        on, off = curve(c1=100 * share, c64=100), curve(c1=100, c64=100 * share)
        curves = {"depth-2": on, "off-cold": off}
        return advise(curves, DEPTHS, not_in_schedule={}, batch_sizes={}).crossovers

    assert found(1.005) == ()
    assert [round(x.concurrency, 3) for x in found(1.1)] == [8]


def test_worth_is_unknown_without_a_common_concurrency():
    """Unknown is not one."""
    assert worth(curve(c1=1), curve(c2=1)) is None


def test_the_schedule_begins_where_it_was_measured():
    """From 16 requests on, 14 a batch: below that nothing is known."""
    on, off = curve(c16=3200, c64=5600), curve(c16=2700, c64=7800)
    halved = {16: 14.0, 64: 46.0}
    assert schedule({"depth-2": on, "off-cold": off}, DEPTHS, halved) == ((14, "depth-2"), (20, "off-cold"))
