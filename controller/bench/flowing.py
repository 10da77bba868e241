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
    """That were waited for: those that stream, or all where none does."""
    answered: int
    """Of them: those that had their first token (not streamed: answer), or an error."""


async def until_flowing(
    loop: ClosedLoop, clock: Callable[[], float], limit_s: float
) -> tuple[int, int] | None:
    """Wait until nearly every client that streams has had its first token, or has failed.

    Returns `None`, or after `limit_s` (answered clients, all that were waited for).  Where no client streams
    it waits for their first whole answers: those are shorter than others (clients join somewhere in their
    middle), and count when they end, so that a window before that would show too few tokens.
    """
    start_s = clock()
    first = loop.newest()
    waited_for = [i for i, record in enumerate(first) if record.streamed] or list(range(len(first)))
    answered: set[int] = set()
    while True:
        for i, (before, now) in enumerate(zip(first, loop.newest(), strict=True)):
            if now is not before or now.events or now.error is not None:
                answered.add(i)
        count = len(answered.intersection(waited_for))
        if count >= FLOWING_SHARE * len(waited_for):
            return None
        if clock() - start_s >= limit_s:
            return count, len(waited_for)
        await asyncio.sleep(_POLL_S)
