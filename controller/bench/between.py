"""What happened outside of windows: in the warm-up, before a window, between two, after the last.  Pure.

It is in no figure, and told all the same: a server that was away there measures on with empty caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controller.bench.away import why_away
from controller.bench.failed import ErrorCount, add_up, errors_of, failed_between
from controller.bench.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Between:
    """Failures of requests to one server between two of its windows, or what shows that it was away there."""

    server: str
    after: int
    """The window of this server that was measured last before: its number among all, from 1; 0: none was."""
    before: int | None
    """The next one; `None`: none was measured."""
    failed: int
    errors: tuple[ErrorCount, ...]
    """Their first few texts."""
    away: str | None
    """What shows that the server was away; `None`: nothing does."""


class Ledger:
    """Adds up, load by load, what happened outside of windows; loads themselves are too long to keep."""

    def __init__(self) -> None:
        self._servers: list[str] = []
        """Of each window, in their order."""
        self._until_s: dict[str, float] = {}
        """Until when what happened to a server is accounted for."""
        self._parts: list[Between] = []

    def account(self, server: str, records: Sequence[RequestRecord], to_s: float) -> None:
        """Note what `records`, of the load at hand, show since the last window or the last time asked."""
        from_s = self._until_s.get(server, -math.inf)
        failed, away = failed_between(records, from_s, to_s), why_away(records, from_s, to_s)
        if failed or away is not None:
            self._add(server, failed, errors_of(records, from_s, to_s), away)
        self._until_s[server] = to_s

    def restarted(self, server: str, why: str) -> None:
        """Note what shows, without any request, that it was away since its last window."""
        self._add(server, 0, (), why)

    def window(self, server: str, to_s: float) -> None:
        """A window of the server has ended: what failed in it is the window's."""
        self._servers.append(server)
        self._until_s[server] = to_s

    def between(self) -> tuple[Between, ...]:
        """What was noted, in the order of windows; once for the same two."""
        groups: dict[tuple[int, str], list[Between]] = {}
        for part in self._parts:
            groups.setdefault((part.after, part.server), []).append(part)
        return tuple(self._together(groups[key]) for key in sorted(groups))

    def _add(self, server: str, failed: int, errors: tuple[ErrorCount, ...], away: str | None) -> None:
        mine = (number for number, each in enumerate(self._servers, start=1) if each == server)
        self._parts.append(Between(server, max(mine, default=0), None, failed, errors, away))

    def _together(self, parts: Sequence[Between]) -> Between:
        server, after = parts[0].server, parts[0].after
        later = enumerate(self._servers[after:], start=after + 1)
        return Between(
            server,
            after,
            before=next((number for number, each in later if each == server), None),
            failed=sum(part.failed for part in parts),
            errors=add_up(error for part in parts for error in part.errors),
            away=", and later ".join(dict.fromkeys(part.away for part in parts if part.away is not None))
            or None,
        )
