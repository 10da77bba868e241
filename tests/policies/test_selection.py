from __future__ import annotations

import itertools

import numpy as np
import pytest

from policies.acceptance import Survival
from policies.gears import ColdLedger
from policies.load import Load, grid
from policies.selection import Surface, choose
from policies.step_cost import KNOTS
from policies.types import OFF_COLD, Arm, CellDelta, Gear, Row, Schedule


def scene(value: list[list[float]], **changed: object) -> Surface:
    v = np.array(value)
    sizes, arms = v.shape
    parts = {
        "value": v, "error": np.zeros((sizes, arms)), "incumbent": np.zeros(sizes, dtype=np.intp),
        "weight": np.full(sizes, 1 / sizes), "crossing": priced(np.zeros(sizes - 1), arms),
    }  # fmt: skip
    return Surface(**{**parts, **changed})


def priced(price: np.ndarray, arms: int) -> np.ndarray:
    """The same price for every change of arm at a boundary."""
    return price[:, None, None] * (1.0 - np.eye(arms))


def pick(surface: Surface, min_gain: float = 0.01, confidence: float = 1.0) -> list[int]:
    n = len(surface.weight)
    return choose(surface, np.full(n, min_gain), np.full(n, confidence))[0].tolist()


def test_the_best_arm_of_each_size_when_switching_is_free() -> None:
    """Arm 1 is 10 % better at the first size, arm 0 at the second."""
    assert pick(scene([[0.0, 0.1], [0.1, 0.0]])) == [1, 0]


def test_a_gain_below_margin_and_error_changes_nothing() -> None:
    """5 % better with an error of 6 %: stays; with 3 %: changes (0.05 > 0.01 + 0.03 + tie)."""
    for error, expected in ((0.06, 0), (0.03, 1)):
        assert pick(scene([[0.0, 0.05]], error=np.full((1, 2), error))) == [expected]


def test_equal_arms_go_to_the_shallower() -> None:
    """Same value, neither in force: index 1 rather than 2."""
    assert pick(scene([[-1.0, 0.0, 0.0]])) == [1]


def test_a_boundary_must_be_worth_its_switches() -> None:
    """The middle of three sizes is 3 % better with arm 1: not worth two boundaries at 1 % of time each."""
    value = [[0.0, -0.1], [0.0, 0.03], [0.0, -0.1]]
    assert pick(scene(value)) == [0, 1, 0]
    assert pick(scene(value, crossing=priced(np.full(2, 0.01), 2))) == [0, 0, 0]


def test_what_is_saved_counts_boundaries_too() -> None:
    """Arm 1 in force at the second of two sizes, 2 % better there, behind a boundary at 5 % of time.

    Half the time at 2 %, less margin (1 %) and tie (0.1 %) on the way back: 0.05 - 0.5 * 0.02 - 0.5 * 0.009.
    """
    surface = scene(
        [[0.0, -1.0], [0.0, 0.02]], crossing=priced(np.array([0.05]), 2), incumbent=np.array([0, 1])
    )
    path, saving = choose(surface, np.full(2, 0.01), np.full(2, 1.0))
    assert path.tolist() == [0, 0]
    assert saving == pytest.approx(0.05 - 0.5 * 0.02 - 0.5 * 0.009)


def test_an_arm_that_must_not_be_chosen_is_not() -> None:
    """-inf keeps it out, whatever the others are."""
    assert pick(scene([[-50.0, -np.inf]])) == [0]


def test_no_other_schedule_is_cheaper() -> None:
    """Against all 3^6 schedules of a random surface (seed 3): the path that was found costs the least."""
    rng = np.random.default_rng(3)
    s = scene(
        rng.normal(size=(6, 3)).tolist(),
        crossing=rng.uniform(0, 0.2, (5, 3, 3)),
        weight=rng.uniform(0.05, 0.3, 6),
    )

    def cost(path: tuple[int, ...]) -> float:
        here = sum(
            s.weight[g] * (0.001 * a - s.value[g, a] + 0.01 * (a != s.incumbent[g]))
            for g, a in enumerate(path)
        )
        return here + sum(s.crossing[g, a, b] for g, (a, b) in enumerate(itertools.pairwise(path)))

    best = min(itertools.product(range(3), repeat=6), key=cost)
    assert pick(s) == list(best)


def test_the_grid_cuts_every_bucket_and_starts_at_one() -> None:
    """All bucket edges are among the starts, wide buckets have four parts, the sizes lie in between."""
    starts, sizes = grid()
    assert starts[0] == 1
    assert set(KNOTS) <= set(starts)
    assert [s for s in starts if 64 <= s < 96] == [64, 72, 80, 88]
    assert all(a <= b for a, b in zip(starts, sizes, strict=True))


def cell(batch: int, steps: int, arm: Arm = OFF_COLD, after_cold: int = 0) -> CellDelta:
    n = steps * batch
    counts = (n - after_cold,) + (0,) * arm.depth
    cold = (after_cold,) + (0,) * arm.depth
    bucket = max(k for k in KNOTS if k <= batch)
    return CellDelta(bucket, arm, steps, n, n, counts, cold, 0, 0.0, 0.0, 0, 0)


