"""How long a decode step takes: learned on line over batch size, arm and context, with its error.

Plain words: the time of a step is a curve over batch size, one curve per arm.  Where an arm was timed
we know it; elsewhere its curve follows the curves of its neighbours (one draft more, one batch size
up), the less surely the farther away.

The maths: x[b, a] = log seconds of one step of arm a at batch size b, on the knots b of `KNOTS` (the
telemetry buckets), straight lines over log b between them.  A Gaussian Markov random field over all
x ties

- an arm to itself along b: an increment per doubling of b has mean 0.3 and deviation 0.35 (from "no
  dearer" to "twice as dear": between memory-bound and compute-bound decoding), wide enough for the
  staircase of CUDA-graph batch sizes;
- an arm to its neighbour in the order cold, warm, depth 1, 2, ...: the logarithm of the ratio of their
  times is a stationary process along b (Ornstein-Uhlenbeck: it may drift within its deviation, over the
  ten doublings that the buckets span; where a step was seen to grow less or more with the batch than is
  usual, over as many fewer or more: `growth.py`).  From one depth to another a step costs between nothing
  more (memory-bound) and as much more as there are tokens to verify (compute-bound): 0.4 of the latter, give
  or take 0.15 per draft.  Warm keeps the draft cache in step, cold does not: 0.1 give or take 0.1.  Off may
  take other kernels than drafting, which verifies: 0.15 give or take 0.55 from off to depth 1;
- levels only loosely: nothing is assumed about how fast the machine is.

Logarithms make all of this relative, so no constant is tied to a machine.  Timed cells are Gaussian
measurements of x; the posterior (Rue & Held, "Gaussian Markov Random Fields", 2005, ch. 2) is one
linear solve, and its covariance says how surely two arms differ, shared error cancelling.

Steps right after a prefill are timed too, since under many loads there are few others.  They take longer, by
what the host does for new requests, and the less, the longer the step is that hides it: by as much as where
steps of both kinds are seen together, or by nothing.  Half of that is taken off, and half is the error.

Context: attention reads all cached tokens each step, so seconds grow linearly in them; the slope
(seconds per token) is learned by ridge regression on deviations within a cell: one for all arms that draft
and one for off, from which a single arm may differ by half, as far as its own timings say so.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.bounds import Positive, check_bounds
from policies.drift import DriftParams, Watch
from policies.growth import GROWTH_PER_OCTAVE, GROWTH_SD, Timings, pace
from policies.soundness import finite
from policies.types import Arm, CellDelta, Gear

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The telemetry buckets, named by their smallest batch size (docs/protocol.md)."""
LOG2_KNOTS = np.log2(np.array(KNOTS, dtype=np.float64))
OCTAVES = np.diff(LOG2_KNOTS)

DEPTH_SHARE, DEPTH_SD = 0.4, 0.15
UPKEEP, UPKEEP_SD = 0.1, 0.1
KERNEL, KERNEL_SD = 0.15, 0.55
REACH_OCTAVES = 10.0
RISE = np.array([-1.0, 1.0])
LEAST_PACE = 1e-3
"""Of the clock of a ratio: even where step times are flat, it is not believed to be the same for ever."""
SLOPE_SD = 0.5
"""Relative deviation of an arm's context slope from that of all that take the same kernels (all that draft;
the gears of off): they read the same cache."""
ROUGH_CV2 = 0.1**2
EXCESS_STEPS, EXCESS_PRIOR_STEPS = 200.0, 4.0
"""Half-life of what steps after a prefill take longer, in such steps; weight of the belief that it is 0."""
ANCHOR_S, ANCHOR_SD = 0.02, 4.0


@dataclass(frozen=True, slots=True)
class StepCostParams:
    """How long step times are remembered, and how far they are believed."""

    memory_steps: Positive = 1000.0
    """Half-life in timed steps of the same cell ..."""
    memory_s: Positive = 60.0
    """... and in seconds in which the cell was timed; both must be exceeded."""
    floor: Positive = 0.005
    """Relative error that no amount of timing removes (batches mixed in one bucket, clocks)."""
    wander: Positive = 0.01
    """Relative deviation by which an arm may move against the others in ten minutes without a timing."""
    noise: Positive = 0.1
    """Relative deviation of one step's time while unknown."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values that are not positive."""
        check_bounds(self)


