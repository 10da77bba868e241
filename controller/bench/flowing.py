"""The wait before a window: until the load is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller.bench.load import ClosedLoop

FLOWING_SHARE = 0.95
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class SlowStart:
    """A server that had not answered nearly every client when the wait for it ended."""

    server: str
    concurrency: int
    waited_s: float
    clients: int
    """That stream, and so show a first token."""
    answered: int
    """Of them: those that had their first token, or an error."""


async def until_flowing(
    loop: ClosedLoop, clock: Callable[[], float], *, limit_s: float, settle_s: float
) -> tuple[int, int] | None:
    """Wait until nearly every client that streams has had its first token, or has failed.

    Returns `None`, or after `limit_s` (answered, clients that stream).  Whole answers show nothing before
    their end: where no client streams, this waits for the first one, at most `settle_s`.
    """
    start_s = clock()
    answered: set[int] = set()
    while True:
        newest = loop.newest()
        streams = [i for i, record in enumerate(newest) if record.streamed]
        answered.update(i for i in streams if newest[i].events or newest[i].error is not None)
        if streams and len(answered) >= FLOWING_SHARE * len(streams):
            return None
        if not streams and any(record.ended_s is not None for record in loop.records):
            return None
        if clock() - start_s >= (limit_s if streams else settle_s):
            return (len(answered), len(streams)) if streams else None
        await asyncio.sleep(_POLL_S)
