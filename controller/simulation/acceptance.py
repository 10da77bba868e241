"""How often drafts are accepted in the simulated engine: by position, over time.

The draft at position j is accepted with probability p_j if all before it were.  So the survival is
S(j) = p_1 * ... * p_j and a step at depth k emits E[tokens] = 1 + S(1) + ... + S(k) tokens per request.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AfterOff:
    """What each p_j of a request is multiplied by once its draft model was left behind, 0..1.

    The defaults are what a small pair with learned weights showed on the real engine and in PyTorch
    (docs/results/after-cold.md), at the lower edge; a draft that leans more on its own attention may lose
    more: `CAUTIOUS`.
    """

    first_step: float = 0.0
    """In the first step that drafts again.  Its drafts are left over from before the spell, so none fits the
    text: the mechanism, whatever the model."""
    cold: float = 0.99
    """From the second one on, until the request ends: the draft's KV cache has a hole (0.99 to 1.05)."""
    frozen: float = 0.97
    """The same for a request that was prefilled while frozen: its prompt is missing too (0.97 to 0.99)."""

    def factors(self) -> tuple[float, float, float, float]:
        """By `Harm`."""
        return 1.0, self.cold, self.frozen, self.first_step


CAUTIOUS = AfterOff(cold=0.5, frozen=0.5)
"""An assumption, for stress: every p_j halved until the request ends."""
AFTER_OFF = {"measured": AfterOff(), "cautious": CAUTIOUS}


class Harm(IntEnum):
    """What going off without the draft model has done to a request."""

    NONE = 0
    COLD = 1
    FROZEN = 2
    STALE = 3
    """Its drafts are left over from before: nothing has drafted or kept the draft's cache since."""


@dataclass(frozen=True, slots=True)
class Phase:
    """From `start_s` on, position j is accepted with `positions[j - 1]`; the last one repeats."""

    start_s: float
    positions: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Phases in order, the first at 0 s; with `period_s` they start again after that time."""

    phases: tuple[Phase, ...]
    period_s: float | None = None

    def at(self, now_s: float) -> Phase:
        """The phase in force at `now_s`."""
        inside = now_s % self.period_s if self.period_s else now_s
        return next((p for p in reversed(self.phases) if p.start_s <= inside), self.phases[0])

    def next_change_s(self, now_s: float) -> float:
        """The first time after `now_s` at which another phase begins; infinity when there is none."""
        cycle = math.floor(now_s / self.period_s) * self.period_s if self.period_s else 0.0
        starts = [cycle + phase.start_s for phase in self.phases[1:]]
        if self.period_s:
            starts.append(cycle + self.period_s)
        return min((start for start in starts if start > now_s), default=math.inf)


def parse_acceptance(text: str) -> Acceptance:
    """Read `0.745`, `0.8/0.7/0.6` (by position) or `0.745@0,0.366@300` (from these seconds on).

    A trailing `...` repeats the phases: `0.745@0,0.366@300,...` changes every 300 s.  Raises `ValueError`.
    """
    parts = [part.strip() for part in text.split(",")]
    repeats = parts[-1] == "..."
    phases = tuple(_phase(part) for part in (parts[:-1] if repeats else parts))
    starts = [phase.start_s for phase in phases]
    if not starts or starts[0] != 0 or any(b <= a for a, b in itertools.pairwise(starts)):
        raise ValueError(f"acceptance phases must start at 0 s and ascend strictly, got {text!r}")
    if not repeats:
        return Acceptance(phases)
    if len(starts) < 2:
        raise ValueError(f"acceptance needs two phases to repeat, e.g. 0.7@0,0.4@300,... got {text!r}")
    return Acceptance(phases, period_s=starts[-1] + (starts[-1] - starts[-2]))


def _phase(text: str) -> Phase:
    value, _, start = text.partition("@")
    try:
        positions = tuple(float(part) for part in value.split("/"))
        start_s = float(start or 0)
    except ValueError:
        raise ValueError(f"acceptance must be P, P/P/... or P@SECONDS, got {text!r}") from None
    if not all(0 <= p <= 1 for p in positions) or not 0 <= start_s < math.inf:
        raise ValueError(f"acceptance must be probabilities 0..1 and seconds >= 0, got {text!r}")
    return Phase(start_s, positions)


def survival(positions: tuple[float, ...], max_depth: int, factor: float = 1.0) -> Floats:
    """S(1..max_depth): the probability that at least j drafts are accepted."""
    tail = positions[-1:] * max(0, max_depth - len(positions))
    conditional = np.array((*positions, *tail)[:max_depth], dtype=np.float64) * factor
    return np.asarray(np.cumprod(conditional), dtype=np.float64)


def expected_tokens(survived: Floats) -> Floats:
    """E[tokens] per request and step at depth 0..len(survived), bonus token included."""
    return np.asarray(1.0 + np.concatenate(([0.0], np.cumsum(survived))), dtype=np.float64)