@dataclass(slots=True)
class Cell:
    """What is remembered of one (bucket, arm): weights are timed steps."""

    weight: float = 0.0
    mean_s: float = 0.0
    cv2: float = 0.0
    """Squared relative deviation of single steps."""
    batch: float = 0.0
    context: float = 0.0
    """Context tokens per request."""
    bias2: float = 0.0
    """Squared relative error of the mean that no number of steps removes: from steps after prefills."""
    age_s: float = 0.0
    """Since it was last timed."""

    def variance(self, p: StepCostParams) -> float:
        """Relative variance of the mean, with the floor and what may have changed since."""
        return self.cv2 / self.weight + self.bias2 + p.floor**2 + self.wandered(p)

    def wandered(self, p: StepCostParams) -> float:
        """The part of it that has come about since it was last timed."""
        return p.wander**2 * self.age_s / 600.0


@dataclass(slots=True)
class Slope:
    """Seconds per context token of one arm, by a weighted regression through the origin.

    y = alpha * u, with y the relative surprise of a step and u = (context tokens more) / (step seconds).
    """

    uu: float = 0.0
    uy: float = 0.0
    scale: float = 0.0
    """Mean of (all context tokens / step seconds)^2: alpha^2 * scale <= 1, since steps take > 0 s."""

    def prior(self) -> float:
        """Precision of alpha before any data: context is half of a step, give or take all of it."""
        return 4.0 * self.scale


@dataclass(frozen=True, slots=True)
class Timing:
    """One tick's clean mean step of one cell."""

    steps: float
    mean_s: float
    cv2: float
    batch: float
    context: float | None
    """Context tokens per request; `None`: not told."""
    rough: bool = False
    """From steps after prefills: `cv2` is not known."""
    bias2: float = 0.0
    """See `Cell`."""


def timing(cell: CellDelta, excess_s: float = 0.0) -> Timing | None:
    """The clean part of a cell, else the steps after prefills; `None`: nothing was timed.

    `excess_s`: what the latter were seen to take longer.

    When the steps scatter so much that a stall must be among them, the mean is what it would be if all
    the scatter came from one outlier x: with n-1 equal steps, mean - sd / sqrt(n - 1).
    """
    n = cell.timed_steps
    if n < 1 or cell.timed_seconds <= 0:
        return _rough_timing(cell, excess_s)
    mean = cell.timed_seconds / n
    variance = max(0.0, cell.timed_seconds_sq / n - mean**2)
    if n >= 3 and variance > (0.5 * mean) ** 2:
        mean = max(mean / n, mean - math.sqrt(variance / (n - 1)))
        variance = (0.1 * mean) ** 2
    batch = cell.timed_request_steps / n
    return Timing(n, mean, variance / mean**2, batch, cell.timed_context_tokens / n / batch)


def context_of(seen: Timing) -> float:
    """Context tokens per request, 0 when not told."""
    return seen.context or 0.0


def _rough_timing(cell: CellDelta, excess_s: float) -> Timing | None:
    n = cell.after_prefill_steps
    if n < 1 or cell.after_prefill_seconds <= 0 or cell.steps < 1 or cell.request_steps < 1:
        return None
    longer_s = cell.after_prefill_seconds / n
    half_s = min(excess_s, longer_s) / 2
    mean_s, batch = longer_s - half_s, cell.request_steps / cell.steps
    return Timing(n, mean_s, ROUGH_CV2, batch, None, rough=True, bias2=(half_s / mean_s) ** 2)


def excess(cells: Iterable[CellDelta]) -> tuple[float, float]:
    """Steps after a prefill in cells that hold clean steps too, and the mean seconds they took longer."""
    both = [c for c in cells if c.timed_steps > 0 and c.after_prefill_steps > 0]
    steps = sum(c.after_prefill_steps for c in both)
    longer_s = sum(
        c.after_prefill_seconds - c.after_prefill_steps * c.timed_seconds / c.timed_steps for c in both
    )
    return float(steps), longer_s / steps if steps else 0.0


def bucket_index(batch_size: float) -> int:
    """Index in `KNOTS` of the bucket that holds `batch_size`."""
    return max(0, bisect.bisect_right(KNOTS, batch_size) - 1)


def interpolation(batch_size: float) -> tuple[int, float]:
    """Knot index i and weight w: log b = (1-w) log KNOTS[i] + w log KNOTS[i+1]."""
    i = min(bucket_index(batch_size), len(KNOTS) - 2)
    w = math.log2(max(1.0, batch_size) / KNOTS[i]) / float(OCTAVES[i])
    return i, min(1.0, max(0.0, w))


