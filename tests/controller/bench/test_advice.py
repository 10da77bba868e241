"""The conclusion, from curves whose answer is known."""

import random
from collections import Counter

import pytest

from controller.bench.advice import Undecided, advise, best_arm, choices, crossovers, fastest, schedule, worth
from controller.bench.statistics import Estimate, estimate


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
    curves = {"depth-2": ON, "off-cold": OFF}
    assert schedule(curves, choices(curves, DEPTHS), halved) == ((1, "depth-2"), (20, "off-cold"))


def test_the_advice_says_what_the_schedule_is_worth():
    """Against depth 2: 1, 1, 7800/5600, mean 1.117; plain is best at 64 but cannot be steered to."""
    curves = {"depth-2": ON, "off-cold": OFF, "plain": PLAIN}
    found = advise(curves, DEPTHS, not_in_schedule=OTHER, batch_sizes={1: 1, 16: 16, 64: 64})
    assert found.best == {1: ("depth-2",), 16: ("depth-2",), 64: ("plain", "off-cold")}
    assert found.compared == (1, 16, 64)
    assert found.not_in_schedule == OTHER
    assert found.worth["depth-2"].ratio == pytest.approx((7800 / 5600) ** (1 / 3))
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
    curves = {"depth-2": on, "off-cold": off}
    assert schedule(curves, choices(curves, DEPTHS), halved) == ((14, "depth-2"), (20, "off-cold"))


def spread(error=2.0, n=3, **points):
    """`c16=100` is a mean of 100 tokens/s at 16, with the standard error of `n` windows."""
    return {int(name[1:]): Estimate(value, None, n, error) for name, value in points.items()}


def advice_of(**curves):
    """Of arms of one server, with batches as large as the concurrency."""
    named = {name.replace("_", "-"): points for name, points in curves.items()}
    depths = {name: int(name[-1]) if name.startswith("depth") else 0 for name in named}
    return advise(named, depths, not_in_schedule={}, batch_sizes={})


def test_a_crossover_takes_two_neighbours_that_are_told_apart():
    """Errors of 2 in three windows: 2.83 * 2.776 = 7.85.  By 8 each it crosses half-way, by 7 nowhere."""

    def found(gap):
        return advice_of(
            depth_4=spread(c4=100 + gap, c16=100), off_cold=spread(c4=100, c16=100 + gap)
        ).crossovers

    assert [round(x.concurrency, 3) for x in found(8)] == [8]
    assert found(7) == ()


def test_concurrencies_that_are_not_told_apart_make_one_range_and_no_row():
    """Ahead at 4, behind at 128; between them 103:100, 100:103, 103:100 of 7.85 that it takes."""
    found = advice_of(
        depth_4=spread(c4=170, c16=103, c32=100, c64=103, c128=60),
        off_cold=spread(c4=100, c16=100, c32=103, c64=100, c128=100),
    )
    assert found.crossovers == ()
    assert found.undecided == (Undecided("speculation", "no speculation", 4, 128),)
    assert [arm for _, arm in found.schedule] == ["depth-4", "off-cold"]


def test_a_tie_behind_the_last_told_concurrency_is_no_crossover():
    """Ahead at 4 and not told at 16: where speculation stops paying is not known."""
    found = advice_of(depth_4=spread(c4=170, c16=97), off_cold=spread(c4=100, c16=100))
    assert (found.crossovers, found.undecided) == ((), ())
    assert found.schedule == ((4, "depth-4"),)


def test_a_table_keeps_one_arm_over_a_tie():
    """Depth 1 is in every tie and depth 2 nowhere told ahead of it: one row instead of three."""
    tied = {
        "depth_1": spread(c1=100, c4=100, c16=100),
        "depth_2": spread(c1=105, c4=80, c16=105),
    }
    assert advice_of(**tied).schedule == ((1, "depth-1"),)


def test_of_tables_with_as_few_rows_the_one_that_falls_least_short_is_taken():
    """Ahead by 6, by 6 and by 6, each of 7.85 and more than its error of 2.83; by 2 it is settled for off."""
    off = spread(c1=100, c4=100, c16=100)
    assert advice_of(off_cold=off, depth_4=spread(c1=106, c4=106, c16=106)).schedule == ((1, "depth-4"),)
    assert advice_of(off_cold=off, depth_4=spread(c1=102, c4=102, c16=102)).schedule == ((1, "off-cold"),)


def test_worth_has_an_interval():
    """110 over 100, errors of 1 %: ln 1.1 +- 2.776 * 0.01 * sqrt 2; of two concurrencies 2.306 * 0.01."""
    one = worth(spread(1.1, c1=110), spread(1.0, c1=100))
    assert (one.ratio, one.low, one.high) == pytest.approx((1.1, 1.05766, 1.14404), abs=1e-4)
    two = worth(spread(1.1, c1=110, c4=110), spread(1.0, c1=100, c4=100))
    assert (two.low, two.high) == pytest.approx((1.07492, 1.12566), abs=1e-4)
    assert one.is_told
    assert not worth(spread(1.1, c1=103), spread(1.0, c1=100)).is_told


def test_worth_against_the_chosen_arm_itself_is_one_without_error():
    """The same windows differ from themselves by nothing."""
    mine = spread(c1=100, c4=100)
    found = worth(mine, mine)
    assert (found.ratio, found.low, found.high, found.is_told) == (1, 1, 1, False)


def test_worth_of_single_windows_has_no_interval():
    """Unknown is not narrow."""
    found = worth(curve(c1=110), curve(c1=100))
    assert (found.ratio, found.low, found.high, found.is_told) == (pytest.approx(1.1), None, None, False)


def test_an_arm_that_is_told_to_be_faster_than_the_schedule_is_to_be_run_instead():
    """118 against 100 is, the faster of two; 103 of errors 2 and 2 is not."""
    off = spread(c4=100)

    def instead(**tok_s):
        curves = {name: spread(c4=value) for name, value in tok_s.items()}
        barred = dict.fromkeys(curves, "makes its own")
        return advise(
            {"off-cold": off, **curves}, {"off-cold": 0}, not_in_schedule=barred, batch_sizes={}
        ).instead

    assert instead(native=114, policy=118) == "policy"
    assert instead(native=103) is None


def test_arms_that_are_equal_have_a_crossover_or_a_second_row_in_few_runs():
    """200 benchmarks of equal arms with 3 % noise, three rounds: at most 5 % tell of one."""
    levels = (1, 4, 16, 32, 64, 128)
    crossed, rows = 0, Counter()
    for seed in range(200):
        noise = random.Random(seed)
        arms = {
            arm: {c: estimate([noise.gauss(1000, 30) for _ in range(3)]) for c in levels}
            for arm in ("off_cold", "depth_4")
        }
        found = advice_of(**arms)
        crossed += bool(found.crossovers or found.undecided)
        rows[len(found.schedule)] += 1
    assert crossed <= 10
    assert rows[1] >= 190
