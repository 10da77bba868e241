from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from policies.acceptance import Survival
from policies.gears import ColdLedger
from policies.goodput import Goodput
from policies.load import Load
from policies.prefill_cost import PRIOR_TOKENS, PrefillCost
from policies.step_cost import StepCost
from policies.surface import SIZES, Models, Outlook, prospect, size_index, surface
from policies.types import OFF_COLD, OFF_WARM, Arm, CellDelta, Gear, Observation
from tests.policies.bench import Bench

FROZEN = Arm(0, Gear.FROZEN)
ARMS = (FROZEN, OFF_COLD, OFF_WARM, Arm(2))


def ran(arm: Arm, ms: float, batch: int = 64, steps: int = 1000) -> CellDelta:
    s = ms / 1000
    histogram = (0, 0, steps * batch) if arm.depth else (steps * batch,)
    return CellDelta(
        batch, arm, steps, steps * batch, steps * batch, histogram, (0,) * len(histogram),
        steps, steps * s, steps * s * s, steps * batch, steps * batch * 300,
    )  # fmt: skip


def learned(requests_per_step: float, idle_s: float = 0.0) -> Models:
    """Off takes 6 ms in every gear, depth 2 takes 30; acceptance was seen `idle_s` ago."""
    models = Models(Survival(), StepCost(), ColdLedger(), Load(), PrefillCost())
    cells = [ran(FROZEN, 6.0), ran(OFF_COLD, 6.0), ran(OFF_WARM, 6.3), ran(Arm(2), 30.0, steps=10)]
    models.survival.observe(cells, 1.0)
    models.survival.observe([], idle_s)
    models.cost.observe(cells, 1.0)
    models.load.observe(cells, [6.0, 6.0, 6.3, 0.3], 20.0)
    models.prefill.requests, models.prefill.tokens = requests_per_step * 1000, 64_000 - PRIOR_TOKENS
    return models


def value(models: Models, size: float) -> dict[Arm, float]:
    """What counts at `size`, with cold in force."""
    outlook = Outlook.of(models, ARMS)
    incumbent = np.full(len(SIZES), outlook.arms.index(OFF_COLD))
    row = surface(models, outlook, incumbent).value[size_index(size)]
    return dict(zip(outlook.arms, row.tolist(), strict=True))


def test_frozen_is_worth_the_draft_prefills_that_it_spares() -> None:
    """A tenth of a step for each request: with one a step -log(1 - 0.1) = 0.105 above cold."""
    at = value(learned(requests_per_step=1.0), 64)
    assert at[FROZEN] - at[OFF_COLD] == pytest.approx(0.105, abs=0.012)
    quiet = value(learned(requests_per_step=0.0), 64)
    assert quiet[FROZEN] - quiet[OFF_COLD] == pytest.approx(0.0, abs=0.01)


def test_what_frozen_spares_does_not_grow_with_the_step() -> None:
    """Steps of 60 ms at 256, of 6 at 64: a tenth of the 6 for each of 4 requests, so -log(1 - 0.04) there."""
    models = learned(requests_per_step=1.0)
    long = [ran(arm, 60.0, batch=256) for arm in (FROZEN, OFF_COLD)]
    models.cost.observe(long, 1.0)
    models.load.observe(long, [60.0, 60.0], 120.0)
    at = value(models, 256)
    assert at[FROZEN] - at[OFF_COLD] == pytest.approx(0.041, abs=0.012)


def test_frozen_is_known_with_cold_and_not_probed() -> None:
    """Its decode step is cold's; what it spares beside that no probe could tell."""
    models = Models(Survival(), StepCost(), ColdLedger(), Load(), PrefillCost())
    cells = [ran(OFF_COLD, 6.0), ran(OFF_WARM, 6.3)]
    models.cost.observe(cells, 1.0)
    outlook = Outlook.of(models, ARMS)
    known = dict(zip(outlook.arms, outlook.known.tolist(), strict=True))
    assert known == {FROZEN: True, OFF_COLD: True, OFF_WARM: True, Arm(2): False}
    chosen = np.full(len(SIZES), outlook.arms.index(OFF_WARM))
    view = prospect(
        models, outlook, chosen, 64, (1.0, 1.0), horizons_s=(1e3, 1e3), hurdle=(0.01, 1.5), waiting=False
    )
    after = dict(zip(outlook.arms, view.aftermath_s.tolist(), strict=True))
    assert after[FROZEN] == np.inf
    assert np.isfinite(after[OFF_COLD])


def test_frozen_is_left_when_acceptance_was_not_seen_for_long() -> None:
    """One change in half an hour is believed: after 100 s one has come with 5.4 %, more than 5 %."""
    assert value(learned(0.5, idle_s=80.0), 64)[FROZEN] > -np.inf
    assert value(learned(0.5, idle_s=100.0), 64)[FROZEN] == -np.inf