def prior_field(arms: Sequence[Arm], clock: Floats | None = None) -> tuple[Floats, Floats]:
    """Precision matrix and shift (precision times mean) of the field over knots x arms.

    `clock`: how fast that of each ratio runs (`growth.pace`); `None`: as fast as usual.
    """
    width, last = len(arms), len(KNOTS) - 1
    at = np.arange(len(KNOTS) * width).reshape(len(KNOTS), width)
    precision, shift = np.zeros((at.size, at.size)), np.zeros(at.size)

    def tie(places: Indices, terms: Floats, mean: Floats, sd: Floats) -> None:
        """Of each row: the sum of `terms` times the field at `places` has this mean and deviation."""
        block = terms[:, :, None] * terms[:, None, :] / sd[:, None, None] ** 2
        np.add.at(precision, (places[:, :, None], places[:, None, :]), block)
        np.add.at(shift, places, terms * (mean / sd**2)[:, None])

    tie(at[:1, :1], np.ones((1, 1)), np.array([math.log(ANCHOR_S)]), np.array([ANCHOR_SD]))
    beside = np.stack([at[:-1, 0], at[1:, 0]], axis=1)
    tie(beside, np.tile(RISE, (last, 1)), GROWTH_PER_OCTAVE * OCTAVES, GROWTH_SD * OCTAVES**0.5)
    if width == 1:
        return precision, shift
    mean, sd = np.array([ratio(one, other) for one, other in itertools.pairwise(arms)]).T
    tie(np.stack([at[0, :-1], at[0, 1:]], axis=1), np.tile(RISE, (width - 1, 1)), mean, sd)
    octaves = OCTAVES[:, None] * (np.ones(width - 1) if clock is None else np.maximum(LEAST_PACE, clock))
    kept = np.exp(-octaves / REACH_OCTAVES)
    terms = np.stack([kept, -kept, -np.ones(kept.shape), np.ones(kept.shape)], axis=2).reshape(-1, 4)
    places = np.stack([at[:-1, :-1], at[:-1, 1:], at[1:, :-1], at[1:, 1:]], axis=2).reshape(-1, 4)
    tie(places, terms, ((1 - kept) * mean).ravel(), (sd * np.sqrt(1 - kept**2)).ravel())
    return precision, shift


def measure(timings: Timings, precision: Floats, shift: Floats, width: int) -> None:
    """Add timed cells to the field of `width` arms: Gaussian measurements between two knots."""
    knot = np.clip(np.searchsorted(LOG2_KNOTS, timings.where, side="right") - 1, 0, len(KNOTS) - 2)
    w = np.clip((timings.where - LOG2_KNOTS[knot]) / OCTAVES[knot], 0.0, 1.0)
    one = knot * width + timings.arm
    two = one + width
    weight = 1.0 / timings.variance
    np.add.at(precision, (one, one), weight * (1 - w) ** 2)
    np.add.at(precision, (two, two), weight * w**2)
    np.add.at(precision, (one, two), weight * w * (1 - w))
    np.add.at(precision, (two, one), weight * w * (1 - w))
    np.add.at(shift, one, weight * (1 - w) * timings.log_s)
    np.add.at(shift, two, weight * w * timings.log_s)


def inverse(precision: Floats, width: int) -> Floats:
    """Inverse of a symmetric matrix whose blocks of `width` touch their neighbours only: here, the knots.

    Block elimination D_k = A_k - B' D^-1 B, then backwards S_kk = D_k^-1 + G S G', S_kl = -G S_(k+1)l with
    G = D_k^-1 B_k (Rue & Held, ch. 2.3.1); a third of the time of the dense inverse.
    """
    blocks = [slice(at, at + width) for at in range(0, len(precision), width)]
    inverted = [np.linalg.inv(precision[blocks[0], blocks[0]])]
    ahead = []
    for one, two in itertools.pairwise(blocks):
        beside = precision[one, two]
        ahead.append(inverted[-1] @ beside)
        inverted.append(np.linalg.inv(precision[two, two] - beside.T @ ahead[-1]))
    covariance = np.empty_like(precision)
    covariance[blocks[-1], blocks[-1]] = inverted[-1]
    for k in range(len(blocks) - 2, -1, -1):
        here, rest = blocks[k], slice(blocks[k].stop, None)
        row = -ahead[k] @ covariance[blocks[k + 1], rest]
        covariance[here, rest], covariance[rest, here] = row, row.T
        covariance[here, here] = inverted[k] - row[:, :width] @ ahead[k].T
    return covariance


