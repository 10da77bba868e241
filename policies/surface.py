"""What is expected of every arm at every batch size, and how surely: the models put together.

    G(b, a) = b * E[tokens | depth] / T(b, a)

in logarithms, so that errors are relative and add: log E and its error from `acceptance.py`, log T and
its error from `step_cost.py`, what cold costs later from `gears.py`, what occurs from `load.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from policies.acceptance import Survival, Yield, yields
from policies.gears import ColdLedger, is_cold
from policies.load import Load, grid
from policies.probing import Prospect, present_share
from policies.selection import Surface
from policies.step_cost import KNOTS, CostField, StepCost, bucket_index
from policies.types import Arm, Gear, Row, Schedule

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

STARTS, SIZES = grid()
KNOWN_STEPS = 0.75
"""Timed steps without which an arm is not chosen."""
NEARBY = 2
"""Buckets (about an octave) within which what was timed says enough to let values decide."""
WORTH = 0.1
"""Share of decode time near the present batch size that makes it worth to try off once for certain."""
BARRED = 20.0
"""Log-goodput taken off where an arm rests: no gain comes near it."""
UNSEEN_SHARE = 1e-4
"""Weight of a batch size that has not occurred."""
SPREAD = np.array([0.02, 0.04, 0.09, 0.7, 0.09, 0.04, 0.02])
UNSEEN_MARGIN = 0.02
"""Log-goodput that a change at a batch size that has not occurred must bring: no hurry there."""
DRAFT_PREFILL_STEPS = 0.25
"""What the draft model's prefill costs for each prefill batch, in decode steps of the shortest kind that
occurs.  It shows in no decode interval, so it cannot be learned.  On an H200 it was a twentieth to a fifth of
a step for each request, and nothing that shows where steps are long, so it does not grow with the step."""
BLIND = 0.05
"""Chance of a change of acceptance beyond which frozen is left: in it no request can show one.  For the same
reason it is not put where no batch has been."""
SWITCH_STEPS = 0.5
"""Decode steps that a switch costs: 2-3 ms at steps of 5-10 ms (measured on an H200)."""


@dataclass(frozen=True)
class Models:
    """Everything that was learned."""

    survival: Survival
    cost: StepCost
    ledger: ColdLedger
    load: Load


@dataclass(frozen=True)
class Outlook:
    """The expectation at one tick, over `SIZES` x `arms`."""

    arms: tuple[Arm, ...]
    yields: Yield
    field: CostField
    log_rate: Floats
    """Log of tokens per second and request: log E - log T."""
    covariance: Floats
    """Of log T between arms, sizes x arms x arms."""
    known: npt.NDArray[np.bool_]
    """Arms that were ever timed."""
    spared: Floats
    """Log-goodput that an arm brings outside of decode steps, sizes x arms: frozen spares draft prefills."""
    barred: npt.NDArray[np.bool_]
    """Where an arm rests because it failed, sizes x arms."""

    @classmethod
    def of(cls, models: Models, arms: Sequence[Arm], resting: Iterable[tuple[int, Arm]] = ()) -> Outlook:
        """Ask the models about `arms` (in the order of `step_cost.ordered`); `resting`: see `Observation`."""
        field = models.cost.field(arms)
        depths = [arm.depth for arm in field.arms]
        # What may have changed unseen is for probes (`prospect`): it must not keep off where it is.
        p, variance = models.survival.last_seen(max([1, *depths]))
        expected = yields(p, variance, depths)
        log_s, covariance = field.at(SIZES)
        log_rate = expected.log_tokens[None, :] - log_s
        timed = models.cost.timed_by_arm()
        known = np.array([timed.get(arm, 0.0) >= KNOWN_STEPS for arm in field.arms])
        frozen = np.array([arm.gear is Gear.FROZEN for arm in field.arms])
        _alike(field.arms, known)
        occurs = models.load.shares(STARTS) > 0
        shortest = log_s[occurs].min() if occurs.any() else log_s
        steps = DRAFT_PREFILL_STEPS * np.exp(np.minimum(0.0, shortest - log_s))
        spared = frozen[None, :] * np.log1p(steps * models.load.prefills(SIZES)[:, None])
        spared = spared * (models.survival.staleness <= BLIND)
        barred = _barred(field.arms, resting)
        return cls(field.arms, expected, field, log_rate, covariance, known, spared, barred)

    @property
    def value(self) -> Floats:
        """What counts, sizes x arms: `log_rate`, and what is spared beside it; next to nothing at rest."""
        return self.log_rate + self.spared - BARRED * self.barred

    def error(self, incumbent: Indices) -> Floats:
        """Standard error of log_rate[g, a] - log_rate[g, incumbent[g]]; shared error cancels."""
        return np.asarray(
            np.sqrt(self._cost_variance(incumbent) + self.yields.difference_variance(incumbent))
        )

    def _cost_variance(self, i: Indices) -> Floats:
        g = np.arange(len(SIZES))
        own = np.einsum("gaa->ga", self.covariance)
        return np.asarray(np.maximum(0.0, own + own[g, i][:, None] - 2 * self.covariance[g, :, i]))

    def cost_variance_given(self, i: Indices) -> Floats:
        """Variance of log T[g, a] once log T[g, i[g]] is known."""
        g = np.arange(len(SIZES))
        own = np.einsum("gaa->ga", self.covariance)
        return np.asarray(np.maximum(1e-9, own - self.covariance[g, :, i] ** 2 / own[g, i][:, None]))

    @cached_property
    def own_error(self) -> Floats:
        """Standard error of log_rate itself."""
        of_yield = (self.yields.gradient**2) @ self.yields.variance
        return np.asarray(np.sqrt(np.einsum("gaa->ga", self.covariance) + of_yield[None, :]))

    def indices(self, schedule: Schedule, otherwise: Arm) -> Indices:
        """The arm (index) of `schedule` at each start; `otherwise` where it names one that is not built."""
        index = {arm: i for i, arm in enumerate(self.arms)}
        return np.array([index.get(schedule.arm_for(s), index[otherwise]) for s in STARTS], dtype=np.intp)

    def schedule(self, chosen: Indices) -> Schedule:
        """The table that names the chosen arms."""
        rows = [Row(start, self.arms[int(a)]) for start, a in zip(STARTS, chosen, strict=True)]
        return Schedule(tuple(rows)).merged()


def _alike(arms: Sequence[Arm], known: npt.NDArray[np.bool_]) -> None:
    """A step of frozen is one of cold, so it is known with it; no probe tells what it spares beside steps."""
    gears = [arm.gear for arm in arms]
    if Gear.FROZEN in gears and Gear.COLD in gears:
        known[gears.index(Gear.FROZEN)] |= known[gears.index(Gear.COLD)]


def _barred(arms: Sequence[Arm], resting: Iterable[tuple[int, Arm]]) -> npt.NDArray[np.bool_]:
    """Sizes x arms: where an arm rests."""
    bucket_of = np.searchsorted(KNOTS, STARTS, side="right") - 1
    barred = np.zeros((len(STARTS), len(arms)), dtype=np.bool_)
    for size, arm in resting:
        if arm in arms:
            barred[bucket_of == bucket_index(size), list(arms).index(arm)] = True
    return barred


def size_index(batch_size: float) -> int:
    """Which of `SIZES` stands for `batch_size`."""
    return max(0, int(np.searchsorted(STARTS, batch_size, side="right")) - 1)


def _aftermath_s(models: Models, arms: Sequence[Arm], in_force: Arm) -> Floats:
    """Seconds that a probe of each arm costs after it is over.

    While drafting, cold is not tried at all where warm is built: that tells as much of off, and harms nobody.
    Nor is frozen where cold is built, whose steps are the same.
    """
    gears = {arm.gear for arm in arms}
    in_vain = np.array([arm.gear is Gear.FROZEN and Gear.COLD in gears for arm in arms])
    if in_force.depth and any(arm.gear is Gear.WARM for arm in arms):
        return np.array([math.inf if is_cold(arm) else 0.0 for arm in arms])
    return np.where(in_vain, math.inf, _losses_s(models, arms) * (not is_cold(in_force)))


def _losses_s(models: Models, arms: Sequence[Arm]) -> Floats:
    """Seconds that a rise from each arm costs."""
    return np.array([models.ledger.loss_s(arm.gear, models.load.step_s) for arm in arms])


def _aftermath_share(models: Models, arms: Sequence[Arm], in_force: Arm, here: int) -> Floats:
    """Share of decode time that each arm would cost by its rises from cold, were it in force from here up."""
    if is_cold(in_force):
        return np.zeros(len(arms))
    rises = float(models.load.falls(STARTS)[here - 1]) if here else 0.0
    return rises * _losses_s(models, arms) / models.load.step_s


def nearby(share: Floats) -> Floats:
    """Shares spread over the sizes beside: a batch of 24 now will be one of 23 or 27 soon."""
    return np.convolve(share, SPREAD, mode="same")


def _must_try(
    models: Models, outlook: Outlook, bucket: int, share: float, *, waiting: bool
) -> npt.NDArray[np.bool_]:
    """Off, where it must be tried once for certain.

    At first anywhere.  Then where the load is high (requests wait, so the batch will not shrink soon, which
    makes a spell of cold cheap), often so, and off was not timed nearby.
    """
    first = is_first_off(outlook.arms)
    if waiting and share >= WORTH:
        return np.asarray(first & ~_timed_nearby(models, outlook.arms, bucket))
    return np.asarray(first & ~outlook.known)


def _timed_nearby(models: Models, arms: Sequence[Arm], bucket: int) -> npt.NDArray[np.bool_]:
    """Whether each arm was timed at most `NEARBY` buckets away."""
    near = range(max(0, bucket - NEARBY), bucket + NEARBY + 1)
    return np.array([any(models.cost.timed_steps(arm, k) >= KNOWN_STEPS for k in near) for arm in arms])


def is_first_off(arms: Sequence[Arm]) -> npt.NDArray[np.bool_]:
    """The gear of off that is tried first: warm, which harms no request, else the one of least work."""
    off = [arm for arm in arms if arm.depth == 0 and arm.gear is not Gear.FROZEN]
    first = next((arm for arm in off if arm.gear is Gear.WARM), off[0] if off else None)
    return np.array([arm == first for arm in arms])


def surface(models: Models, outlook: Outlook, incumbent: Indices) -> Surface:
    """The outlook as `selection.choose` takes it."""
    share = nearby(models.load.shares(STARTS))
    unseen = share <= 0
    moved = np.arange(len(outlook.arms))[None, :] != incumbent[:, None]
    value = np.where(outlook.known[None, :] | ~moved, outlook.value, -np.inf)
    frozen = np.array([arm.gear is Gear.FROZEN for arm in outlook.arms])
    blind = unseen | (models.survival.staleness > BLIND)
    value = np.where(blind[:, None] & frozen[None, :], -np.inf, value)
    error = np.where(unseen[:, None], UNSEEN_MARGIN, outlook.error(incumbent))
    weight = np.maximum(share, UNSEEN_SHARE)
    harm = _losses_s(models, outlook.arms) / models.load.step_s
    switching = (models.load.crossings(STARTS) + UNSEEN_SHARE) * SWITCH_STEPS
    rising = models.load.falls(STARTS)
    crossing = switching[:, None, None] * (1.0 - np.eye(len(harm)))
    crossing = crossing + rising[:, None, None] * np.abs(harm[:, None] - harm[None, :])
    return Surface(value, error, incumbent, weight, crossing)


def prospect(
    models: Models,
    outlook: Outlook,
    chosen: Indices,
    batch: float,
    clean: tuple[float, float],
    *,
    horizons_s: tuple[float, float],
    hurdle: tuple[float, float],
    waiting: bool,
) -> Prospect:
    """The outlook as `probing.Prober` takes it, for a probe at the present batch size.

    `clean`: shares of requests with their draft cache in step, and of decode steps that get timed.
    `horizons_s`: for how long what is found of acceptance, and of step times, will be of use.
    `hurdle`: log-goodput and standard errors that a change is asked for.  `waiting`: whether requests wait.
    """
    clean_share, clean_steps = clean
    here, bucket = size_index(batch), bucket_index(batch)
    g = np.arange(len(SIZES))
    p, variance = models.survival.conditional(outlook.yields.gradient.shape[1])
    reached = np.concatenate(([1.0], np.cumprod(p)[:-1]))
    requests = np.maximum(1e-3, batch * clean_share * reached)
    depths = np.array([arm.depth for arm in outlook.arms])
    share = present_share(models.load.shares(STARTS), SIZES, batch)
    positions = np.arange(1, len(p) + 1)
    shown = positions[None, :] <= depths[chosen][:, None]
    hidden = (~shown[:, None, :] & (positions <= depths[:, None])[None, :, :]).astype(np.float64)
    return Prospect(
        arms=outlook.arms,
        delta=outlook.value - outlook.value[g, chosen][:, None],
        cost_variance=outlook.cost_variance_given(chosen),
        floor_variance=models.cost.params.floor**2,
        tie=outlook.field.tie(SIZES, batch),
        cost_noise=np.array([[models.cost.noise(arm, bucket) for arm in outlook.arms]]),
        gradient=outlook.yields.gradient,
        hidden=hidden,
        p_variance=variance,
        p_noise=models.survival.dispersion * p * (1 - p) / requests,
        clean_steps=clean_steps,
        aftermath_share=_aftermath_share(models, outlook.arms, outlook.arms[int(chosen[here])], here),
        aftermath_s=_aftermath_s(models, outlook.arms, outlook.arms[int(chosen[here])]),
        horizon_s=horizons_s[0] * models.load.activity,
        cost_horizon_s=horizons_s[1] * models.load.activity,
        first=_must_try(models, outlook, bucket, float(share.sum()), waiting=waiting),
        share=share,
        step_s=np.exp(outlook.field.at([batch])[0][0]),
        min_gain=hurdle[0],
        confidence=hurdle[1],
        activity=models.load.activity,
        here=here,
        chosen=chosen,
    )
