"""What is worth trying: probes by the value of what they may teach, on a budget.

Plain words: a probe runs a few decode steps with another arm.  It pays only if what it shows could change
the schedule at batch sizes that occur, and if that change would save more time than the probe costs.

The maths (knowledge gradient; Frazier, Powell & Dayanik, INFORMS J. Computing 21, 2009): arm a trails the
arm in force by -delta with variance v; n steps would measure it with noise variance r, so the posterior
mean will move by a Gaussian of variance s^2 = v^2 / (v + r), and the gain expected from being able
to change is

    EI = E[X; X > h],  X ~ N(delta, s^2),  h = min_gain + confidence * (error that will be left)

relative to the present rate.  A burst of n steps is worth  sum_g horizon * share(g) * nearness(g) * EI(g)
seconds and costs  n * T * (1 - exp(delta))  and two switches.  v has two parts: the step time of the arm
given that of the arm in force, and the acceptance of positions that the arm in force does not show.  What is
found of the second is of use until acceptance changes; what is found of the first, for longer: it is of use
again each time that this acceptance comes back.
The variance of acceptance that was not seen for a while grows with the learned rate of change
(`acceptance.py`), so an arm becomes worth another look by itself, sooner where the world changes often.

Bounds: the time of all probes stays within `share` of decode time (plus a loan after a start, on the next
hour), and a probe must bring the more, the less of that is left; after each probe that changed nothing the
arm rests in that bucket, twice as long each time, no longer than the mean time between changes of acceptance
divided by `looks_per_change`; a drift alarm ends all rests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from policies.bounds import Bound, Positive, Share, check_bounds
from policies.step_cost import KNOTS
from policies.types import Arm, Probe

Floats = npt.NDArray[np.float64]
FIRST = 1e6
"""Added to the value of a probe of off where it was never timed nearby.

What off costs is the one thing that must not rest on a prior: it is where every mistake is mended, and
how it compares to drafting depends on kernels that no prior knows.
"""

Indices = npt.NDArray[np.intp]

SWITCH_STEPS = 2
"""Steps of a burst that cannot be timed: overlap scheduling mixes the first and the last with others."""

SAMPLES = 2.0
"""Timed steps that a burst should bring; one that is expected to bring fewer is worth less."""


@dataclass(frozen=True, slots=True)
class ProbeParams:
    """How much may be spent on learning."""

    share: Share = 0.006
    """Greatest share of decode time (0: never probe) ..."""
    loan_share: Share = 0.004
    """... and of the decode time of the `loan_s` to come, at the present activity, which may be spent ahead
    after a start.  Together 0.01: over a steady hour probes stay below 1 %."""
    loan_s: Positive = 3600.0
    """See `loan_share`."""
    bursts: Annotated[tuple[int, ...], Bound(at_least=4)] = (4, 8, 16, 32, 64)
    """Burst lengths to choose from, in decode steps; at least one."""
    rest_s: Positive = 5.0
    """First rest of an arm after a probe that changed nothing."""
    max_rest_s: Positive = 600.0
    """Longest rest, >= `rest_s`."""
    looks_per_change: Positive = 30.0
    """A rest is never longer than the mean time between drift alarms over this."""
    horizon_s: Positive = 1800.0
    """How long a finding is expected to stay of use.  One about acceptance: less where that changes more
    often.  One about step times: shared among the regimes of acceptance that were met."""
    patience_s: Positive = 2.0
    """A probe whose batch sizes do not come up for so long, while others do, is dropped."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)
        if not self.bursts:
            raise ValueError("bursts must be at least one step count, got none")
        if self.max_rest_s < self.rest_s:
            raise ValueError(f"max_rest_s must be >= rest_s ({self.rest_s}), got {self.max_rest_s!r}")


@dataclass(frozen=True, slots=True)
class Prospect:
    """What the prober is told: sizes x arms unless said otherwise."""

    arms: tuple[Arm, ...]
    delta: Floats
    """Expected log-goodput above the arm in force, <= 0 for most."""
    cost_variance: Floats
    """Variance of log step time, given that of the arm in force."""
    floor_variance: float
    """The part of it that no timing removes."""
    tie: Floats
    """Share of it that timing the arm at the present batch size can settle, 0..1."""
    cost_noise: Floats
    """Relative variance of a single timed step."""
    gradient: Floats
    """d log E / d p_j, arms x positions."""
    hidden: Floats
    """1 where the arm shows a position that the arm in force does not: sizes x arms x positions."""
    p_variance: Floats
    """Variance of p_j, by position."""
    p_noise: Floats
    """Variance of p_j measured by a single step at the present batch size, by position."""
    clean_steps: float
    """Share of decode steps that are timed (no prefill in between), 0..1."""
    aftermath_s: Floats
    """Decode seconds lost after a probe because requests then draft badly, by arm."""
    aftermath_share: Floats
    """Share of decode time that an arm in force would cost in the same way, by arm."""
    horizon_s: float
    """Decode seconds that a finding about acceptance will be of use: until it changes."""
    cost_horizon_s: float
    """The same about step times, which do not change with acceptance."""
    first: npt.NDArray[np.bool_]
    """Arms that come before all others, whatever their value: off, where it was never timed nearby; a
    drafting arm, where off has hidden for long what acceptance is."""
    share: Floats
    """Share of decode time by size, weighed down with distance from the present batch size."""
    step_s: Floats
    """Seconds of a step at the present batch size, by arm."""
    min_gain: float
    confidence: float
    """What a change will have to bring: log-goodput, and standard errors."""
    activity: float
    """Share of the time that is spent in decode steps."""
    here: int
    """The size that stands for the present batch."""
    chosen: Indices
    """The arm in force, by size."""