def test_at_the_greatest_batch_size_nothing_lies_above() -> None:
    """All steps at 256 of at most 256 requests: the share lies in the part that holds 256, not up to 383."""
    load, (starts, _) = Load(), grid()
    load.observe([cell(256, 100)], [1.0], 1.0)
    shares = dict(zip(starts, load.shares(starts), strict=True))
    assert shares[256] > 0.99


def test_crossings_are_counted_within_and_between_ticks() -> None:
    """Ticks at 8 and at 32 in turn, 100 steps each: the edges between are crossed once in 100 steps."""
    load, (starts, _) = Load(), grid()
    for i in range(100):
        load.observe([cell(8 if i % 2 else 32, 100)], [1.0], 1.0)
    rate = dict(zip(starts[1:], load.crossings(starts), strict=True))
    assert rate[24] == pytest.approx(0.01, rel=0.05)
    assert rate[64] < 1e-5


def test_switches_between_ticks_teach_how_many_crossings_ticks_do_not_show() -> None:
    """Both sides in every tick shows 2 crossings; the engine counted 20: ten times as many."""
    load, (starts, _) = Load(), grid()
    table = Schedule((Row(1, Arm(2)), Row(24, OFF_COLD)))
    for _ in range(100):
        load.observe([cell(8, 50, Arm(2)), cell(32, 50)], [0.5, 0.5], 1.0)
        load.observe_switches(table, 20.0)
    rate = dict(zip(starts[1:], load.crossings(starts), strict=True))
    assert rate[24] == pytest.approx(0.2, rel=0.15)


def test_what_cold_costs_later_is_measured() -> None:
    """A rise, after which half the request-steps draft nothing though 1.8 tokens were expected.

    1 s at depth 1, half of it after cold, 1 - 1 / 1.8 = 0.44: 0.22 s lost; the prior is one step.
    """
    survival = Survival()
    survival.observe([CellDelta(8, Arm(1), 500, 4000, 7200, (800, 3200), (0, 0), 0, 0.0, 0.0, 0, 0)], 1.0)
    ledger = ColdLedger()
    ledger.observe([cell(8, 100)], [0.5], survival)
    ledger.observe([cell(8, 100, Arm(1), after_cold=400)], [1.0], survival)
    price = ledger.prices[Gear.COLD]
    assert price.rises == 1.0
    assert price.lost_s == pytest.approx(0.5 * (1 - 1 / 1.8), rel=0.01)
    mean_s = (price.lost_s + 0.3 * 0.01) / 1.3
    assert ledger.loss_s(Gear.COLD, 0.01) == pytest.approx(mean_s * (1 + 2**-0.5))


def test_rises_from_cold_and_from_frozen_are_priced_apart() -> None:
    """A rise from frozen that lost half a second is put down to frozen; cold stays at its prior of a step."""
    survival, frozen = Survival(), Arm(0, Gear.FROZEN)
    survival.observe([CellDelta(8, Arm(1), 500, 4000, 7200, (800, 3200), (0, 0), 0, 0.0, 0.0, 0, 0)], 1.0)
    ledger = ColdLedger()
    ledger.observe([cell(8, 100, frozen)], [0.5], survival)
    ledger.observe([cell(8, 100, Arm(1), after_cold=400)], [1.0], survival)
    assert ledger.prices[Gear.FROZEN].rises == 1.0
    assert ledger.prices[Gear.COLD].rises == 0.0
    assert ledger.loss_s(Gear.COLD, 0.01) == pytest.approx(0.01 * 2)
    assert ledger.loss_s(Gear.FROZEN, 0.01) > 0.2
    assert ledger.loss_s(Gear.WARM, 0.01) == 0.0


def test_a_draft_that_suffers_for_long_is_found_out_with_the_first_rises() -> None:
    """Believed: a step of 10 ms a rise.  Three rises that lost 0.2 s each: believed to cost more."""
    survival = Survival()
    survival.observe([CellDelta(8, Arm(1), 500, 4000, 7200, (800, 3200), (0, 0), 0, 0.0, 0.0, 0, 0)], 1.0)
    ledger = ColdLedger()
    assert ledger.loss_s(Gear.COLD, 0.01) == pytest.approx(0.02)
    for _ in range(3):
        ledger.observe([cell(8, 100)], [0.5], survival)
        ledger.observe([cell(8, 100, Arm(1), after_cold=360)], [1.0], survival)
    assert 0.2 < ledger.loss_s(Gear.COLD, 0.01) < 0.4


def test_requests_that_draft_as_before_after_cold_cost_nothing_whatever_acceptance_did_since() -> None:
    """After cold 0.8 of the drafts are accepted, then 0.3, as of those that were never cold: no loss."""
    survival, ledger = Survival(), ColdLedger()
    for accepted in (800, 300):
        counts = (1000 - accepted, accepted)
        both = CellDelta(8, Arm(1), 250, 2000, 2000 + 2 * accepted, counts, counts, 0, 0.0, 0.0, 0, 0)
        for _ in range(5):
            survival.observe([both], 1.0)
            ledger.observe([both], [1.0], survival)
    assert abs(ledger.prices[Gear.COLD].lost_s) < 0.02
