"""What prefills add to a step, fitted to literal intervals."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest

from policies.prefill_cost import Held, PrefillCost
from policies.types import OFF_COLD, Arm, CellDelta, Gear

FROZEN = Arm(0, Gear.FROZEN)
STEP_S = 0.012
"""Of every step here."""


def cell(
    arm: Arm, spells: int, requests: int, seconds: float, *, tokens: int = 200, steps: int = 20
) -> CellDelta:
    """`steps` steps of 256 requests; behind `spells` of them were prefills, which took `seconds` in all."""
    per_step = 256 * (arm.depth + 1)
    histogram = (0,) * arm.depth + (steps * 256,)
    return CellDelta(
        256, arm, steps, steps * 256, steps * per_step, histogram, (0,) * len(histogram),
        0, 0.0, 0.0, 0, 0,
        skipped_prefill=spells, skipped_prefill_seconds=seconds + spells * STEP_S, prefill_spells=spells,
        prefilled_requests=requests, prefilled_tokens=requests * tokens,
    )  # fmt: skip


def observe(cost: PrefillCost, *cells: CellDelta) -> None:
    """A tick."""
    cost.observe(cells, lambda _cell: STEP_S)


def taught(
    *, per_spell: float = 0.011, per_request: float = 0.0024, spared: float = 0.0, ticks: int = 60
) -> PrefillCost:
    """Ticks of 20 steps at 256 requests, of which 12 to 19 are held up, for one to three requests each."""
    rng = random.Random(1)
    cost = PrefillCost()
    for tick in range(ticks):
        arm = FROZEN if tick % 2 else OFF_COLD
        spells = rng.randint(12, 19)
        requests = sum(rng.randint(1, 3) for _ in range(spells))
        each = per_request - spared * (arm is FROZEN)
        observe(cost, cell(arm, spells, requests, spells * per_spell + requests * each))
    return cost


def test_what_a_spell_and_what_a_request_cost_is_told_apart() -> None:
    """11 ms a spell and 2.4 a request, as on an H200, of which 0.5 are spared while frozen."""
    fit = taught(spared=0.0005).fit(STEP_S)
    assert fit.per_spell_s == pytest.approx(0.011, abs=0.0005)
    assert fit.spared_s == pytest.approx(0.0005, abs=0.0002)
    assert fit.surely_s < fit.per_spell_s


def test_until_anything_was_seen_nothing_is_added_and_frozen_spares_what_is_believed() -> None:
    """A tenth of the shortest step for each request; four ticks are no more than none."""
    for cost in (PrefillCost(), taught(ticks=4)):
        fit = cost.fit(STEP_S)
        assert (fit.per_spell_s, fit.surely_s) == (0.0, 0.0)
        assert fit.spared_s == pytest.approx(0.0012)


def test_what_cannot_be_told_from_the_tokens_is_not_claimed() -> None:
    """Each spell holds two requests, so 11 + 2 * 2.4 ms may be all of the tokens: none of it is sure."""
    cost = PrefillCost()
    for spells in (12, 15, 18, 13, 16, 19, 14) * 5:
        observe(cost, cell(OFF_COLD, spells, 2 * spells, spells * 0.0158))
    assert cost.fit(STEP_S).surely_s == 0.0


def test_a_longer_step_pays_for_fewer_spells() -> None:
    """1.5 requests a step of off: 0.78 spells a step of 1 token a request, 0.95 of 2: 0.30 less for 2 tokens.

    1 - exp(-1.5) = 0.777, 1 - exp(-3) = 0.950, so off pays (0.777 - 0.950 / 2) * 11 ms = 3.3 ms more.
    """
    cost = taught()
    cost.requests, cost.tokens, cost.spells, cost.expected = 1500.0, 255_000.0, 777.0, 777.0
    cost.held = Held(0.0, 1e9)
    fit = cost.fit(STEP_S)
    off, two = cost.amortized_s(np.array([256.0, 512.0]), fit)
    assert two == 0.0
    assert off == pytest.approx(fit.surely_s * (0.777 - 0.950 / 2), rel=0.01)
    assert 0.0030 < off < 0.0034


@pytest.mark.parametrize(("held", "spells"), [(Held(1e9, 1e9), 777.0), (Held(0.0, 1e9), 77.7)])
def test_where_requests_come_by_themselves_or_in_bursts_less_is_spared(held: Held, spells: float) -> None:
    """A batch that moves as free ones do: nothing.  A tenth of the spells that were expected: a tenth."""
    cost = taught()
    cost.requests, cost.tokens, cost.spells, cost.expected = 1500.0, 255_000.0, spells, 777.0
    cost.held = held
    off, _two = cost.amortized_s(np.array([256.0, 512.0]), cost.fit(STEP_S))
    assert off <= 0.00034


def test_a_batch_that_clients_hold_is_told_from_one_that_comes_and_goes() -> None:
    """20 requests a tick: free, the mean batch would move by 5 from tick to tick."""
    rng = random.Random(2)
    held, free = Held(), Held()
    for _ in range(60):
        held.observe(255.0 + rng.random(), 20)
        free.observe(200.0 + rng.gauss(0.0, 3.7), 20)
    assert held.share > 0.8
    assert free.share < 0.3


def test_a_tick_whose_step_is_not_known_teaches_no_times() -> None:
    """Its requests are counted all the same."""
    cost = PrefillCost()
    cost.observe([cell(OFF_COLD, 15, 30, 0.2)], lambda _cell: None)
    assert (cost.ticks, cost.requests, cost.spells) == (0.0, 30.0, 15.0)
    assert not cost.gram.any()


def test_what_was_learned_is_given_back_whole() -> None:
    """Through JSON, the fit and what follows from it are the same."""
    cost, again = taught(spared=0.0005), PrefillCost()
    again.import_state(json.loads(json.dumps(cost.export_state())))
    assert again.fit(STEP_S) == cost.fit(STEP_S)
    tokens = np.array([256.0, 512.0])
    assert (
        again.amortized_s(tokens, again.fit(STEP_S)).tolist()
        == cost.amortized_s(tokens, cost.fit(STEP_S)).tolist()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"gram": None},
        {"gram": [[1.0] * 4] * 3},
        {"gram": [[float("nan")] * 4] * 4},
        {"gram": [[-1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]},
        {"gram": [[1.0, 2.0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]},
        {"spells": -1.0},
        {"moved": "x"},
    ],
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(changes: dict[str, object]) -> None:
    """The field is named."""
    cost = taught()
    before = copy.deepcopy(cost.export_state())
    with pytest.raises(ValueError, match=next(iter(changes))):
        cost.import_state({**before, "ticks": 3.0, **changes})
    assert cost.export_state() == before