def ratio(one: Arm, other: Arm) -> tuple[float, float]:
    """Prior of log(step time of `other` / of `one`), neighbours in order: mean and deviation."""
    if one.depth:
        tokens = (other.depth + 1) / (one.depth + 1)
        return DEPTH_SHARE * math.log(tokens), DEPTH_SD * math.sqrt(other.depth - one.depth)
    mean, variance = 0.0, 0.0
    if one.gear is Gear.FROZEN:
        mean, variance = 0.0, 0.02**2
    if one.gear is not Gear.WARM and other.gear in (Gear.WARM, Gear.ON):
        mean, variance = mean + UPKEEP, variance + UPKEEP_SD**2
    if other.depth:
        mean += KERNEL + DEPTH_SHARE * math.log((other.depth + 1) / 2)
        variance += KERNEL_SD**2 + DEPTH_SD**2 * (other.depth - 1)
    return mean, math.sqrt(variance)


_ORDER = (Gear.FROZEN, Gear.COLD, Gear.WARM, Gear.ON)


def ordered(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Arms from least to most work, each beside its neighbour in the field."""
    return tuple(sorted(set(arms), key=lambda arm: (arm.depth, _ORDER.index(arm.gear))))


@dataclass(frozen=True, slots=True)
class CostField:
    """The posterior at the knots."""

    arms: tuple[Arm, ...]
    log_s: Floats
    """Mean log seconds, knots x arms."""
    covariance: Floats
    """Of the arms at one knot, knots x arms x arms."""
    to_next: Floats
    """Of the arms at one knot with those at the next, (knots - 1) x arms x arms."""
    along: Floats
    """Of each arm at one knot with itself at another, knots x knots x arms."""

    def at(self, batch_sizes: Sequence[float]) -> tuple[Floats, Floats]:
        """Mean log seconds (sizes x arms) and covariances (sizes x arms x arms), interpolated."""
        i, w = _places(tuple(batch_sizes))
        w = w[:, None]
        mean = (1 - w) * self.log_s[i] + w * self.log_s[i + 1]
        w = w[:, :, None]
        crossed = self.to_next[i] + self.to_next[i].swapaxes(1, 2)
        spread = (1 - w) ** 2 * self.covariance[i] + w**2 * self.covariance[i + 1] + w * (1 - w) * crossed
        return mean, spread

    def tie(self, batch_sizes: Sequence[float], batch_size: float) -> Floats:
        """The share of what is open at `batch_sizes` that timing at `batch_size` can settle, sizes x arms.

        It is the squared correlation of each arm's log seconds here and there.
        """
        to, here = _weights(tuple(batch_sizes)), _weights((batch_size,))[0]
        joint = np.einsum("kla,l->ka", self.along, here)
        k, w = _places(tuple(batch_sizes))
        w = w[:, None]
        crossed = w * (1 - w) * self.along[k, k + 1]
        own = (1 - w) ** 2 * self.along[k, k] + w**2 * self.along[k + 1, k + 1] + 2 * crossed
        return np.asarray((to @ joint) ** 2 / (own * (here @ joint)))


@functools.lru_cache(maxsize=16)
def _places(batch_sizes: tuple[float, ...]) -> tuple[npt.NDArray[np.intp], Floats]:
    """`interpolation` of each."""
    where = [interpolation(b) for b in batch_sizes]
    return np.array([k for k, _ in where], dtype=np.intp), np.array([w for _, w in where])


@functools.lru_cache(maxsize=16)
def _weights(batch_sizes: tuple[float, ...]) -> Floats:
    """Of the knots in an interpolated value: sizes x knots."""
    k, w = _places(batch_sizes)
    weights = np.zeros((len(k), len(KNOTS)))
    row = np.arange(len(k))
    weights[row, k], weights[row, k + 1] = 1 - w, w
    return weights


class StepCost:
    """The learned step times."""

    def __init__(self, params: StepCostParams | None = None, drift: DriftParams | None = None) -> None:
        self.params = params or StepCostParams()
        self.cells: dict[tuple[int, Arm], Cell] = {}
        self.slopes: dict[Arm, Slope] = {}
        self.context = 0.0
        """Context tokens per request now (recent mean)."""
        self.alarms = 0
        self.excess_s, self._excess_steps = 0.0, EXCESS_PRIOR_STEPS
        """What steps right after a prefill take longer than others, and from how many that is known."""
        self._drift = drift or DriftParams()
        self._watch: dict[Arm, Watch] = {}
        self._field: CostField | None = None
        self._slope_now: dict[Arm, float] = {}
        self._exponents: dict[tuple[int, Arm], float] = {}
        """d log T / d log b within each bucket, 0..1.5, as the field has it."""

    def observe(self, cells: Iterable[CellDelta], dt_s: float) -> bool:
        """Learn from one tick; `True` when step times left what was learned."""
        for slope in self.slopes.values():
            fade = 2.0 ** (-dt_s / 600.0)
            slope.uu, slope.uy = slope.uu * fade, slope.uy * fade
        for known in self.cells.values():
            known.age_s += dt_s
        cells = tuple(cells)
        self._learn_excess(cells)
        timed = [
            (bucket_index(c.batch_bucket), c.arm, t)
            for c in cells
            if (t := timing(c, self.excess_s)) is not None
        ]
        self._refresh_slopes()
        self._track_context([t for _, _, t in timed], dt_s)
        drifted = {arm for k, arm, t in timed if self._learn(k, arm, t, dt_s)}
        for arm in drifted:
            self._restart(arm)
        return bool(drifted)

    def field(self, arms: Iterable[Arm]) -> CostField:
        """The posterior over `arms` at the present context."""
        chain = ordered(arms)
        self._refresh_slopes()
        timings = self._timings(chain)
        precision, shift = prior_field(chain, pace(timings, len(chain), LOG2_KNOTS))
        measure(timings, precision, shift, len(chain))
        covariance = inverse(precision, len(chain))
        shape = (len(KNOTS), len(chain))
        every = covariance.reshape(*shape, *shape)
        knots = np.arange(len(KNOTS) - 1)
        self._field = CostField(
            chain,
            (covariance @ shift).reshape(shape),
            np.einsum("kakb->kab", every),
            np.asarray(every[knots, :, knots + 1, :], dtype=np.float64),
            np.einsum("kala->kla", every),
        )
        exponents = np.clip(np.diff(self._field.log_s, axis=0) / OCTAVES[:, None], 0.0, 1.5).tolist()
        self._exponents = {(k, arm): row[a] for k, row in enumerate(exponents) for a, arm in enumerate(chain)}
        return self._field

    def seconds(self, cell: CellDelta) -> float:
        """Seconds that all steps of `cell` took: by its clean intervals, else by what is remembered."""
        seen = timing(cell, self.excess_s)
        if seen is not None:
            return cell.steps * seen.mean_s
        k = bucket_index(cell.batch_bucket)
        known = self.cells.get((k, cell.arm))
        if known is not None:
            return cell.steps * known.mean_s
        if self._field is not None and cell.arm in self._field.arms:
            return cell.steps * math.exp(float(self._field.log_s[k, self._field.arms.index(cell.arm)]))
        return 0.0

    def noise(self, arm: Arm, bucket: int) -> float:
        """Squared relative deviation of a single step of `arm`."""
        known = self.cells.get((bucket, arm))
        return known.cv2 + 1e-6 if known else self._usual_cv2(bucket)

    def timed_steps(self, arm: Arm, bucket: int | None = None) -> float:
        """Remembered timed steps of `arm`, in one bucket (its index) or in all."""
        if bucket is not None:
            cell = self.cells.get((bucket, arm))
            return cell.weight if cell else 0.0
        return self.timed_by_arm().get(arm, 0.0)

    def timed_by_arm(self) -> dict[Arm, float]:
        """The same over all buckets, of every arm that was ever timed."""
        steps: dict[Arm, float] = {}
        for (_, arm), cell in self.cells.items():
            steps[arm] = steps.get(arm, 0.0) + cell.weight
        return steps

    def context_slope(self, arm: Arm) -> float:
        """Seconds per context token, >= 0; shrunk towards that of all arms that take the same kernels."""
        drafts = arm.depth > 0
        mates = [s for a, s in self.slopes.items() if (a.depth > 0) == drafts] or list(self.slopes.values())
        prior = sum(s.prior() for s in mates)
        if prior <= 0:
            return 0.0
        common = sum(s.uu for s in mates) + prior
        pooled = sum(s.uy for s in mates) / common
        own = self.slopes.get(arm, Slope())
        likeness = 1.0 / ((SLOPE_SD * pooled) ** 2 + 1.0 / common)
        return max(0.0, (own.uy + likeness * pooled) / (own.uu + likeness))

    def _learn_excess(self, cells: Sequence[CellDelta]) -> None:
        steps, longer_s = excess(cells)
        if steps:
            self._excess_steps = self._excess_steps * 2.0 ** (-steps / EXCESS_STEPS) + steps
            share = steps / self._excess_steps
            self.excess_s = max(0.0, self.excess_s + share * (longer_s - self.excess_s))

    def _refresh_slopes(self) -> None:
        """Once a tick: every timed cell asks for its arm's slope."""
        self._slope_now = {arm: self.context_slope(arm) for arm in {arm for _, arm in self.cells}}

    def _timings(self, chain: Sequence[Arm]) -> Timings:
        """Every timed cell of the arms in `chain`."""
        index = {arm: a for a, arm in enumerate(chain)}
        rows = [
            (index[arm], max(cell.batch, KNOTS[k]), self._log_s(arm, cell), cell.variance(self.params))
            for (k, arm), cell in self.cells.items()
            if arm in index and cell.weight > 0
        ]
        arm, batch, log_s, variance = np.array(sorted(rows), dtype=np.float64).reshape(-1, 4).T
        return Timings(arm.astype(np.intp), np.log2(batch), log_s, variance)

    def _log_s(self, arm: Arm, cell: Cell) -> float:
        return math.log(self._at_present_context(arm, cell))

    def _at_present_context(self, arm: Arm, cell: Cell) -> float:
        change = self._slope_now.get(arm, 0.0) * cell.batch * (self.context - cell.context)
        return max(0.3 * cell.mean_s, min(3.0 * cell.mean_s, cell.mean_s + change))

    def _track_context(self, timed: Sequence[Timing], dt_s: float) -> None:
        told = [(t.steps * t.batch, t.context) for t in timed if t.context is not None]
        requests = sum(weight for weight, _ in told)
        if requests <= 0:
            return
        now = sum(weight * context for weight, context in told) / requests
        fade = 2.0 ** (-dt_s / 10.0) if self.context > 0 else 0.0
        self.context += (1.0 - fade) * (now - self.context)

    def _learn(self, k: int, arm: Arm, seen: Timing, dt_s: float) -> bool:
        known = self.cells.get((k, arm))
        if seen.context is None:
            seen = dataclasses.replace(seen, context=known.context if known else self.context)
        if known is None:
            usual = self._usual_cv2(k)
            cv2 = usual if seen.rough else (usual * 4 + seen.cv2 * seen.steps) / (4 + seen.steps)
            self.cells[k, arm] = Cell(seen.steps, seen.mean_s, cv2, seen.batch, context_of(seen), seen.bias2)
            return False
        expected = self._expected(k, arm, known, seen)
        error = math.sqrt(known.cv2 / seen.steps + known.variance(self.params) + self.params.floor**2)
        residual = math.log(seen.mean_s / expected)
        self._learn_slope(arm, known, seen, residual, error)
        # what follows prefills moves with the host's work, which is no change of the step
        watch = self._watch.setdefault(arm, Watch(self._drift))
        alarm = not seen.rough and watch.update(residual, error)
        if seen.rough:
            seen = dataclasses.replace(seen, cv2=seen.steps * residual**2)
        self._blend(known, seen, min(seen.mean_s, expected * math.exp(5 * error)), dt_s)
        return alarm

    def _usual_cv2(self, k: int) -> float:
        """How the steps of an arm that was never timed in bucket `k` scatter: as those of the others do."""
        known = [(c.weight, c.cv2) for (bucket, _), c in self.cells.items() if bucket == k]
        weight = sum(w for w, _ in known)
        return (self.params.noise**2 * 4 + sum(w * cv2 for w, cv2 in known)) / (4 + weight)

    def _expected(self, k: int, arm: Arm, known: Cell, seen: Timing) -> float:
        """The cell's mean moved to the batch size and the context of this tick."""
        expected = known.mean_s + self._slope_now.get(arm, 0.0) * seen.batch * (
            context_of(seen) - known.context
        )
        exponent = self._exponents.get((k, arm))
        if exponent is not None:
            expected *= 2.0 ** (exponent * math.log2(seen.batch / known.batch))
        return max(0.3 * known.mean_s, expected)

    def _learn_slope(self, arm: Arm, known: Cell, seen: Timing, surprise: float, error: float) -> None:
        """`surprise` is relative to what the present slope foretold, so that part is added back."""
        slope = self.slopes.setdefault(arm, Slope())
        u = seen.batch * (context_of(seen) - known.context) / known.mean_s
        y = max(-0.5, min(0.5, surprise)) + self._slope_now.get(arm, 0.0) * u
        weight = 1.0 / error**2
        slope.uu += weight * u * u
        slope.uy += weight * u * y
        now = (seen.batch * context_of(seen) / known.mean_s) ** 2
        slope.scale += (now - slope.scale) * (0.05 if slope.scale else 1.0)

    def _blend(self, known: Cell, seen: Timing, mean_s: float, dt_s: float) -> None:
        """Weigh what is remembered by its present error, against what was seen: a Kalman filter."""
        p = self.params
        fade = max(2.0 ** (-dt_s / p.memory_s), 2.0 ** (-seen.steps / p.memory_steps))
        old = known.weight * fade
        old /= 1.0 + old * known.wandered(p) / max(1e-9, known.cv2)
        share = seen.steps / (old + seen.steps)
        known.mean_s += share * (mean_s - known.mean_s)
        known.cv2 += share * (min(seen.cv2, 1.0) - known.cv2)
        known.bias2 += share * (seen.bias2 - known.bias2)
        known.batch += share * (seen.batch - known.batch)
        known.context += share * (context_of(seen) - known.context)
        known.weight = old + seen.steps
        known.age_s = 0.0

    def _restart(self, arm: Arm) -> None:
        """Keep the shape of what was learned, at the weight of a guess, so that news outweigh it."""
        self.alarms += 1
        for (_, a), cell in self.cells.items():
            if a == arm:
                cell.weight = min(cell.weight, 4.0)

    def export_state(self) -> dict[str, Any]:
        """JSON-ready: one row per cell."""
        rows = [
            [KNOTS[k], arm.depth, str(arm.gear), c.weight, c.mean_s, c.cv2, c.batch, c.context, c.bias2]
            for (k, arm), c in self.cells.items()
        ]
        slopes = [[a.depth, str(a.gear), s.uu, s.uy, s.scale] for a, s in self.slopes.items()]
        return {"cells": rows, "slopes": slopes, "context_tokens_per_request": self.context}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        cells = dict(_read_cell(row) for row in _rows(state, "cells", len(KNOTS) * 72))
        slopes = dict(_read_slope(row) for row in _rows(state, "slopes", 72))
        told = state.get("context_tokens_per_request")
        context = finite(told)
        if context is None:
            raise ValueError(f"context_tokens_per_request must be a number >= 0, got {told!r}")
        self.cells, self.slopes, self.context = cells, slopes, context


def _rows(state: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    rows = state.get(name)
    if not isinstance(rows, list) or len(rows) > limit:
        raise ValueError(f"{name} must be a list of at most {limit} rows, got {type(rows).__name__}")
    return rows


def _read_cell(row: Any) -> tuple[tuple[int, Arm], Cell]:
    try:
        batch, depth, gear, *numbers = row
        weight, mean_s, cv2, size, context, bias2 = (finite(v) for v in numbers)
        key = (KNOTS.index(batch), Arm(depth, Gear(gear)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cells must hold rows of bucket, depth, gear and 6 numbers, got {row!r}") from error
    if cv2 is None or context is None or bias2 is None or not (weight and mean_s and size):
        raise ValueError(f"cells must hold finite numbers, weight, seconds and batch above 0, got {row!r}")
    return key, Cell(weight, mean_s, cv2, size, context, bias2)


def _read_slope(row: Any) -> tuple[Arm, Slope]:
    try:
        depth, gear, uu, uy, scale = row
        arm = Arm(depth, Gear(gear))
    except (TypeError, ValueError) as error:
        raise ValueError(f"slopes must hold rows of depth, gear, uu, uy and scale, got {row!r}") from error
    if None in (finite(uu, high=1e30), finite(uy, -1e30, 1e30), finite(scale, high=1e30)):
        raise ValueError(f"slopes must hold finite numbers, got {row!r}")
    return arm, Slope(float(uu), float(uy), float(scale))
