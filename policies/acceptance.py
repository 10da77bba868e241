"""How many drafts will be accepted: the survival curve of a draft chain, learned from censored counts.

A request-step at depth k tells how many of k drafts were accepted; "all k" only says "at least k".  On
a chain, draft j can be accepted only if j-1 was, so the natural parameters are the conditional
acceptances, each estimated from the request-steps that got that far (the Kaplan-Meier product-limit
estimator, J. Am. Stat. Assoc. 53, 1958):

    p_j = P(draft j accepted | drafts 1..j-1 accepted) = accepted at least j / exposed to j
    S(j) = p_1 ... p_j            E(k) = 1 + S(1) + ... + S(k)   tokens per request-step

A run at depth 3 so informs depths 1 and 2 as well; a run at depth 1 says nothing about p_2, whose prior
then is p_1 with a wide error.

Requests in one batch are not independent (a prompt is easy or hard as a whole): the counts vary more
from tick to tick than coin tosses would.  The excess is measured (quasi-binomial dispersion: the mean
squared standardised residual) and divides the effective sample size.

Requests that lived through a cold step may draft badly; they are never mixed in (`gears.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.bounds import Positive, check_bounds
from policies.drift import ChangeRate
from policies.regimes import BRIEF_TICKS, LEAST_SHIFT, MAX_REGIMES, Counts, Regimes, Tick
from policies.soundness import MAX_DEPTH, finite
from policies.types import CellDelta

Floats = npt.NDArray[np.float64]

UNIFORM_VARIANCE = 1.0 / 12.0
UNREST_TICKS, MAX_UNREST = 230.0, 64.0
"""Half-life of the caution that brief regimes teach, and its bound."""
FRESH_REQUEST_STEPS = 20.0


@dataclass(frozen=True, slots=True)
class AcceptanceParams:
    """How long acceptance is remembered.  Old counts fade only when both memories are exceeded."""

    memory_request_steps: Positive = 4000.0
    """Half-life in exposed request-steps: bounds the statistical error at low load."""
    memory_s: Positive = 30.0
    """Half-life in seconds: a full batch must not forget within a fraction of a second."""
    prior_strength: Positive = 4.0
    """Weight of the prior of a position, in request-steps."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for memories that are not positive."""
        check_bounds(self)


def exposure(histograms: Iterable[Sequence[float]], depths: Iterable[int]) -> tuple[list[float], list[float]]:
    """Hits and exposures per position from histograms of accepted drafts, each run at its depth."""
    hits: list[float] = []
    exposed: list[float] = []
    for histogram, depth in zip(histograms, depths, strict=True):
        if len(hits) < depth:
            hits.extend([0.0] * (depth - len(hits)))
            exposed.extend([0.0] * (depth - len(exposed)))
        at_least = 0.0
        for i in range(len(histogram) - 1, -1, -1):
            if i < depth:
                exposed[i] += at_least + histogram[i]
                hits[i] += at_least
            at_least += histogram[i]
    return hits, exposed