@dataclass(slots=True)
class Rest:
    """An arm of a bucket is not probed before `until_s`; the next rest will be `next_s`."""

    until_s: float
    next_s: float


@dataclass(slots=True)
class Pending:
    """The probe that the engine was asked for."""

    probe: Probe
    bucket: int
    arm_before: Arm
    waited_s: float = 0.0
    """Time with decode steps, none of them its own."""
    steps: float = 0.0
    timed: float = 0.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What the pending probe did in a tick."""

    steps: float
    timed: float
    """Those of its steps whose time is known."""
    busy_s: float
    """Length of the tick, if anything was decoded in it."""


class Prober:
    """Chooses probes and keeps their accounts; all times are decode-policy time handed in."""

    def __init__(self, params: ProbeParams | None = None) -> None:
        self.params = params or ProbeParams()
        self.pending: Pending | None = None
        self.spent_s = 0.0
        self.decode_s = 0.0
        self.elapsed_s = 0.0
        self.probes = 0
        self._rests: dict[tuple[int, Arm], Rest] = {}
        self._last: Probe | None = None

    def reset(self) -> None:
        """The world changed: all rests end."""
        self._rests.clear()

    def account(self, probe_s: float, decode_s: float, elapsed_s: float) -> None:
        """`probe_s` of `decode_s` seconds of decoding were probes, in `elapsed_s` seconds."""
        self.spent_s += probe_s
        self.decode_s += decode_s
        self.elapsed_s += elapsed_s

    def progress(
        self, ran: Ran, now_s: float, arm_now: Arm | None, cap_s: float, *, ahead: bool = False
    ) -> None:
        """See whether the pending probe is through, after a tick; `cap_s` bounds the rest.

        `arm_now` is the arm now chosen in the probe's bucket.  `ahead`: the probed arm promises more than
        that one, but not surely yet; its rest does not grow, the next burst may settle it.
        """
        pending = self.pending
        if pending is None:
            return
        pending.steps += ran.steps
        pending.timed += ran.timed
        pending.waited_s = 0.0 if ran.steps else pending.waited_s + ran.busy_s
        done = pending.steps >= pending.probe.burst_steps
        if not done and pending.waited_s < self.params.patience_s:
            return
        self._last, self.pending = pending.probe, None
        key = (pending.bucket, pending.probe.arm)
        if done and arm_now != pending.arm_before:
            for known in [k for k in self._rests if k[0] == pending.bucket]:
                del self._rests[known]
            return
        if pending.timed < 1:  # nothing was learned: not an answer
            return
        rest = Rest(0.0, self.params.rest_s) if ahead else self._rests.get(key, Rest(0.0, self.params.rest_s))
        pause_s = min(rest.next_s, self.params.max_rest_s, max(self.params.rest_s, cap_s))
        self._rests[key] = Rest(now_s + pause_s, min(2 * pause_s, self.params.max_rest_s))

    def abandon(self) -> None:
        """The engine was restarted, or must not be probed now."""
        self.pending = None

    def propose(self, prospect: Prospect, now_s: float, bucket: int) -> Probe | None:
        """The probe to run now: the pending one, else the one of the greatest net value above its price."""
        if self.pending is not None:
            return self.pending.probe
        purse_s = self._purse_s(min(prospect.activity, self._activity_so_far))
        lent_s = self._purse_s(prospect.activity)
        free_s = np.where(prospect.first, lent_s, purse_s) - self.spent_s
        saves_up = any(
            self._may_probe(prospect, int(a), now_s, bucket) for a in np.flatnonzero(prospect.first)
        )
        best, best_value, price = None, 0.0, self._price(prospect, purse_s)
        for n in self._bursts(prospect.clean_steps):
            value = self._net_value(prospect, n) - price * n * prospect.step_s
            value = np.where(prospect.first, FIRST + value, value)
            value[prospect.step_s * n > free_s] = -math.inf
            if saves_up:  # a cheaper arm would spend what off will need in a moment
                value[~prospect.first] = -math.inf
            for a in np.argsort(-value):
                if value[a] <= best_value:
                    break
                if self._may_probe(prospect, int(a), now_s, bucket):
                    best, best_value = (int(a), n), float(value[a])
                    break
        if best is None:
            self._last = None
            return None
        return self._start(prospect, best[0], best[1], bucket)

    def _bursts(self, clean_steps: float) -> list[int]:
        """The burst lengths that can be expected to bring enough timed steps; else the longest."""
        enough = [n for n in self.params.bursts if (n - SWITCH_STEPS) * clean_steps >= SAMPLES]
        return enough or [max(self.params.bursts)]

    def _start(self, prospect: Prospect, a: int, n: int, bucket: int) -> Probe | None:
        low = 1 if prospect.first[a] else KNOTS[max(0, bucket - 1)]
        high = KNOTS[min(len(KNOTS) - 1, bucket + 2)] - 1
        probe = Probe(prospect.arms[a], n, n, low, max(low, high), 1)
        if probe == self._last:  # an identical plan would count as a renewal: leave one tick between
            self._last = None
            return None
        before = prospect.arms[int(prospect.chosen[prospect.here])]
        self.pending = Pending(probe, bucket, before)
        self.probes += 1
        return probe

    def _purse_s(self, activity: float) -> float:
        """Seconds that all probes up to now may take together, lent on this share of time spent decoding.

        A burst after a quiet hour does not lend for an hour of bursts, but to what must be tried once.
        """
        p = self.params
        return p.share * self.decode_s + (p.loan_share * p.loan_s * activity if p.share > 0 else 0.0)

    @property
    def _activity_so_far(self) -> float:
        return self.decode_s / max(1e-9, self.elapsed_s)

    def _price(self, prospect: Prospect, purse_s: float) -> float:
        """What a second of probing must bring: the more, the emptier the purse.

        The threshold of the online knapsack problem (Chakrabarty, Zhou & Lukose, WWW 2008), U^z / e with z
        the share of the purse that is spent and U the most that a second of probing can bring.  So what is
        worth little does not use up what a better occasion will need.  The purse is that of the whole
        horizon: what will be granted until a finding is of no more use will be there for later occasions.
        """
        horizon_s = prospect.cost_horizon_s
        most = max(math.e, horizon_s / (min(self.params.bursts) * float(prospect.step_s.min())))
        purse_s += self.params.share * horizon_s
        spent = min(1.0, self.spent_s / purse_s) if purse_s > 0 else 1.0
        return float(most**spent / math.e)

    def _may_probe(self, prospect: Prospect, a: int, now_s: float, bucket: int) -> bool:
        if a == int(prospect.chosen[prospect.here]):
            return False
        rest = self._rests.get((bucket, prospect.arms[a]))
        return rest is None or now_s >= rest.until_s

    def _net_value(self, prospect: Prospect, n: int) -> Floats:
        """Seconds gained minus seconds lost by a burst of `n` steps, by arm."""
        samples = (n - 1) * prospect.clean_steps
        timed = prospect.cost_noise / max(1.0, samples)
        open_variance = np.maximum(0.0, prospect.cost_variance - prospect.floor_variance)
        open_here = open_variance[prospect.here]
        moved = open_variance * prospect.tie * open_here / (open_here + timed)
        learned = prospect.p_variance**2 / (prospect.p_variance + prospect.p_noise / n)
        of_cost = moved
        moved = moved + _together(prospect, learned)
        before = prospect.cost_variance + _together(prospect, prospect.p_variance)
        left = np.sqrt(np.maximum(0.0, before - moved))
        hurdle = prospect.min_gain + prospect.confidence * left
        gain = gain_above(prospect.delta, np.sqrt(np.maximum(moved, 1e-12)), hurdle)
        lasting = prospect.cost_horizon_s - prospect.horizon_s
        horizon_s = prospect.horizon_s + lasting * of_cost / np.maximum(moved, 1e-12)
        gained_s = prospect.share @ (horizon_s * gain) - prospect.cost_horizon_s * prospect.aftermath_share
        delta = prospect.delta[prospect.here]
        lost = n * prospect.step_s * np.maximum(0.02, 1.0 - np.exp(np.minimum(0.0, delta)))
        lost = lost + prospect.aftermath_s + prospect.step_s[prospect.chosen[prospect.here]]
        return np.asarray(min(1.0, samples / SAMPLES) * np.maximum(0.0, gained_s) - lost)


def gain_above(delta: Floats, sd: Floats, hurdle: Floats) -> Floats:
    """E[X; X > hurdle] for X ~ N(delta, sd^2)."""
    z = np.clip((delta - hurdle) / sd, -8.0, 8.0)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return np.asarray(np.maximum(0.0, delta * normal_cdf(z) + sd * density))


def normal_cdf(z: Floats) -> Floats:
    """Phi(z); absolute error below 3e-4 (Page, Applied Statistics 26, 1977)."""
    return np.asarray(0.5 * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))))


def _together(prospect: Prospect, variance: Floats) -> Floats:
    """Variance of log E by hidden positions, whose acceptance moves together, sizes x arms."""
    moves = np.einsum("gaj,aj,j->ga", prospect.hidden, prospect.gradient, np.sqrt(variance))
    return np.asarray(moves**2)


def present_share(shares: Floats, sizes: Sequence[float], batch_size: float) -> Floats:
    """Shares of decode time, halved with every octave from the present batch size.

    When the load is there, the arm can be timed there, which says more.
    """
    distance = np.abs(np.log2(np.asarray(sizes) / max(1.0, batch_size)))
    return np.asarray(shares * 2.0**-distance)
