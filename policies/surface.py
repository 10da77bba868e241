"""What is expected of every arm at every batch size, and how surely: the models put together.

    G(b, a) = b * E[tokens | depth] / (t(b, a) + prefills(b, a))

in logarithms, so that errors are relative and add: log E and its error from `acceptance.py`, log t and
its error from `step_cost.py`, from `prefill_cost.py` the prefills beside a step as far as they depend on the
arm, what cold costs later from `gears.py`, what occurs from `load.py`.
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
from policies.prefill_cost import PrefillCost
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
MOST_SPARED = 0.5
"""Of a step, by frozen: more is not believed."""
BLIND = 0.05
"""Chance of a change of acceptance beyond which frozen is left: in it no request can show one.  For the same
reason it is not put where no batch has been."""
LONG_BLIND = 0.1
"""The same beyond which off is interrupted for a look, ..."""
HOPE = 0.2
"""... where drafting would be better, had acceptance risen by so much at all positions."""
SWITCH_STEPS = 0.5
"""Decode steps that a switch costs: 2-3 ms at steps of 5-10 ms (measured on an H200)."""


@dataclass(frozen=True)
class Models:
    """Everything that was learned."""

    survival: Survival
    cost: StepCost
    ledger: ColdLedger
    load: Load
    prefill: PrefillCost


@dataclass(frozen=True)
class Outlook:
    """The expectation at one tick, over `SIZES` x `arms`."""

    arms: tuple[Arm, ...]
    sizes: tuple[float, ...]
    """What stands for each of `STARTS`."""
    yields: Yield
    field: CostField
    log_rate: Floats
    """Log of tokens per second and request while decoding: log E - log t."""
    covariance: Floats
    """Of log t between arms, sizes x arms x arms."""
    log_worth: Floats
    """`log_rate`, with what prefills add beyond what the arm pays that pays least for them."""
    known: npt.NDArray[np.bool_]
    """Arms that were ever timed."""
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
        sizes = models.load.sizes(STARTS, SIZES)
        log_s, covariance = field.at(sizes)
        log_rate = expected.log_tokens[None, :] - log_s
        timed = models.cost.timed_by_arm()
        known = np.array([timed.get(arm, 0.0) >= KNOWN_STEPS for arm in field.arms])
        _alike(field.arms, known)
        log_worth = log_rate - _prefills(models, field.arms, expected.log_tokens, log_s)
        barred = _barred(field.arms, resting)
        return cls(field.arms, sizes, expected, field, log_rate, covariance, log_worth, known, barred)

    @property
    def value(self) -> Floats:
        """What counts, sizes x arms: `log_worth`; next to nothing at rest."""
        return self.log_worth - BARRED * self.barred

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
        """Variance of log t[g, a] once log t[g, i[g]] is known, at `SIZES`.

        Not at the mean, where a batch that is held was timed: what a probe may teach is of use beside it too.
        """
        _, covariance = self.field.at(SIZES)
        g = np.arange(len(SIZES))
        own = np.einsum("gaa->ga", covariance)
        return np.asarray(np.maximum(1e-9, own - covariance[g, :, i] ** 2 / own[g, i][:, None]))

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


def _prefills(models: Models, arms: Sequence[Arm], log_tokens: Floats, log_s: Floats) -> Floats:
    """Log of how much longer prefills make a step than an arm's that pays least for them, sizes x arms.

    Frozen spares draft prefills, so it is below 0 there.
    """
    tokens = np.asarray(SIZES)[:, None] * np.exp(log_tokens)[None, :]
    occurs = models.load.shares(STARTS) > 0
    fit = models.prefill.fit(math.exp(float(log_s[occurs].min() if occurs.any() else log_s.min())))
    added = models.prefill.amortized_s(tokens, fit) / np.exp(log_s)
    if models.survival.staleness <= BLIND:
        spared = np.minimum(MOST_SPARED, fit.spared_s * models.prefill.arrivals(tokens) / np.exp(log_s))
        added = added - spared * np.array([arm.gear is Gear.FROZEN for arm in arms])
    return np.asarray(np.log1p(added))


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


def _must_look(models: Models, outlook: Outlook, here: int, chosen: int) -> npt.NDArray[np.bool_]:
    """The drafting arm that must show acceptance again: off is in force, and it may well have changed.

    That of the most expected, where it would be worth something had acceptance risen.
    """
    look = np.zeros(len(outlook.arms), dtype=np.bool_)
    drafts = np.array([arm.depth > 0 for arm in outlook.arms]) & outlook.known & ~outlook.barred[here]
    if outlook.arms[chosen].depth == 0 and models.survival.staleness >= LONG_BLIND and drafts.any():
        best = int(np.argmax(np.where(drafts, outlook.value[here], -np.inf)))
        hope = outlook.value[here, best] + HOPE * float(np.abs(outlook.yields.gradient[best]).sum())
        look[best] = hope > outlook.value[here, chosen]
    return look


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
        first=_must_try(models, outlook, bucket, float(share.sum()), waiting=waiting)
        | _must_look(models, outlook, here, int(chosen[here])),
        share=share,
        step_s=np.exp(outlook.field.at([batch])[0][0]),
        min_gain=hurdle[0],
        confidence=hurdle[1],
        activity=models.load.activity,
        here=here,
        chosen=chosen,
    )
