"""Whether a server was away while it was measured: then what came is no measurement of it.  Pure.

A server that answers some requests with an error, or cuts some streams off, is there, and its figures stand.
One that went away refuses connections until it is back; behind a proxy, or when it is back at once, it has
dropped every request that it had at the same moment.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

import httpx

from controller.bench.records import Lost, RequestRecord

TOGETHER_S = 0.1
"""Connections that one dying process drops are seen to end within this."""
MIN_TOGETHER = 3
"""Of fewer requests all may be cut off at once by chance."""
_OWN_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS}
"""Files and ports of this machine are used up: that says nothing of the server."""


def lost(problem: Exception) -> Lost | None:
    """How a request lost its server; `None`: it did not, it failed otherwise."""
    if isinstance(problem, httpx.ConnectError):
        return None if own_limit(problem) else Lost.REFUSED
    return Lost.BROKEN if isinstance(problem, httpx.NetworkError | httpx.RemoteProtocolError) else None


def own_limit(problem: BaseException) -> bool:
    """Whether a connection failed for want of files or ports on this side."""
    return any(isinstance(each, OSError) and each.errno in _OWN_LIMITS for each in _causes(problem))


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that led to it."""
    if problem is None:
        return
    yield problem
    if isinstance(problem, BaseExceptionGroup):
        for each in problem.exceptions:
            yield from _causes(each)
    yield from _causes(problem.__cause__ or problem.__context__)


def why_away(records: Iterable[RequestRecord], from_s: float, to_s: float) -> str | None:
    """What shows that the server was away in (`from_s`, `to_s`]; `None`: nothing does."""
    alive = [r for r in records if r.started_s < to_s and (r.ended_s is None or r.ended_s > from_s)]
    ended = [r for r in alive if r.ended_s is not None and r.ended_s <= to_s]
    refused = sum(r.lost is Lost.REFUSED for r in ended)
    if refused:
        return "a connection was refused" if refused == 1 else f"{refused} connections were refused"
    for at_s in sorted(r.ended_s for r in ended if r.lost is Lost.BROKEN and r.ended_s is not None):
        running = [r for r in alive if r.started_s < at_s and (r.ended_s is None or r.ended_s >= at_s)]
        if len(running) >= MIN_TOGETHER and all(_dropped(r, at_s) for r in running):
            return f"all {len(running)} running requests lost their connections at once"
    return None


def _dropped(record: RequestRecord, at_s: float) -> bool:
    ended_s = record.ended_s
    return record.lost is Lost.BROKEN and ended_s is not None and ended_s <= at_s + TOGETHER_S
