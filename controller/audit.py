"""The decision log: who or what decided, why, and with which numbers; survives restarts.

While the database cannot be written, rows wait in memory, at most `MAX_WAITING`; they are written as soon
as it can be.  Ids are given here, so that a row keeps its id wherever it is.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from controller.errors import StoreError
from controller.store import LogRow, Store

MAX_WAITING = 1000
MAX_BODY_BYTES = 16 << 10


class Audit:
    """Appends to and reads from the log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[LogRow] = deque(maxlen=MAX_WAITING)
        self._next_id = store.last_log_id() + 1
        self.problem: str | None = None
        """Why rows wait in memory; `None`: they do not."""

    def append(self, at_unix_s: float, kind: str, reason: str, body: Mapping[str, Any]) -> LogRow:
        """Log one row at once; a database that cannot be written is a `problem`, not an error."""
        row = self.note(at_unix_s, kind, reason, body)
        self.flush()
        return row

    def note(self, at_unix_s: float, kind: str, reason: str, body: Mapping[str, Any]) -> LogRow:
        """Log one row with the next `flush`, so that the rows of a turn share one write."""
        row = LogRow(self._next_id, at_unix_s, kind, reason, _bounded(body))
        self._next_id += 1
        self._waiting.append(row)
        return row

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        try:
            self._store.append(self._waiting)
        except StoreError as error:
            self.problem = str(error)
        else:
            self._waiting.clear()
            self.problem = None

    def page(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        reason: str | None = None,
        since_unix_s: float | None = None,
    ) -> list[LogRow]:
        """Newest first; those that wait stand before those that are stored."""
        waiting = [
            row
            for row in reversed(self._waiting)
            if (before is None or row.id < before)
            and (kind is None or row.kind == kind)
            and (reason is None or row.reason == reason)
            and (since_unix_s is None or row.at_unix_s >= since_unix_s)
        ]
        try:
            stored = self._store.page(
                before=before, limit=limit, kind=kind, reason=reason, since_unix_s=since_unix_s
            )
        except StoreError as error:
            self.problem, stored = str(error), []
        return [*waiting, *stored][:limit]


def _bounded(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without its evidence when it is too large or not JSON."""
    try:
        if len(json.dumps(body)) <= MAX_BODY_BYTES:
            return body
    except (TypeError, ValueError):
        pass
    kept = {key: str(value)[:400] for key, value in body.items() if key != "evidence"}
    return {**kept, "evidence": "left out: too large"}
