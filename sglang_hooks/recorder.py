"""What each (batch bucket, depth, gear) cost and yielded: cumulative counters in bounded memory.

Pure: standard library only; time is passed in and serves measuring only, never deciding.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Literal

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Smallest batch size of each bucket."""

MAX_INTERVAL_S = 2.0
"""A longer interval between two results holds a pause, not a decode step (SGLang's own limit)."""

Behind = Literal["prefill", "switch"]
"""What may be launched behind a decode step that is not another step like it."""

_COLD_MARK = "specgov_cold"


def mark_cold(requests: Iterable[object]) -> None:
    """Note that these requests' draft KV cache has a gap from now on; any objects that take attributes."""
    for request in requests:
        setattr(request, _COLD_MARK, True)


class Cell:
    """Counters of one (batch bucket, depth, gear); `docs/protocol.md` says what each one is."""

    __slots__ = (
        "accepted", "accepted_after_cold", "after_prefill_seconds", "after_prefill_steps",
        "prefill_spells", "prefilled_requests", "prefilled_tokens",
        "request_steps", "skipped_idle", "skipped_prefill", "skipped_prefill_seconds",
        "skipped_switch", "steps", "timed_context_tokens", "timed_request_steps", "timed_seconds",
        "timed_seconds_sq", "timed_steps", "tokens",
    )  # fmt: skip

    def __init__(self, depth: int) -> None:
        self.steps = self.request_steps = self.tokens = 0
        self.accepted = [0] * (depth + 1)
        self.accepted_after_cold = [0] * (depth + 1)
        self.timed_steps = self.timed_request_steps = self.timed_context_tokens = 0
        self.timed_seconds = self.timed_seconds_sq = 0.0
        self.after_prefill_steps, self.after_prefill_seconds = 0, 0.0
        self.skipped_prefill = self.skipped_switch = self.skipped_idle = 0
        self.skipped_prefill_seconds = 0.0
        self.prefill_spells = self.prefilled_requests = self.prefilled_tokens = 0

    def to_json(self) -> dict[str, Any]:
        """A copy of the counters."""
        cell = {name: getattr(self, name) for name in self.__slots__}
        return cell | {name: list(cell[name]) for name in ("accepted", "accepted_after_cold")}


class Recorder:
    """Takes the results of decode and prefill batches in the order in which they are processed."""

    def __init__(self) -> None:
        self.prefill_batches = 0
        self._cells: dict[tuple[int, int, str], Cell] = {}
        self._last_s: float | None = None
        self._last_arm: tuple[int, str] | None = None
        self._prefill_since = False
        self._prefill_s: float | None = None
        self._prefilled_requests = self._prefilled_tokens = 0
        self._any_cold = False

    def prefill(self, now_s: float, requests: Sequence[object], tokens: int) -> None:
        """A prefill batch of `requests` was processed, until `now_s`; the interval around it is no step's.

        `tokens` were computed for them: those of their prompts that no cache held.

        The time from here to the next decode result is kept apart: it is that step's, give or take the
        rest of the prefill (the draft model's) and the time that processing took.
        """
        self.prefill_batches += 1
        self._prefilled_requests += len(requests)
        self._prefilled_tokens += tokens
        self._prefill_since = True
        self._prefill_s = now_s
        self._any_cold = self._any_cold or any(hasattr(request, _COLD_MARK) for request in requests)

    def decode(
        self,
        now_s: float,
        depth: int,
        gear: str,
        *,
        batch_size: int,
        requests: Sequence[object],
        accepted: Sequence[int],
        context_tokens: int,
        behind: Behind | None = None,
    ) -> None:
        """A decode batch of `batch_size` requests was processed.

        Args:
            now_s: monotonic seconds, after processing.
            depth: drafts per request that the result itself shows.
            gear: gear that the step was launched in.
            batch_size: requests that were launched, finished ones included.
            requests: those that had not finished before this step; any objects that take attributes.
            accepted: accepted drafts of each of `requests`.
            context_tokens: tokens that `requests` hold in all.
            behind: what had been launched behind the step before its result was processed, unless another
                step like it.  Launching takes the host longer than a short step takes the device, so
                such a result comes late by somebody else's time.
        """
        cell = self._cell(batch_size, depth, gear)
        if requests:
            cell.steps += 1
            cell.request_steps += len(requests)
            cell.tokens += len(requests) + sum(accepted)
            self._count_accepted(cell, requests, accepted)
            if gear in ("cold", "frozen"):
                mark_cold(requests)
                self._any_cold = True
        self._time(cell, now_s, (depth, gear), batch_size if requests else 0, context_tokens, behind=behind)

    def ran_dry(self) -> None:
        """Nobody is left after the latest result: the interval up to the next one is no step's."""
        self._last_s = None

    def cells(self) -> list[dict[str, Any]]:
        """All cells, ordered, JSON-ready."""
        return [
            {"batch_bucket": bucket, "depth": depth, "gear": gear} | cell.to_json()
            for (bucket, depth, gear), cell in sorted(self._cells.items())
        ]

    def _cell(self, batch_size: int, depth: int, gear: str) -> Cell:
        key = (BUCKETS[max(0, bisect.bisect_right(BUCKETS, batch_size) - 1)], depth, gear)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(depth)
        return cell

    def _count_accepted(self, cell: Cell, requests: Sequence[object], accepted: Sequence[int]) -> None:
        counts = cell.accepted
        if not self._any_cold:
            for n in accepted:
                counts[n] += 1
            return
        after_cold = cell.accepted_after_cold
        for request, n in zip(requests, accepted, strict=True):
            (after_cold if hasattr(request, _COLD_MARK) else counts)[n] += 1

    def _time(
        self,
        cell: Cell,
        now_s: float,
        arm: tuple[int, str],
        batch_size: int,
        context_tokens: int,
        *,
        behind: Behind | None,
    ) -> None:
        """Count the interval since the result before, unless it holds more than this decode step.

        `batch_size` 0 says that nobody is left: the batch ran dry and idles from here.
        """
        last_s, self._last_s = self._last_s, now_s if batch_size else None
        last_arm, self._last_arm = self._last_arm, arm
        prefill, self._prefill_since = self._prefill_since, False
        requests, self._prefilled_requests = self._prefilled_requests, 0
        tokens, self._prefilled_tokens = self._prefilled_tokens, 0
        if not batch_size:
            return
        if last_s is None or now_s - last_s > MAX_INTERVAL_S:
            cell.skipped_idle += 1
        elif prefill:
            cell.skipped_prefill += 1
            cell.skipped_prefill_seconds += now_s - last_s
            cell.prefill_spells += 1
            cell.prefilled_requests += requests
            cell.prefilled_tokens += tokens
            if self._prefill_s is not None and arm == last_arm:
                cell.after_prefill_steps += 1
                cell.after_prefill_seconds += now_s - self._prefill_s
        elif behind == "prefill":
            cell.skipped_prefill += 1
            cell.skipped_prefill_seconds += now_s - last_s
        elif behind == "switch" or arm != last_arm:
            cell.skipped_switch += 1
        else:
            interval = now_s - last_s
            cell.timed_steps += 1
            cell.timed_seconds += interval
            cell.timed_seconds_sq += interval * interval
            cell.timed_request_steps += batch_size
            cell.timed_context_tokens += context_tokens
