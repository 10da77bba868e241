"""What governing brought: tokens emitted against what one fixed choice would have emitted meanwhile.

Pure.  The counterfactual is measured, not modelled.  At batch bucket `b`, arm `a` ran at

    v(b, a) = (tokens / request-steps) / (timed seconds / timed steps)

tokens per second and request, from every step that it ever ran there, probes included.  In a turn that
spent `t` seconds of decoding in bucket `b` at a mean batch size of `m`, the reference would have emitted
`t * m * v(b, reference)` tokens.  Only time in buckets where the reference was measured is counted, on
both sides of the comparison.

The error adds up linearly, since all turns in a bucket share one estimate: it bounds, it does not average.
What it cannot see.  Where the reference never ran nothing is claimed, and a policy that is sure does not
run what is worse: what is left are the batch sizes at which the choice is close, which say little of the
whole.  `Benefit.share` says of how much.  And with a slower choice, requests would have piled up and the
batch would have been larger; the comparison holds the batch as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policies.types import Arm, CellDelta

LEAST_STEPS = 20
"""Timed steps below which an arm does not count as measured in a bucket."""
FORGET_S = 6 * 3600.0
"""Decode seconds after which a bucket's old steps weigh 1/e: models, drafts and traffic change."""
SURE = 2.0
"""Standard errors by which an arm must be faster to count as the better choice that was missed."""


class Reference(StrEnum):
    """What is compared against."""

    ALWAYS_OFF = "always_off"
    """Depth 0, in the gear that was fastest there."""
    ALWAYS_ON = "always_on"
    """The deepest built depth."""
    BEST_MEASURED = "best_measured"
    """In each bucket the arm that is surely the fastest; against it, governing can only lose: regret."""


