"""The operator's order: what, who, why and until when.  In force at once, and again after a restart."""

from __future__ import annotations

from dataclasses import dataclass

from controller.errors import StoreError
from controller.fleet_override import FleetOverrideFile
from controller.store import Store, StoredOverride
from policies.types import Directive, Mode


@dataclass(frozen=True, slots=True)
class Override:
    """An order in force."""

    mode: Mode
    depth: int | None
    reason: str
    actor: str
    set_unix_s: float
    expires_unix_s: float | None
    """Wall time at which it ends by itself; `None`: never."""
    scope: str = "pod"
    """`pod`: given over REST; `fleet`: read from the fleet's file."""

    @property
    def directive(self) -> Directive:
        """The part that a policy may see."""
        return Directive(self.mode, self.depth, self.reason, self.actor)


class Overrides:
    """At most one order at a time for this pod, kept in memory and in the store; under it, the fleet's."""

    def __init__(self, store: Store, fleet: FleetOverrideFile | None = None) -> None:
        """Take up the order that was in force before a restart; raises `StoreError`."""
        self._store = store
        self._fleet = fleet
        self._fleet_since: tuple[object, float] | None = None
        self._current = _from_stored(store.override())
        self.problem: str | None = None
        """Why the order in memory is not the one in the store; `None`: it is."""

    def current(self, now_unix_s: float) -> Override | None:
        """The order in force at `now_unix_s`: this pod's, else the fleet's."""
        return self.pod(now_unix_s) or self.fleet(now_unix_s)

    def pod(self, now_unix_s: float) -> Override | None:
        """The order that was given for this pod."""
        order = self._current
        if order is None or (order.expires_unix_s is not None and order.expires_unix_s <= now_unix_s):
            return None
        return order

    def fleet(self, now_unix_s: float) -> Override | None:
        """The order that the fleet's file asks for."""
        wanted = self._fleet.poll(now_unix_s) if self._fleet else None
        if wanted is None:
            self._fleet_since = None
            return None
        if self._fleet_since is None or self._fleet_since[0] != wanted:
            self._fleet_since = (wanted, now_unix_s)
        since_unix_s, end = self._fleet_since[1], wanted.until_unix_s
        mode = Mode(wanted.mode)
        return Override(mode, wanted.depth, wanted.reason, wanted.actor, since_unix_s, end, "fleet")

    @property
    def fleet_problem(self) -> str | None:
        """What is wrong with the fleet's file."""
        return self._fleet.error if self._fleet else None

    def end_if_over(self, now_unix_s: float) -> Override | None:
        """The order that has just ended by itself, once; it is then forgotten."""
        order = self._current
        if order is None or self.pod(now_unix_s) is not None:
            return None
        self.clear()
        return order

    @property
    def durable(self) -> bool:
        """Whether what is in force now would be so after a crash."""
        return self._store.durable and self.problem is None

    def set(self, order: Override) -> None:
        """Put `order` in force, in memory at once, and on disk if that can be done (`durable`).

        `auto` is no order, unless it takes this pod out of an order of the fleet.
        """
        needed = order.mode is not Mode.AUTO or self.fleet(order.set_unix_s) is not None
        self._current = order if needed else None
        self.flush()

    def clear(self) -> None:
        """End the order in force."""
        self._current = None
        self.flush()

    def flush(self) -> None:
        """Write the order in memory to the store."""
        stored = _to_stored(self._current) if self._current else None
        try:
            self._store.save_override(stored)
        except StoreError as error:
            self.problem = str(error)
        else:
            self.problem = None


def _from_stored(stored: StoredOverride | None) -> Override | None:
    if stored is None:
        return None
    return Override(
        Mode(stored.mode),
        stored.depth,
        stored.reason,
        stored.actor,
        stored.set_unix_s,
        stored.expires_unix_s,
    )


def _to_stored(order: Override) -> StoredOverride:
    return StoredOverride(
        str(order.mode), order.depth, order.reason, order.actor, order.set_unix_s, order.expires_unix_s
    )