class Survival:
    """The learned survival curve, with its errors, its change points and the rate at which it changes."""

    def __init__(self, params: AcceptanceParams | None = None) -> None:
        self.params = params or AcceptanceParams()
        self.regimes = Regimes()
        self.changes = ChangeRate()
        self.dispersion = 1.0
        self.alarms = 0
        self.unrest = 1.0
        """By how much less the counts of a tick are believed, for brief regimes were taken for changes."""
        self._since_s: list[float] = []
        self._unwatched_s = 0.0
        self._known: tuple[int, Floats, Floats, Floats] | None = None

    def observe(self, cells: Iterable[CellDelta], dt_s: float) -> bool:
        """Learn from one tick of `dt_s` seconds; `True` when acceptance left what was learned."""
        drafting = [cell for cell in cells if cell.arm.depth > 0]
        depths = [cell.arm.depth for cell in drafting]
        hits, exposed = exposure([cell.accepted for cell in drafting], depths)
        self._since_s = [since + dt_s for since in self._since_s] + [0.0] * (len(hits) - len(self._since_s))
        self._unwatched_s += dt_s
        alarm = bool(exposed) and exposed[0] >= 1 and self._watch(hits, exposed, dt_s)
        self._known = None
        return alarm

    def _watch(self, hits: Sequence[float], exposed: Sequence[float], dt_s: float) -> bool:
        """Learn from a tick with drafts; `True`: a change."""
        p = self.params
        means = self._watch_dispersion(hits, exposed)
        doubt = self.dispersion * self.unrest
        scale = [
            doubt + LEAST_SHIFT**2 * n / max(1e-3, m * (1 - m)) for m, n in zip(means, exposed, strict=True)
        ]
        tick = Tick(hits, exposed, scale, p.prior_strength, doubt)
        changed = 1.0 - math.exp(-self.changes.per_s * self._unwatched_s)
        ended = self.regimes.observe(tick, dt_s, (p.memory_request_steps, p.memory_s), changed)
        brief = ended and self.regimes.lasted_ticks < BRIEF_TICKS
        calmed = 1.0 + (self.unrest - 1.0) * 2.0 ** (-1.0 / UNREST_TICKS)
        self.unrest = min(MAX_UNREST, 2.0 * self.unrest) if brief else calmed
        alarm = ended and not brief
        self.changes.watch(self._unwatched_s)
        self._unwatched_s = 0.0
        for j, n in enumerate(exposed):
            self._since_s[j] *= 0.5 ** (n / FRESH_REQUEST_STEPS)
        if alarm:
            self.alarms += 1
            self.changes.alarm()
        return alarm

    def _watch_dispersion(self, hits: Sequence[float], exposed: Sequence[float]) -> list[float]:
        """Learn how much more than coin tosses the counts of a tick scatter; returns the p expected."""
        means, variances = (x.tolist() for x in self.conditional(len(hits)))
        known = [j for j in range(len(hits)) if self.exposed(j + 1) > FRESH_REQUEST_STEPS]
        if known:
            surprise = sum(hits[j] - means[j] * exposed[j] for j in known)
            tossing = sum(means[j] * (1 - means[j]) * exposed[j] for j in known) + 0.25
            learning = sum(exposed[j] ** 2 * variances[j] for j in known)
            squared = min(25.0, surprise**2 / (tossing + learning / self.dispersion))
            self.dispersion = max(1.0, self.dispersion + 0.02 * (squared - self.dispersion))
        return list(means)

    def conditional(self, positions: int) -> tuple[Floats, Floats]:
        """Means and variances of p_1..p_positions, the errors widened by what may have changed since."""
        means, _, widened = self._mixture(positions)
        return means, widened

    def last_seen(self, positions: int) -> tuple[Floats, Floats]:
        """The same as when each was last seen: without what may have changed since."""
        means, variances, _ = self._mixture(positions)
        return means, variances

    def _mixture(self, positions: int) -> tuple[Floats, Floats, Floats]:
        if self._known is None or self._known[0] < positions:
            self._known = (positions, *self._mixed(positions))
        _, means, variances, widened = self._known
        return means[:positions], variances[:positions], widened[:positions]

    def _mixed(self, positions: int) -> tuple[Floats, Floats, Floats]:
        """The mixture of all runs: its mean, its variance with that between runs, and that widened."""
        weights = np.array([run.weight for run in self.regimes.runs])
        weights /= weights.sum()
        each = np.array([self._posterior(run.counts, positions) for run in self.regimes.runs])
        means = weights @ each[:, 0]
        variances = weights @ (each[:, 1] + (each[:, 0] - means) ** 2)
        changed = 1.0 - np.exp(-self.changes.per_s * np.array([self._age_s(j) for j in range(positions)]))
        return means, variances, (1 - changed) * variances + changed * UNIFORM_VARIANCE

    def _posterior(self, counts: Counts, positions: int) -> tuple[list[float], list[float]]:
        """Means and variances under one run."""
        means, spreads = [], []
        prior, strength = 0.5, self.params.prior_strength
        for j in range(positions):
            known = j < len(counts.hits)
            h, n = (counts.hits[j], counts.exposed[j]) if known else (0.0, 0.0)
            n_eff = n / self.dispersion
            prior = (h / self.dispersion + prior * strength) / (n_eff + strength)
            means.append(prior)
            spreads.append(prior * (1 - prior) / (n_eff + strength + 1))
        return means, spreads

    @property
    def staleness(self) -> float:
        """Chance that acceptance has changed since the first draft was last seen, 0..1."""
        return 1.0 - math.exp(-self.changes.per_s * self._age_s(0))

    def exposed(self, position: int) -> float:
        """Remembered request-steps since the latest change, exposed to draft `position` (1: the first)."""
        known = self.regimes.settled.exposed
        return known[position - 1] if position <= len(known) else 0.0

    def _age_s(self, j: int) -> float:
        return self._since_s[j] if j < len(self._since_s) else 0.0

    def export_state(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "hits": list(self.regimes.settled.hits), "exposed": list(self.regimes.settled.exposed),
            "past": [{"hits": list(c.hits), "exposed": list(c.exposed)} for c in self.regimes.past],
            "dispersion": self.dispersion,
            "alarms": self.changes.alarms, "watched_s": self.changes.watched_s,
        }  # fmt: skip

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        clean = read_counts(state, "hits", "exposed")
        past = [read_counts(known, "hits", "exposed") for known in _read_past(state)]
        scalars = [read_number(state, name, low) for name, low in _SCALARS]
        self.regimes.restore(clean, past)
        self._known = None
        self._since_s = [0.0] * len(clean.hits)
        self.dispersion, self.changes.alarms, self.changes.watched_s = scalars