def test_acceptance_that_was_not_seen_for_long_is_a_reason_to_look_and_none_to_stay_off() -> None:
    """Ten minutes without a draft: a change asks for no more than before, a probe promises more."""
    seen, unseen = (learned(0.5, idle_s) for idle_s in (0.0, 600.0))

    def doubt(models: Models) -> tuple[float, float]:
        """The error that a change must exceed at 64 requests, and the one of p_1 that a probe is told."""
        outlook = Outlook.of(models, ARMS)
        chosen = np.full(len(SIZES), outlook.arms.index(OFF_COLD))
        view = prospect(
            models, outlook, chosen, 64, (1.0, 1.0), horizons_s=(1e3, 1e3), hurdle=(0.01, 1.5), waiting=False
        )
        error = outlook.error(chosen)[size_index(64), outlook.arms.index(Arm(2))]
        return float(error), float(view.p_variance[0] ** 0.5)

    assert doubt(unseen)[0] == pytest.approx(doubt(seen)[0], rel=0.1)
    assert doubt(unseen)[1] > 0.1 > doubt(seen)[1]


@pytest.mark.parametrize(
    ("idle_s", "ms", "looked"), [(150.0, 9.0, False), (200.0, 9.0, True), (200.0, 30.0, False)]
)
def test_off_that_hid_acceptance_for_long_is_interrupted_for_a_look(
    idle_s: float, ms: float, looked: bool
) -> None:
    """One change in half an hour is believed: after 190 s one has come with 10 %.

    Three tokens in 9 ms may be worth more than one in 6; three in 30 are not, whatever is accepted.
    """
    models = Models(Survival(), StepCost(), ColdLedger(), Load(), PrefillCost())
    accepted = (600 * 64, 200 * 64, 200 * 64)  # 40 % of first drafts, half of the second
    deep = dataclasses.replace(ran(Arm(2), ms), accepted=accepted, tokens=1600 * 64)
    cells = [ran(OFF_COLD, 6.0), deep]
    models.survival.observe(cells, 1.0)
    models.survival.observe([], idle_s)
    models.cost.observe(cells, 1.0)
    models.load.observe(cells, [6.0, 9.0], 20.0)
    outlook = Outlook.of(models, (OFF_COLD, Arm(2)))
    off, deep_index = (np.full(len(SIZES), outlook.arms.index(arm)) for arm in (OFF_COLD, Arm(2)))
    views = [
        prospect(
            models, outlook, chosen, 64, (1.0, 1.0), horizons_s=(1e3, 1e3), hurdle=(0.01, 1.5), waiting=False
        )
        for chosen in (off, deep_index)
    ]
    first = [dict(zip(outlook.arms, view.first.tolist(), strict=True)) for view in views]
    assert first[0] == {OFF_COLD: False, Arm(2): looked}
    assert first[1] == {OFF_COLD: False, Arm(2): False}, "who drafts sees acceptance"


def test_frozen_is_not_put_where_no_batch_has_been() -> None:
    """All load was at 64 requests: nothing is known of 4."""
    at = value(learned(0.5), 4)
    assert at[FROZEN] == -np.inf
    assert at[OFF_COLD] > -np.inf


def test_cold_is_tried_from_off_only_where_warm_is_built() -> None:
    """At 4 requests drafting is best: off is tried in the warm gear, which harms no request."""
    built = (OFF_COLD, OFF_WARM, Arm(1), Arm(2), Arm(4))
    bench = Bench(Goodput(), batch=lambda _t: 4, built=built).run(60)
    tried = {decision.probe.arm for decision in bench.decisions if decision.probe}
    assert OFF_WARM in tried
    assert OFF_COLD not in tried


class Prefilling(Bench):
    """A bench with a prefill in every second step."""

    def observe(self) -> Observation:
        observation = super().observe()
        cells = tuple(map(held_up, observation.cells))
        return dataclasses.replace(observation, cells=cells, prefill_batches=observation.decode_steps // 2)


def held_up(cell: CellDelta) -> CellDelta:
    """Behind half of its steps one request of 200 tokens was prefilled in 10 ms."""
    held_up = cell.steps // 2
    return dataclasses.replace(
        cell,
        skipped_prefill=held_up,
        skipped_prefill_seconds=held_up * (0.01 + cell.timed_seconds / max(1, cell.timed_steps)),
        prefill_spells=held_up,
        prefilled_requests=held_up,
        prefilled_tokens=200 * held_up,
    )


def test_where_off_lasts_frozen_is_found() -> None:
    """256 requests for a minute, a prefill in every second step: frozen, which takes as long as cold."""
    bench = Prefilling(Goodput(), batch=lambda _t: 256, built=(FROZEN, OFF_COLD, OFF_WARM, Arm(4))).run(60)
    assert bench.schedule.arm_for(256) == FROZEN
