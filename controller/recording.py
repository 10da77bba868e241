"""Hands every turn to the recorders, in a thread of its own, and never waits for them for long.

A disk that hangs must not stop the control loop: a turn waits `patience_s` for its record, then goes on.
Turns that are not recorded yet wait in order, at most `MAX_WAITING`; one recorder's fault is not another's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)
MAX_WAITING = 300
"""Turns; five minutes at one a second."""

_Turn = TypeVar("_Turn")
_Turn_contra = TypeVar("_Turn_contra", contravariant=True)


class Recorder(Protocol[_Turn_contra]):
    """Takes note of every turn: metrics, decision log, log lines."""

    def record(self, turn: _Turn_contra, /) -> None:
        """Called at the end of each turn, in a thread, so it may block."""
        ...


class RecordQueue(Generic[_Turn]):
    """Turns on their way to the recorders.

    The thread is not the event loop's own pool: name lookups that hang fill that one up.
    """

    def __init__(self, recorders: Sequence[Recorder[_Turn]], patience_s: float) -> None:
        self._recorders = recorders
        self._patience_s = patience_s
        self._waiting: deque[_Turn] = deque()
        self._thread = ThreadPoolExecutor(1, "specgov-record")
        self._work: asyncio.Future[None] | None = None
        self.lost = 0
        """Turns that were never recorded."""

    async def take(self, turn: _Turn) -> None:
        """Record `turn` after those before it; returns when that is done, or after the patience."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(turn)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().run_in_executor(self._thread, self._drain)
        await asyncio.wait({self._work}, timeout=self._patience_s)

    @property
    def problem(self) -> str | None:
        """Why turns wait; `None`: they do not."""
        if len(self._waiting) < 2:
            return None
        lost = f", {self.lost} are lost" if self.lost else ""
        return f"the disk or the log does not answer: {len(self._waiting)} turns wait to be recorded{lost}"

    def close(self) -> None:
        """Take no more; a thread that hangs is left behind."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _drain(self) -> None:
        while self._waiting:
            turn = self._waiting[0]
            for recorder in self._recorders:
                try:
                    recorder.record(turn)
                except Exception:
                    name = type(recorder).__name__
                    log.exception("%s could not record a turn", name, extra={"repeat_key": f"record {name}"})
            if self._waiting and self._waiting[0] is turn:
                self._waiting.popleft()