_SCALARS = (("dispersion", 1.0), ("alarms", 0.0), ("watched_s", 1.0))


def _read_past(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    past = state.get("past")
    if not isinstance(past, list) or len(past) > MAX_REGIMES or not all(isinstance(c, Mapping) for c in past):
        raise ValueError(f"past must be a list of at most {MAX_REGIMES} objects, got {past!r:.80}")
    return past


def read_number(state: Mapping[str, Any], name: str, low: float = 0.0) -> float:
    """`state[name]`, a number >= `low`; raises `ValueError` otherwise."""
    value = finite(state.get(name), low)
    if value is None:
        raise ValueError(f"{name} must be a number >= {low:g}, got {state.get(name)!r}")
    return value


def read_counts(state: Mapping[str, Any], hits_name: str, exposed_name: str) -> Counts:
    """Two lists of equal length with 0 <= hits <= exposed; raises `ValueError` otherwise."""
    hits, exposed = state.get(hits_name), state.get(exposed_name)
    for name, values in ((hits_name, hits), (exposed_name, exposed)):
        if not isinstance(values, list) or len(values) > MAX_DEPTH or any(finite(v) is None for v in values):
            raise ValueError(f"{name} must be a list of at most {MAX_DEPTH} counts, got {values!r}")
    assert isinstance(hits, list)  # noqa: S101  (checked above)
    assert isinstance(exposed, list)  # noqa: S101
    if len(hits) != len(exposed) or any(h > n for h, n in zip(hits, exposed, strict=True)):
        raise ValueError(f"{hits_name} must not exceed {exposed_name}, got {hits!r} of {exposed!r}")
    return Counts([float(h) for h in hits], [float(n) for n in exposed])


@dataclass(frozen=True, slots=True)
class Yield:
    """Expected tokens per request-step of each depth, and how it depends on each p_j."""

    log_tokens: Floats
    """log E(k), one per depth."""
    gradient: Floats
    """d log E(k) / d p_j, depths x positions."""
    variance: Floats
    """Variance of each p_j."""

    def difference_variance(self, i: npt.NDArray[np.intp]) -> Floats:
        """Var(log E(a) - log E(i[g])): len(i) x depths.  Arms share p_j, so shared error cancels."""
        delta = self.gradient[None, :, :] - self.gradient[i][:, None, :]
        return np.asarray((delta**2) @ self.variance)


def expected_tokens(p: Floats, depth: int) -> float:
    """E(depth) = 1 + S(1) + ... + S(depth)."""
    return float(1.0 + np.cumprod(p[:depth]).sum())


def yields(p: Floats, variance: Floats, depths: Sequence[int]) -> Yield:
    """`Yield` of each depth; delta method for the gradient: dS(i)/dp_j = S(i) / p_j for i >= j."""
    p = np.maximum(p, 1e-9)
    survival = np.cumprod(p)
    tokens = np.array([1.0 + survival[:k].sum() for k in depths])
    gradient = np.zeros((len(depths), len(p)))
    for row, k in enumerate(depths):
        if k:
            tail = np.cumsum(survival[:k][::-1])[::-1]
            gradient[row, :k] = tail / p[:k] / tokens[row]
    return Yield(np.log(tokens), gradient, variance)