@dataclass(slots=True)
class Ran:
    """What one arm did in one bucket, old steps fading."""

    steps: float = 0.0
    tokens: float = 0.0
    request_steps: float = 0.0
    accepted: float = 0.0
    accepted_sq: float = 0.0
    timed_steps: float = 0.0
    timed_seconds: float = 0.0
    timed_seconds_sq: float = 0.0

    def fade(self, keep: float) -> None:
        """Weigh what is there by `keep`."""
        for name in Ran.__slots__:
            setattr(self, name, getattr(self, name) * keep)

    def add(self, cell: CellDelta) -> None:
        """Count `cell`."""
        counts = [a + b for a, b in zip(cell.accepted, cell.accepted_after_cold, strict=True)]
        self.steps += cell.steps
        self.tokens += cell.tokens
        self.request_steps += cell.request_steps
        self.accepted += sum(i * n for i, n in enumerate(counts))
        self.accepted_sq += sum(i * i * n for i, n in enumerate(counts))
        self.timed_steps += cell.timed_steps
        self.timed_seconds += cell.timed_seconds
        self.timed_seconds_sq += cell.timed_seconds_sq

    @property
    def step_s(self) -> float | None:
        """Mean clean interval, s."""
        return self.timed_seconds / self.timed_steps if self.timed_steps >= 1 else None

    def speed(self, batch_size: float | None = None) -> Speed | None:
        """At `batch_size`, or at the mean that it ran at; `None` until measured well enough."""
        if self.timed_steps < LEAST_STEPS or self.steps <= 0 or self.tokens <= 0 or self.timed_seconds <= 0:
            return None
        if self.request_steps <= 0:
            return None
        mean_s = self.timed_seconds / self.timed_steps
        spread = max(0.0, self.timed_seconds_sq / self.timed_steps - mean_s**2)
        of_time = spread / (self.timed_steps * mean_s**2)
        requests = self.request_steps / self.steps if batch_size is None else batch_size
        tok_s = requests * (self.tokens / self.request_steps) / mean_s
        return Speed(tok_s, tok_s * math.sqrt(of_time + self._of_tokens()))

    def _of_tokens(self) -> float:
        """Relative variance of the mean of tokens per request and step (accepted drafts + 1)."""
        mean = self.accepted / self.request_steps
        spread = max(0.0, self.accepted_sq / self.request_steps - mean**2)
        return spread / (self.request_steps * (1 + mean) ** 2)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second and its standard error."""

    tok_s: float
    se_tok_s: float


@dataclass(slots=True)
class Balance:
    """Sums since the start, over the time in which the reference was known."""

    tokens: float = 0.0
    """Emitted."""
    reference_tokens: float = 0.0
    """What the reference would have emitted."""
    error_tokens: float = 0.0
    """Standard error of `reference_tokens`, added up linearly."""


@dataclass(slots=True)
class Benefit:
    """Takes every turn's cells and keeps the balances."""

    balances: dict[Reference, Balance] = field(
        default_factory=lambda: {each: Balance() for each in Reference}
    )
    emitted_tokens: float = 0.0
    """All tokens since the start, the reference known or not, governed or not."""
    _ran: dict[int, dict[Arm, Ran]] = field(default_factory=dict)

    def record(self, cells: Iterable[CellDelta], built: tuple[Arm, ...], *, governed: bool = True) -> None:
        """Account for one turn; `built` are the arms that the engine can run.

        What ran tells how fast it is, `governed` or not; only what ran while governed is compared.
        """
        by_bucket: dict[int, list[CellDelta]] = {}
        for cell in cells:
            if cell.steps > 0:
                self.emitted_tokens += cell.tokens
                by_bucket.setdefault(cell.batch_bucket, []).append(cell)
        for bucket, turn in by_bucket.items():
            ran = self._learn(bucket, turn)
            if governed:
                self._account(ran, turn, built)

    def share(self, reference: Reference) -> float | None:
        """Of all tokens, those that came while governed and whose batch bucket had the reference measured.

        `None`: there are no tokens.
        """
        return self.balances[reference].tokens / self.emitted_tokens if self.emitted_tokens else None

    def speeds(self, bucket: int) -> dict[Arm, Speed]:
        """What is known of each arm in a bucket."""
        found = {arm: ran.speed() for arm, ran in self._ran.get(bucket, {}).items()}
        return {arm: speed for arm, speed in found.items() if speed is not None}

    def buckets(self) -> list[int]:
        """Batch buckets in which something ran, ascending."""
        return sorted(self._ran)

    def _learn(self, bucket: int, turn: list[CellDelta]) -> dict[Arm, Ran]:
        ran = self._ran.setdefault(bucket, {})
        keep = math.exp(-sum(cell.timed_seconds for cell in turn) / FORGET_S)
        for each in ran.values():
            each.fade(keep)
        for cell in turn:
            ran.setdefault(cell.arm, Ran()).add(cell)
        return ran

    def _account(self, ran: Mapping[Arm, Ran], turn: list[CellDelta], built: tuple[Arm, ...]) -> None:
        spent = [(cell, ran[cell.arm].step_s) for cell in turn]
        known = [(cell, step_s) for cell, step_s in spent if step_s is not None]
        seconds = sum(cell.steps * step_s for cell, step_s in known)
        tokens = sum(cell.tokens for cell, _ in known)
        size = sum(cell.request_steps for cell, _ in known) / max(1, sum(cell.steps for cell, _ in known))
        speeds = {arm: speed for arm, each in ran.items() if (speed := each.speed(size)) is not None}
        for reference, balance in self.balances.items():
            speed = _reference_speed(reference, speeds, built)
            if speed is not None:
                balance.tokens += tokens
                balance.reference_tokens += seconds * speed.tok_s
                balance.error_tokens += seconds * speed.se_tok_s


def _reference_speed(
    reference: Reference, speeds: Mapping[Arm, Speed], built: tuple[Arm, ...]
) -> Speed | None:
    if reference is Reference.ALWAYS_ON:
        deepest = max((arm for arm in built if arm.depth > 0), default=None)
        return speeds.get(deepest) if deepest else None
    if reference is Reference.ALWAYS_OFF:
        return max((s for arm, s in speeds.items() if arm.depth == 0), key=lambda s: s.tok_s, default=None)
    return (
        max(speeds.values(), key=lambda s: s.tok_s - SURE * s.se_tok_s, default=None)
        if len(speeds) > 1
        else None
    )
