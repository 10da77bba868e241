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

Requests that lived through a cold step draft badly; they are kept in a curve of their own and never
mixed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.drift import ChangeRate, Cusum, DriftParams
from policies.soundness import MAX_DEPTH, finite
from policies.types import CellDelta

Floats = npt.NDArray[np.float64]

UNIFORM_VARIANCE = 1.0 / 12.0
FRESH_REQUEST_STEPS = 20.0


@dataclass(frozen=True, slots=True)
class AcceptanceParams:
    """How long acceptance is remembered.  Old counts fade only when both memories are exceeded."""

    memory_request_steps: float = 4000.0
    """Half-life in exposed request-steps: bounds the statistical error at low load."""
    memory_s: float = 30.0
    """Half-life in seconds: a full batch must not forget within a fraction of a second."""
    recent_s: float = 1.0
    """Half-life of the short memory that replaces the long one at a drift alarm."""
    prior_strength: float = 4.0
    """Weight of the prior of a position, in request-steps."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for memories that are not positive."""
        for name in ("memory_request_steps", "memory_s", "recent_s", "prior_strength"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)!r}")


@dataclass(slots=True)
class Counts:
    """Exponentially forgotten counts per draft position (index 0 is draft 1)."""

    hits: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)

    def grow(self, size: int) -> None:
        """Make room for `size` positions."""
        missing = size - len(self.hits)
        self.hits.extend([0.0] * missing)
        self.exposed.extend([0.0] * missing)

    def add(
        self, hits: Sequence[float], exposed: Sequence[float], dt_s: float, half: tuple[float, float]
    ) -> None:
        """Fade by the slower of the two half-lives (request-steps, seconds), then add."""
        self.grow(len(hits))
        half_steps, half_s = half
        fade_s = 2.0 ** (-dt_s / half_s)
        for j, (h, n) in enumerate(zip(hits, exposed, strict=True)):
            if n <= 0 and half_steps:
                continue
            fade = max(fade_s, 2.0 ** (-n / half_steps)) if half_steps else fade_s
            self.hits[j] = self.hits[j] * fade + h
            self.exposed[j] = self.exposed[j] * fade + n


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
    """The learned survival curve, with its errors, its drift alarm and the rate at which it drifts."""

    def __init__(self, params: AcceptanceParams | None = None, drift: DriftParams | None = None) -> None:
        self.params = params or AcceptanceParams()
        self.clean = Counts()
        self.cold = Counts()
        self.changes = ChangeRate()
        self.dispersion = 1.0
        self.alarms = 0
        self._recent = Counts()
        self._since_s: list[float] = []
        self._cusum = Cusum(drift or DriftParams())

    def observe(self, cells: Iterable[CellDelta], dt_s: float) -> bool:
        """Learn from one tick of `dt_s` seconds; `True` when acceptance left what was learned."""
        drafting = [cell for cell in cells if cell.arm.depth > 0]
        depths = [cell.arm.depth for cell in drafting]
        hits, exposed = exposure([cell.accepted for cell in drafting], depths)
        self._since_s = [since + dt_s for since in self._since_s] + [0.0] * (len(hits) - len(self._since_s))
        alarm = self._watch(hits, exposed, dt_s)
        self._discount_unwatched(exposed)
        p = self.params
        self.clean.add(hits, exposed, dt_s, (p.memory_request_steps, p.memory_s))
        self._recent.add(hits, exposed, dt_s, (0.0, p.recent_s))
        if alarm:
            self._restart()
        cold_hits, cold_exposed = exposure([cell.accepted_after_cold for cell in drafting], depths)
        self.cold.add(cold_hits, cold_exposed, dt_s, (p.memory_request_steps, 10 * p.memory_s))
        return alarm

    def conditional(self, positions: int) -> tuple[Floats, Floats]:
        """Means and variances of p_1..p_positions, the errors widened by what may have changed since."""
        means, variances = np.empty(positions), np.empty(positions)
        prior, strength = 0.5, self.params.prior_strength
        for j in range(positions):
            h, n = self._at(j)
            n_eff = n / self.dispersion
            mean = (h / self.dispersion + prior * strength) / (n_eff + strength)
            spread = mean * (1 - mean) / (n_eff + strength + 1)
            changed = 1.0 - math.exp(-self.changes.per_s * self._age_s(j))
            means[j] = mean
            variances[j] = (1 - changed) * spread + changed * UNIFORM_VARIANCE
            prior = mean
        return means, variances

    def after_cold(self, positions: int) -> Floats:
        """p_1..p_positions for requests that lived through a cold step; until seen: nothing accepted."""
        self.cold.grow(positions)
        pairs = list(zip(self.cold.hits, self.cold.exposed, strict=True))[:positions]
        return np.array([h / (n + self.params.prior_strength) for h, n in pairs])

    @property
    def staleness(self) -> float:
        """Chance that acceptance has changed since the first draft was last seen, 0..1."""
        return 1.0 - math.exp(-self.changes.per_s * self._age_s(0))

    def exposed(self, position: int) -> float:
        """Remembered request-steps that were exposed to draft `position` (1 is the first)."""
        return self._at(position - 1)[1]

    def _at(self, j: int) -> tuple[float, float]:
        return (self.clean.hits[j], self.clean.exposed[j]) if j < len(self.clean.hits) else (0.0, 0.0)

    def _age_s(self, j: int) -> float:
        return self._since_s[j] if j < len(self._since_s) else 0.0

    def _discount_unwatched(self, exposed: Sequence[float]) -> None:
        """Weigh what is remembered by its present error before new counts join it.

        What was seen long ago may have changed unseen; a few fresh counts must then outweigh it.
        """
        means, variances = (x.tolist() for x in self.conditional(len(exposed)))
        for j in range(min(len(exposed), len(self.clean.hits))):
            if exposed[j] <= 0:
                continue
            worth = self.dispersion * means[j] * (1 - means[j]) / variances[j]
            keep = min(1.0, worth / max(1.0, self.clean.exposed[j]))
            self.clean.hits[j] *= keep
            self.clean.exposed[j] *= keep
            self._since_s[j] *= 0.5 ** (exposed[j] / FRESH_REQUEST_STEPS)

    def _watch(self, hits: Sequence[float], exposed: Sequence[float], dt_s: float) -> bool:
        if not exposed or exposed[0] < 1:
            return False
        self.changes.watch(dt_s)
        known = [j for j in range(len(hits)) if self._at(j)[1] > FRESH_REQUEST_STEPS]
        if not known:
            return False
        means, variances = (x.tolist() for x in self.conditional(len(hits)))
        surprise = sum(hits[j] - means[j] * exposed[j] for j in known)
        tossing = sum(means[j] * (1 - means[j]) * exposed[j] for j in known) + 0.25
        learning = sum(exposed[j] ** 2 * variances[j] for j in known)
        alarm = self._cusum.update(surprise / math.sqrt(self.dispersion * tossing + learning))
        squared = min(25.0, surprise**2 / (tossing + learning / self.dispersion))
        self.dispersion = max(1.0, self.dispersion + 0.02 * (squared - self.dispersion))
        return alarm

    def _restart(self) -> None:
        """The long memory is wrong: go on with the short one; what it did not see starts afresh."""
        self.alarms += 1
        self.changes.alarm()
        self.clean = Counts(list(self._recent.hits), list(self._recent.exposed))

    def export_state(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "hits": list(self.clean.hits), "exposed": list(self.clean.exposed),
            "cold_hits": list(self.cold.hits), "cold_exposed": list(self.cold.exposed),
            "dispersion": self.dispersion,
            "alarms": self.changes.alarms, "watched_s": self.changes.watched_s,
        }  # fmt: skip

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        clean = read_counts(state, "hits", "exposed")
        cold = read_counts(state, "cold_hits", "cold_exposed")
        scalars = [read_number(state, name, low) for name, low in _SCALARS]
        self.clean, self.cold = clean, cold
        self._since_s = [0.0] * len(clean.hits)
        self.dispersion, self.changes.alarms, self.changes.watched_s = scalars


_SCALARS = (("dispersion", 1.0), ("alarms", 0.0), ("watched_s", 1.0))


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
