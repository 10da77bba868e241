"""The operator's order: what, who, why and until when.  In force at once, and again after a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.errors import StoreError
from controller.fleet_override import FleetOverrideFile
from controller.store import Store, StoredOverride
from policies.types import Arm, Directive, Gear, Mode, Row, Schedule


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
    limit: Schedule | None = None
    """For `no_deeper` and `no_shallower`: what was in force when it was given; `None`: nothing of ours."""

    @property
    def directive(self) -> Directive:
        """The part that a policy may see."""
        return Directive(self.mode, self.depth, self.reason, self.actor, self.limit)

    @property
    def bounds_policy(self) -> bool:
        """Whether it lets the policy decide, within a limit."""
        return self.mode in (Mode.NO_DEEPER, Mode.NO_SHALLOWER)


class Overrides:
    """At most one order at a time for this pod, kept in memory and in the store; under it, the fleet's."""

    def __init__(
        self,
        store: Store,
        fleet: FleetOverrideFile | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take up the order that was in force before a restart; raises `StoreError`.

        `clock`: monotonic seconds.  With it an order that is given now lasts as long as was asked for, though
        the wall clock be set; after a restart there is only the wall clock to go by.
        """
        self._store = store
        self._clock = clock
        self._ends_s: float | None = None
        self._given_here = False
        self._lock = threading.RLock()
        self._fleet = fleet
        self._fleet_since: tuple[object, float] | None = None
        self._current = _from_stored(store.override())
        self._written = True
        self.problem: str | None = None
        """Why the order in memory is not the one in the store; `None`: it is."""

    def current(self, now_unix_s: float) -> Override | None:
        """The order in force at `now_unix_s`: this pod's, else the fleet's."""
        return self.pod(now_unix_s) or self.fleet(now_unix_s)

    def pod(self, now_unix_s: float) -> Override | None:
        """The order that was given for this pod."""
        order = self._current
        return None if order is None or self._over(order, now_unix_s) else order

    def _over(self, order: Override, now_unix_s: float) -> bool:
        if self._ends_s is not None and self._clock is not None:
            return self._clock() >= self._ends_s
        return order.expires_unix_s is not None and order.expires_unix_s <= now_unix_s

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
        """The order that has just ended by itself, once; it is then forgotten, with the next `record`."""
        order = self._current
        if order is None or self.pod(now_unix_s) is not None:
            return None
        self.put(None)
        return order

    @property
    def durable(self) -> bool:
        """Whether what is in force now would be so after a crash."""
        return self._store.durable and self._written

    def set(self, order: Override) -> None:
        """`put` it and `flush`."""
        self.put(order)
        self.flush()

    def clear(self) -> None:
        """End the order in force, and `flush`."""
        self.put(None)
        self.flush()

    def put(self, order: Override | None) -> None:
        """Put `order` in force in memory, at once; `None`: end the one in force.

        `auto` is no order, unless it takes this pod out of an order of the fleet.
        """
        if order is not None and order.mode is Mode.AUTO and self.fleet(order.set_unix_s) is None:
            order = None
        self._given_here, self._written = True, False
        lasts_s = None
        if order is not None and order.expires_unix_s is not None:
            lasts_s = order.expires_unix_s - order.set_unix_s
        self._ends_s = None if lasts_s is None or self._clock is None else self._clock() + lasts_s
        self._current = order

    def limit_to(self, in_force: Schedule | None) -> Override | None:
        """What is `in_force` becomes the limit of an order that needs one and has none yet: that order."""
        order = self._current
        if order is None or not order.bounds_policy or order.limit is not None or in_force is None:
            return None
        self._current, self._written = replace(order, limit=in_force), False
        return self._current

    def flush(self) -> None:
        """Write the order in memory to the store; what cannot be written is a `problem`, not an error."""
        with self._lock:
            order = self._current
            try:
                self._store.save_override(_to_stored(order) if order else None)
            except StoreError as error:
                self.problem = str(error)
            else:
                self.problem, self._written = None, order is self._current

    def record(self, _turn: object) -> None:
        """Once a turn, in the recorders' thread: write what could not be written before."""
        if not self._written:
            self.flush()

    def adopt(self, store: Store) -> None:
        """Go on in `store`; the order that is there comes into force if none was given here."""
        with self._lock:
            self._store = store
            if not self._given_here and self._current is None:
                self._current = _from_stored(store.override())
            else:
                self.flush()


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
        limit=_table(stored.limit) if stored.limit else None,
    )


def _table(text: str) -> Schedule:
    return Schedule(tuple(Row(start, Arm(depth, Gear(gear))) for start, depth, gear in json.loads(text)))


def _to_stored(order: Override) -> StoredOverride:
    rows = (
        [(row.min_batch_size, row.arm.depth, str(row.arm.gear)) for row in order.limit.rows]
        if order.limit
        else []
    )
    return StoredOverride(
        str(order.mode),
        order.depth,
        order.reason,
        order.actor,
        order.set_unix_s,
        order.expires_unix_s,
        json.dumps(rows) if rows else None,
    )
