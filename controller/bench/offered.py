"""An open loop: what it asked for beside what was delivered, and whether the server kept up.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.bench.records import RequestRecord
from controller.bench.statistics import quantile

FEW = 8
"""Of fewer requests the first third says too little."""
BEHIND_FACTOR = 2.0
BEHIND_MIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Offered:
    """Load that came at times of its own, whatever the server did with it."""

    requests: int
    tokens: int
    """Output tokens asked for."""
    seconds: float
    """First arrival to last."""
    answered_after_s: float
    """From the last arrival to the last answer; with `unanswered` ones, to the end of the wait for them."""
    unanswered: int
    """Still running when the wait for them ended, and dropped."""
    behind: bool
    """Whether the server did not follow: see `offered`."""

    @property
    def tok_s(self) -> float | None:
        """Output tokens asked for per second; `None` where all came at one moment."""
        return self.tokens / self.seconds if self.seconds > 0 else None


def offered(records: Sequence[RequestRecord]) -> Offered | None:
    """What `records` of an open loop that has ended show; `None` without any.

    A server that follows answers the last requests as fast as the first.  It is `behind` when the last
    answer comes later than twice (and 1 s) what the median seconds a token of the first third of the
    requests would have it be; or when requests were dropped.
    """
    if not records:
        return None
    last_s = max(r.started_s for r in records)
    ended_s = max((r.ended_s for r in records if r.ended_s is not None), default=last_s)
    unanswered = sum(r.given_up for r in records)
    after_s = max(0.0, ended_s - last_s)
    expected_s = _expected_after_s(records, last_s)
    late = expected_s is not None and after_s > BEHIND_FACTOR * expected_s + BEHIND_MIN_S
    return Offered(
        requests=len(records),
        tokens=sum(r.asked_tokens or 0 for r in records),
        seconds=last_s - min(r.started_s for r in records),
        answered_after_s=after_s,
        unanswered=unanswered,
        behind=late or unanswered > 0,
    )


def _expected_after_s(records: Sequence[RequestRecord], last_s: float) -> float | None:
    """When the last answer would have come, had all gone as the first third did; after the last arrival."""
    first = sorted(records, key=lambda r: r.started_s)[: len(records) // 3]
    paces = [
        r.e2e_s / r.output_tokens for r in first if r.e2e_s is not None and r.output_tokens and not r.error
    ]
    pace = quantile(paces, 0.5) if len(records) >= FEW else None
    if pace is None:
        return None
    return max(0.0, max(r.started_s + pace * (r.asked_tokens or 0) for r in records) - last_s)
