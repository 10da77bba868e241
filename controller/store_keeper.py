"""Goes on trying to have a state database: one that could not be opened at the start, or was moved away.

Meanwhile what must be kept is kept in memory.  Once the file can be used, what came up in the meantime is
carried over: log rows with ids that follow those in the file, and the order in force unless nobody gave one
here, for then the order in the file is what the operator last asked for.

A file that cannot be written may still be read: what it says is in force then is so, in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from controller.errors import StoreError, StoreInUseError
from controller.loop import TickResult
from controller.orders_file import read_orders
from controller.store import Store

log = logging.getLogger(__name__)
RETRY_EVERY_S = 10.0


class Keeps(Protocol):
    """What keeps something in a store."""

    def adopt(self, store: Store) -> None:
        """Keep it in `store` from now on, what is there already included."""
        ...


class StoreKeeper:
    """A recorder that looks after the store every `RETRY_EVERY_S`; first of all recorders.

    Args:
        path: of the database of the settings.
        open_store: opens it; raises `StoreError`.
        in_memory: opens one in memory.
    """

    def __init__(self, path: Path, open_store: Callable[[], Store], in_memory: Callable[[], Store]) -> None:
        self._path = path
        self._open = open_store
        self._in_memory = in_memory
        self._tried_s = float("-inf")
        self.kept: tuple[Keeps, ...] = ()
        """Those who are told of every other store."""
        self.problem: str | None = None
        """Why there is no file; `None`: there is one, or none is wanted."""
        self.unread: str | None = None
        """Why the orders that may be in the file are not known; `None`: they are, or there is no file."""
        try:
            self.store = open_store()
        except StoreError as error:
            log.error("overrides and decisions will not survive a restart: %s", error)  # noqa: TRY400
            self.store = self._stand_in(error)

    def record(self, result: TickResult) -> None:
        """Once in a while, look whether the store is where it should be, and else try to have one there."""
        if result.now_s - self._tried_s < RETRY_EVERY_S:
            return
        self._tried_s = result.now_s
        if self.problem is None and self.store.displaced:
            path = self.store.path
            self._replace(self._in_memory())  # closed first: its journal must not meet a new file
            self.problem = f"{path}: was moved or removed"
        if self.problem is not None:
            self._try_again()

    def _try_again(self) -> None:
        try:
            store = self._open()
        except StoreError as error:
            self.problem = str(error)
            self._read_again(error)
            return
        self.problem = self.unread = None
        self._replace(store)
        log.warning("the state database %s is in use again", store.path)

    def _read_again(self, fault: StoreError) -> None:
        if self.unread is None:
            return
        store = self._stand_in(fault)
        if self.unread is None:
            self._replace(store)
        else:
            store.close()

    def _stand_in(self, fault: StoreError) -> Store:
        """A store in memory, with the orders of the file that could not be opened, where they can be read.

        Not of one that another process uses: it may be changing them, and its name is not ours to take.
        """
        store, self.problem = self._in_memory(), str(fault)
        try:
            if isinstance(fault, StoreInUseError):
                raise fault
            orders = read_orders(self._path)
        except StoreError as error:
            self.unread = str(error)
            return store
        self.unread = None
        if orders is not None:
            store.fill(orders, self._path)
        return store

    def _replace(self, store: Store) -> None:
        old, self.store = self.store, store
        for keeper in self.kept:
            keeper.adopt(store)
        old.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def opener(path: Path, *, max_rows: int, max_bytes: int) -> Callable[[], Store]:
    """What opens the database at `path` with these limits."""
    return lambda: Store(path, max_rows=max_rows, max_bytes=max_bytes)
