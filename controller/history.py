"""The last half hour, turn by turn, for the status page: bounded, in memory only."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from controller.loop import TickResult
from controller.predicted import predicted_tok_s
from controller.recorders import arm_to_json

KEEP_S = 1800.0
EVERY_S = 1.0
"""Turns closer together are left out: a page has no more pixels than that."""


class History:
    """A recorder that keeps one small sample a second."""

    def __init__(self) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=round(KEEP_S / EVERY_S))
        self._kept_s: float | None = None
        self._tokens = 0
        self._counted_from_s: float | None = None

    def record(self, result: TickResult) -> None:
        """Take note of a turn."""
        self._tokens += sum(cell.tokens for cell in result.observation.cells)
        if self._kept_s is None or result.now_s - self._kept_s >= EVERY_S * 0.9:
            self._samples.append(self._sample(result))
            self._kept_s = result.now_s

    def _sample(self, result: TickResult) -> dict[str, Any]:
        seen = result.observation
        return {
            "at_unix_s": result.now_unix_s,
            "running_reqs": seen.running_reqs,
            "queue_reqs": seen.queue_reqs,
            "batch_size": seen.batch_size,
            "in_use": arm_to_json(seen.in_use) if seen.in_use else None,
            "decode_tok_s": self._rate(result),
            "predicted_tok_s": predicted_tok_s(result.decision),
        }

    def _rate(self, result: TickResult) -> float | None:
        """Tokens per second since the last sample with telemetry; not known when this turn has none."""
        age_s, before_s = result.observation.telemetry_age_s, self._counted_from_s
        if age_s is None or age_s >= EVERY_S:
            return None
        tokens, self._tokens, self._counted_from_s = self._tokens, 0, result.now_s
        return None if before_s is None else tokens / (result.now_s - before_s)

    def to_json(self, since_unix_s: float = -math.inf) -> dict[str, Any]:
        """Samples after `since_unix_s`, oldest first; null: not known."""
        return {"samples": [s for s in list(self._samples) if s["at_unix_s"] > since_unix_s]}
