"""The end of a crash loop's pin, kept so that a restart of the sidecar does not draft into the next crash."""

from __future__ import annotations

import threading

from controller.errors import StoreError
from controller.store import Store

TOLERANCE_S = 5.0
"""An end that moves by less than this is not written again: wall and monotonic time drift apart."""


class CrashPin:
    """Wall time at which the pin ends, in memory and in the store; and the orders that end it sooner."""

    def __init__(self, store: Store) -> None:
        """Take up the pin of an earlier run; raises `StoreError`."""
        self._store = store
        self._lock = threading.RLock()
        self._before = store.crash_pin()
        self._until_unix_s = self._written = self._before
        self.auto_orders = 0
        """How often an operator has said that the policy shall govern again."""
        self.problem: str | None = None
        """Why what is in the store is not so; `None`: it is."""

    def left_before_s(self, now_unix_s: float) -> float | None:
        """What is left, at `now_unix_s`, of a pin that an earlier run began; `None`: nothing."""
        left_s = None if self._before is None else self._before - now_unix_s
        return left_s if left_s is not None and left_s > 0 else None

    def pinned(self, now_unix_s: float) -> bool:
        """Whether a pin lasts at `now_unix_s`, as of the latest turn."""
        return self._until_unix_s is not None and self._until_unix_s > now_unix_s

    def comes_back(self, now_unix_s: float) -> bool:
        """Whether a pin that was ended here would be back after a restart at `now_unix_s`."""
        return self._until_unix_s is None and self._written is not None and self._written > now_unix_s

    def end(self) -> None:
        """An operator ends the pin, if there is one: in memory at once, in the store with the next turn."""
        self.auto_orders += 1
        self._before = self._until_unix_s = None

    def note(self, left_s: float | None, now_unix_s: float, auto_orders: int) -> None:
        """Once a turn: what is left of the pin after a decision that knew of so many `auto_orders`."""
        if auto_orders == self.auto_orders:  # else it was decided before the operator spoke
            self._until_unix_s = None if left_s is None else now_unix_s + left_s

    def record(self, _turn: object) -> None:
        """Once a turn, in the recorders' thread: write an end that is another than the one in the store."""
        with self._lock:
            until, written = self._until_unix_s, self._written
            if until == written:
                return
            if until is not None and written is not None and abs(until - written) < TOLERANCE_S:
                return
            self._write(until)

    def _write(self, until_unix_s: float | None) -> None:
        try:
            self._store.save_crash_pin(until_unix_s)
        except StoreError as error:
            self.problem = str(error)
        else:
            self.problem, self._written = None, until_unix_s

    def adopt(self, store: Store) -> None:
        """Go on in `store`; a pin that is there comes into force unless one is, or was ended, here."""
        with self._lock:
            self._store = store
            if self._until_unix_s is None and self.auto_orders == 0:
                self._before = self._written = store.crash_pin()
                self._until_unix_s = self._before
            else:
                self._write(self._until_unix_s)
