"""What prefills add to the time of a decode step, and what of it frozen spares: learned from their intervals.

Plain words: prefills stand between decode steps.  What they cost beside their tokens they cost once for
every step that they stand behind, whether one request arrived during it or three.  So a longer step that
brings more tokens pays it less often for the same requests, and where requests come as often as steps end,
that decides: off may decode faster and yet emit less.

The maths: an interval between two decode results that holds prefills is longer than its step by

    F + w * x - s * z

for x prefilled tokens and, while frozen, z prefilled requests: F for each such interval (a *spell*), w for
each token, and s is what the draft model's prefill takes for a request, which frozen spares.  With r requests
that arrive per emitted token (one over what a request emits), a step of m tokens sees r * m arrivals,
Poisson, so it is followed by a spell with

    P(m) = 1 - exp(-r * m)

That holds where the batch is held at its size, by clients that send their next request when the last one is
answered, or by a queue.  Where requests come by themselves, a faster arm has a smaller batch and as many
prefills, and nothing is spared.  Which of the two it is shows in the batch: of requests that come and go by
themselves, k in a tick and as many that end, its mean over a tick differs from that of the next with a
variance of 4/3 k; held, it hardly moves.  And where requests come in bursts, fewer steps are followed by
spells than P says.  F counts as far as the batch is held and spells are as frequent as that.

F, w and s are fitted by least squares of relative errors over ticks (long prefills scatter more), s with what
is believed before; F counts less two standard errors.  Where prompts fill whole batches, the intervals cannot
tell F from the tokens, and nothing is claimed.  On an H200 (8B shape, prompts of 200 tokens) F was 11 ms and
w * 200 tokens 2.4 ms in 225 windows of closed loops, and with them 52 of 80 measured arms were met within 5 %
(docs/results/h200-governed.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.acceptance import read_number
from policies.soundness import finite
from policies.types import CellDelta, Gear

Floats = npt.NDArray[np.float64]

MEMORY_SPELLS = 3000.0
"""Half-life of what intervals tell, in spells."""
LEAST_TICKS = 5.0
"""Below so many ticks with spells nothing is said of F."""
DOUBT = 2.0
"""Standard errors of F that are taken off it."""
PRIOR_SPARED = 0.1
"""s, in steps of the shortest kind that occurs, give or take as much.  On an H200 it was a thirtieth to a
sixth of a step."""
WIDE_S = 1.0
"""Standard deviation of F before anything was seen, in s, and of w, in s per token."""
LEAST_VARIANCE = 1e-4
"""Of relative errors: a tick is not believed to tell more than 1 %."""
PRIOR_TOKENS = 1000.0
"""As if so many had been emitted without a request."""
PRIOR_MOVES = 40.0
"""As if so many requests had come and gone by themselves."""
MEMORY_MOVES = 300.0
"""Half-life of how far the batch is held, in requests."""
CLIPPED = 0.516
"""E[min(1, X^2)] of a standard normal X: a single move counts for no more than is usual, or one change of the
load would outweigh a minute."""

StepTime = Callable[[CellDelta], float | None]
"""Seconds of a step of a cell; `None`: not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What an interval with prefills is longer by, beside their tokens, in s."""

    per_spell_s: float
    """F, ..."""
    error_s: float
    """... its standard error, ..."""
    spared_s: float
    """... and s, for each request, >= 0."""

    @property
    def surely_s(self) -> float:
        """As much of F as is sure, >= 0."""
        return max(0.0, self.per_spell_s - DOUBT * self.error_s)


@dataclass(slots=True)
class Held:
    """How far the batch is held at its size by what waits behind it."""

    moved: float = 0.0
    """Squared moves of the mean batch from tick to tick, ..."""
    free: float = 0.0
    """... and what they were if requests came and went by themselves."""
    batch: float = 0.0
    """Mean of the latest tick; 0: there was none."""

    def observe(self, batch: float, requests: float) -> None:
        """The mean batch of a tick in which so many requests came."""
        before, self.batch = self.batch, batch
        if before <= 0 or batch <= 0 or requests <= 0:
            return
        fade, free = 2.0 ** (-requests / MEMORY_MOVES), 4.0 / 3.0 * requests
        self.moved = self.moved * fade + min(free, (batch - before) ** 2)
        self.free = self.free * fade + CLIPPED * free

    @property
    def share(self) -> float:
        """0: not at all, or nothing was seen; 1: as good as always."""
        return max(0.0, 1.0 - (self.moved + PRIOR_MOVES) / (self.free + PRIOR_MOVES))


@dataclass(slots=True)
class PrefillCost:
    """All sums are forgotten with the spells."""

    gram: Floats = field(default_factory=lambda: np.zeros((4, 4)))
    """Products, summed over ticks, of spells, prefilled tokens, minus requests prefilled while frozen, and
    seconds beyond the steps; each divided by the seconds that the intervals took."""
    ticks: float = 0.0
    requests: float = 0.0
    """Prefilled, ..."""
    tokens: float = 0.0
    """... emitted meanwhile, ..."""
    spells: float = 0.0
    """... spells, ..."""
    expected: float = 0.0
    """... and what they were if requests came as evenly as tokens are emitted."""
    held: Held = field(default_factory=Held)

    def observe(self, cells: Sequence[CellDelta], step_s: StepTime) -> None:
        """Take the sound cells of one tick."""
        steps = sum(cell.steps for cell in cells)
        requests = sum(cell.prefilled_requests for cell in cells)
        self.held.observe(sum(cell.request_steps for cell in cells) / steps if steps else 0.0, requests)
        spells = sum(cell.prefill_spells for cell in cells)
        self._forget(spells)
        self.spells += spells
        self.requests += requests
        self.tokens += sum(cell.tokens for cell in cells)
        self.expected += sum(
            cell.steps * self._follows(cell.tokens / cell.steps) for cell in cells if cell.steps
        )
        seen = _shares(cells, step_s) if spells else None
        if seen is not None:
            self.gram += np.outer(seen, seen)
            self.ticks += 1.0

    def _forget(self, spells: float) -> None:
        fade = 2.0 ** (-spells / MEMORY_SPELLS)
        self.gram *= fade
        for name in _SUMS:
            setattr(self, name, getattr(self, name) * fade)

    def arrivals(self, tokens: Any) -> Any:
        """Requests that come while so many tokens are emitted: their mean."""
        return self.requests / (self.tokens + PRIOR_TOKENS) * tokens

    def _follows(self, tokens: Any) -> Any:
        """P: how often a spell follows a step of so many tokens, if requests come as evenly as these."""
        return -np.expm1(-self.arrivals(tokens))

    def fit(self, step_s: float) -> Fit:
        """What the intervals tell; `step_s`: the shortest step that occurs, in s."""
        believed_s = PRIOR_SPARED * step_s
        matrix, target, squares = self.gram[:3, :3], self.gram[:3, 3], self.gram[3, 3]
        if self.ticks < LEAST_TICKS or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
            return Fit(0.0, 0.0, believed_s)
        unit = 1.0 / np.sqrt(np.diag(matrix) + np.array([0.0, 0.0, matrix[0, 0]]))  # all of the order of one
        matrix, target = matrix * np.outer(unit, unit), target * unit
        left = squares - target @ np.linalg.lstsq(matrix, target)[0]
        variance = max(LEAST_VARIANCE, left / (self.ticks - 2.0))
        prior = (unit / [WIDE_S, WIDE_S, believed_s]) ** 2
        covariance = np.linalg.inv(matrix / variance + np.diag(prior))
        mean = covariance @ (target / variance + prior * [0.0, 0.0, believed_s] / unit)
        values, errors = mean * unit, np.sqrt(np.diag(covariance)) * unit
        return Fit(float(values[0]), float(errors[0]), max(0.0, float(values[2])))

    def amortized_s(self, tokens: Floats, fit: Fit) -> Floats:
        """Seconds that spells add to a step of so many tokens, beyond those of the arm that pays least.

        Last axis: arms; least by emitted token.  Prefilled tokens cost the same under every arm, and so does
        the least of what spells do: left out, differences between arms stay relative to decoding.
        """
        follows = self._follows(tokens)
        least = (follows / tokens).min(axis=-1, keepdims=True) * tokens
        even = min(1.0, self.spells / self.expected) if self.expected > 0 else 0.0
        return np.asarray(self.held.share * even * fit.surely_s * (follows - least))

    def export_state(self) -> dict[str, Any]:
        """JSON-ready."""
        sums = {name: getattr(self, name) for name in (*_SUMS, "ticks")}
        held = {name: getattr(self.held, name) for name in Held.__slots__}
        return {"gram": self.gram.tolist(), **sums, **held}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field, and then has taken over nothing."""
        sums = {name: read_number(state, name) for name in (*_SUMS, "ticks")}
        held = Held(**{name: read_number(state, name) for name in Held.__slots__})
        self.gram, self.held = _read_gram(state.get("gram")), held
        for name, value in sums.items():
            setattr(self, name, value)


