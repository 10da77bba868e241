"""The decision log: who or what decided, why, and with which numbers; survives restarts.

While the database cannot be written, rows wait in memory, at most `MAX_WAITING`; they are written as soon
as it can be.  Rows that go for want of room are counted, and operators' orders go last.  Ids are given
here; a row keeps its id unless another database takes over, whose own rows come before.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from controller.errors import StoreError
from controller.store import LogRow, Store

MAX_WAITING = 1000
MAX_BODY_BYTES = 16 << 10


class Audit:
    """Appends to and reads from the log.  `tell` is given every row at once; it must not block."""

    def __init__(self, store: Store, tell: Callable[[LogRow], None] | None = None) -> None:
        self._store = store
        self._tell = tell
        self._lock = threading.RLock()
        self._waiting: deque[LogRow] = deque()
        self._next_id = store.last_log_id() + 1
        self._lost = 0
        self._error: str | None = None

    @property
    def problem(self) -> str | None:
        """Why rows wait in memory; `None`: they do not."""
        if self._error is None or not self._lost:
            return self._error
        return f"{self._error}; {self._lost} rows of the decision log are lost"

    def append(self, at_unix_s: float, kind: str, reason: str, body: Mapping[str, Any]) -> LogRow:
        """Log one row at once; a database that cannot be written is a `problem`, not an error."""
        row = self.note(at_unix_s, kind, reason, body)
        self.flush()
        return row

    def note(self, at_unix_s: float, kind: str, reason: str, body: Mapping[str, Any]) -> LogRow:
        """Log one row with the next `flush`, so that the rows of a turn share one write."""
        with self._lock:
            row = LogRow(self._next_id, at_unix_s, kind, reason, _bounded(body))
            self._next_id += 1
            self._waiting.append(row)
            if len(self._waiting) > MAX_WAITING:
                self._drop_one()
        if self._tell is not None:
            self._tell(row)
        return row

    def _drop_one(self) -> None:
        """The oldest row that no person asked for, else the oldest."""
        del self._waiting[next((i for i, row in enumerate(self._waiting) if row.kind != "override"), 0)]
        self._lost += 1

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            if not self._waiting:
                return
            try:
                self._store.append(self._waiting)
            except StoreError as error:
                self._error = str(error)
                return
            at_unix_s = self._waiting[-1].at_unix_s
            self._waiting.clear()
            self._error = None
            if self._lost:
                lost, self._lost = self._lost, 0
                detail = f"{lost} rows that could not be written"
                self.append(at_unix_s, "event", "log_rows_lost", {"detail": detail, "rows": lost})

    def adopt(self, store: Store) -> None:
        """Go on in `store`, after its own rows, with what is kept in memory."""
        with self._lock:
            kept = [] if self._store.durable else self._store.page(limit=MAX_WAITING)[::-1]
            rows = [*kept, *self._waiting][-MAX_WAITING:]
            first = store.last_log_id() + 1
            shift = max(0, first - rows[0].id) if rows else 0
            self._waiting = deque(replace(row, id=row.id + shift) for row in rows)
            self._next_id = max(first, self._next_id + shift)
            self._store = store
            self.flush()

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
            for row in reversed(tuple(self._waiting))
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
            self._error, stored = str(error), []
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
