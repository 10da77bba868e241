"""Keeps the fleet's order over a restart: a file that was spoilt meanwhile ends nothing."""

from __future__ import annotations

import contextlib

from controller.errors import StoreError
from controller.fleet_override import FleetOverride, FleetOverrideFile
from controller.store import Store


class FleetKeeper:
    """A recorder that writes down what the fleet's file asks for, whenever that is another."""

    def __init__(self, file: FleetOverrideFile, store: Store) -> None:
        """Before the first look at `file`, which goes on from what it asked for when it was last right."""
        self._file = file
        self.adopt(store)

    def adopt(self, store: Store) -> None:
        """Go on in `store`."""
        self._store = store
        self._written: tuple[FleetOverride | None] | None = None
        with contextlib.suppress(StoreError, ValueError):
            kept = store.fleet_order()
            if kept is not None:
                self._file.resume(FleetOverride.model_validate_json(kept))

    def record(self, _turn: object) -> None:
        """Once a turn, in the recorders' thread; what cannot be written is tried again in the next."""
        wanted = self._file.wanted
        if self._written == (wanted,):
            return
        with contextlib.suppress(StoreError):  # the log, which cannot be written either, says so
            self._store.save_fleet_order(wanted.model_dump_json() if wanted else None)
            self._written = (wanted,)