_SUMS = ("requests", "tokens", "spells", "expected")


def _shares(cells: Iterable[CellDelta], step_s: StepTime) -> Floats | None:
    """A row of `gram`; `None` where the time of a step is not known."""
    with_prefills = [cell for cell in cells if cell.skipped_prefill]
    seconds = sum(cell.skipped_prefill_seconds for cell in with_prefills)
    steps_s = 0.0
    for cell in with_prefills:
        one_s = step_s(cell)
        if one_s is None:
            return None
        steps_s += cell.skipped_prefill * one_s
    if seconds <= 0:
        return None
    spells = sum(cell.prefill_spells for cell in with_prefills)
    frozen = sum(cell.prefilled_requests for cell in with_prefills if cell.arm.gear is Gear.FROZEN)
    tokens = sum(cell.prefilled_tokens for cell in with_prefills)
    return np.array([spells, tokens, -frozen, seconds - steps_s]) / seconds


def _read_gram(value: object) -> Floats:
    """A sum of outer products: symmetric, no negative eigenvalue."""
    rule = "gram must be a symmetric 4 x 4 matrix of numbers without negative eigenvalues"
    rows = value if isinstance(value, list) else []
    if len(rows) != 4 or any(not isinstance(row, list) or len(row) != 4 for row in rows):
        raise ValueError(f"{rule}, got {value!r:.60}")
    if any(finite(number, -1e15, 1e15) is None for row in rows for number in row):
        raise ValueError(f"{rule}, got {value!r:.60}")
    gram = np.array(rows, dtype=np.float64)
    if not np.allclose(gram, gram.T) or np.linalg.eigvalsh(gram).min() < -1e-6 * np.trace(gram):
        raise ValueError(f"{rule}, got {value!r:.60}")
    return gram
