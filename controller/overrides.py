"""The operator's order: what, who, why and until when.  In force at once, and again after a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.errors import StoreError
from controller.fleet_override import FleetOverride, FleetOverrideFile
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
    """`pod`: given over REST; `fleet`: read from the fleet's file; `sidecar`: by itself, see `UNREAD`."""
    limit: Schedule | None = None
    """For `no_deeper` and `no_shallower`: what was in force when it was given; `None`: nothing of ours."""
    suspends: FleetOverride | None = None
    """For `auto`: the fleet's order that this pod leaves; over as soon as that changes or ends."""

    @property
    def directive(self) -> Directive:
        """The part that a policy may see."""
        return Directive(self.mode, self.depth, self.reason, self.actor, self.limit)

    @property
    def given(self) -> tuple[object, ...]:
        """What tells it from another order; its limit may be found later."""
        return (self.scope, self.mode, self.depth, self.reason, self.actor, self.set_unix_s)

    @property
    def bounds_policy(self) -> bool:
        """Whether it lets the policy decide, within a limit."""
        return self.mode in (Mode.NO_DEEPER, Mode.NO_SHALLOWER)


def in_words(order: Override | FleetOverride | None, *, whose: bool = True) -> str:
    """Mode, who and why, in one phrase; `whose`: that it is the fleet's, too."""
    if order is None:
        return "no order: the policy decides"
    fleets = "the fleet's " if whose and isinstance(order, Override) and order.scope == "fleet" else ""
    return f"{fleets}{order.mode.replace('_', ' ')} by {order.actor or 'someone'}: {order.reason}"


UNREAD = "orders given before could not be read, so one may be unread"
"""Then the sidecar orders itself `native`: to put nothing in force agrees with every order that may be there
but `on` and `off`, and with these as much as a sidecar that is not there.  It ends when they can be read, or
when somebody gives an order here, `auto` included."""


class Overrides:
    """At most one order at a time for this pod, kept in memory and in the store; under it, the fleet's."""

    def __init__(
        self,
        store: Store,
        fleet: FleetOverrideFile | None = None,
        clock: Callable[[], float] | None = None,
        unread: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Take up the order that was in force before a restart.

        `unread`: why the orders of the file that `store` stands in for are not known.

        `clock`: monotonic seconds.  With it an order that is given now lasts as long as was asked for, though
        the wall clock be set; after a restart there is only the wall clock to go by.
        """
        self._store = store
        self._clock = clock
        self._ends_s: float | None = None
        self._changed_here = False
        self._unread = unread
        self._garbled: str | None = None
        self._unread_since: float | None = None
        self._lock = threading.RLock()
        self._fleet = fleet
        self._fleet_since: tuple[object, float] | None = None
        self._current: Override | None = None
        self._identity = store.identity
        self._written = True
        self._on_disk: Override | None = None
        self._ended_unix_s: float | None = None
        self.problem: str | None = None
        """Why the order in memory is not the one in the store; `None`: it is."""
        self._take_up(store)

    def _take_up(self, store: Store) -> None:
        """What `store` says is in force; what cannot be understood may be an order all the same."""
        self._garbled = None
        try:
            self._current = _from_stored(store.override())
        except (StoreError, ValueError, TypeError) as error:
            self._current, self._garbled = None, f"{store.path}: {error}"
        self._on_disk = self._current if store.holds_file else None

    def current(self, now_unix_s: float) -> Override | None:
        """The order in force at `now_unix_s`: this pod's, else the fleet's, else that of `UNREAD`."""
        return self.pod(now_unix_s) or self.fleet(now_unix_s) or self._by_itself(now_unix_s)

    @property
    def unread(self) -> str | None:
        """Why an order may be unread; `None`: all are known, or one was given here since."""
        why = None if self._changed_here else (self._garbled or self._unread())
        return f"{UNREAD}: {why}" if why else None

    def _by_itself(self, now_unix_s: float) -> Override | None:
        if self.unread is None:
            self._unread_since = None
            return None
        if self._unread_since is None:
            self._unread_since = now_unix_s
        return Override(Mode.NATIVE, None, UNREAD, "specgov", self._unread_since, None, "sidecar")

    def pod(self, now_unix_s: float) -> Override | None:
        """The order that was given for this pod."""
        order = self._current
        return None if order is None or self._over(order, now_unix_s) else order

    def _over(self, order: Override, now_unix_s: float) -> bool:
        if order.suspends is not None and self._wanted(now_unix_s) != order.suspends:
            return True
        if self._ends_s is not None and self._clock is not None:
            return self._clock() >= self._ends_s
        return order.expires_unix_s is not None and order.expires_unix_s <= now_unix_s

    def _wanted(self, now_unix_s: float) -> FleetOverride | None:
        return self._fleet.poll(now_unix_s) if self._fleet else None

    def fleet(self, now_unix_s: float) -> Override | None:
        """The order that the fleet's file asks for."""
        wanted = self._wanted(now_unix_s)
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
        self.put(None, _end_of(order, now_unix_s))
        return order

    def ended_unix_s(self, now_unix_s: float) -> float | None:
        """When this pod's order ended; `None`: none has since the start, or one is in force."""
        order = self._current
        if order is None:
            return self._ended_unix_s
        return None if self.pod(now_unix_s) is not None else _end_of(order, now_unix_s)

    def after_restart(self, now_unix_s: float) -> Override | None:
        """The order that a restart would put in force, as far as `unread_on_disk` lets know."""
        kept = self._current if self.durable else self._on_disk
        if kept is not None and kept.suspends is not None and kept.suspends != self._wanted(now_unix_s):
            kept = None
        if kept is not None and kept.expires_unix_s is not None and kept.expires_unix_s <= now_unix_s:
            kept = None
        return kept or self.fleet(now_unix_s)

    @property
    def unread_on_disk(self) -> str | None:
        """Why it is not known which order the file holds, whatever was ordered here since; `None`: it is."""
        return self._garbled or self._unread()

    @property
    def durable(self) -> bool:
        """Whether what is in force now would be so after a crash."""
        as_in_the_file = self._store.durable or (self._store.copy_of is not None and not self._changed_here)
        return as_in_the_file and self._written and self.unread is None

    def set(self, order: Override) -> None:
        """`put` it and `flush`."""
        self.put(order)
        self.flush()

    def clear(self, now_unix_s: float) -> None:
        """End the order in force, and `flush`."""
        self.put(None, now_unix_s)
        self.flush()

    def put(self, order: Override | None, ended_unix_s: float | None = None) -> Override | None:
        """Put `order` in force in memory, at once, and return what then is; `None`: end the one in force.

        `ended_unix_s`: when that was, where no order says when it was given.

        `auto` ends this pod's order.  Where it has none, or for a time, it suspends the fleet's here, until
        that changes or ends: whoever orders something new for the fleet means this pod too.
        """
        if order is not None and order.mode is Mode.AUTO:
            ended_unix_s, order = order.set_unix_s, self._suspension(order)
        self._ended_unix_s = ended_unix_s if order is None else None
        self._changed_here, self._written = True, False
        lasts_s = None
        if order is not None and order.expires_unix_s is not None:
            lasts_s = order.expires_unix_s - order.set_unix_s
        self._ends_s = None if lasts_s is None or self._clock is None else self._clock() + lasts_s
        self._current = order
        return order

    def _suspension(self, auto: Override) -> Override | None:
        own, wanted = self.pod(auto.set_unix_s), self._wanted(auto.set_unix_s)
        ends_own = own is not None and own.suspends is None and auto.expires_unix_s is None
        return None if wanted is None or ends_own else replace(auto, suspends=wanted)

    def limit_to(self, in_force: Schedule | None) -> Override | None:
        """What is `in_force` becomes the limit of an order that needs one and has none yet: that order."""
        order = self._current
        if order is None or not order.bounds_policy or order.limit is not None or in_force is None:
            return None
        self._current, self._written = replace(order, limit=in_force), False
        self._changed_here = True
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
                if self._store.durable:
                    self._on_disk, self._garbled = order, None

    def record(self, _turn: object) -> None:
        """Once a turn, in the recorders' thread: write what could not be written before."""
        if not self._written:
            self.flush()

    def adopt(self, store: Store) -> None:
        """Go on in `store`; what it says is in force then is so, if nothing was ordered here.

        But what was read from one database is not ended by another: that was made in its place.
        """
        with self._lock:
            self._store, same = store, store.identity == self._identity
            if not self._changed_here and (self._current is None or same):
                self._identity = store.identity
                self._take_up(store)
            else:
                self._on_disk = _in_file(store)
                self.flush()


def _end_of(order: Override, now_unix_s: float) -> float:
    """When an order that is over ended, as near as is known."""
    end = order.expires_unix_s
    return now_unix_s if end is None else min(end, now_unix_s)


def _in_file(store: Store) -> Override | None:
    """The order in the file that is, or was read into, `store`; `None`: none, or none that can be read."""
    if not store.holds_file:
        return None
    try:
        return _from_stored(store.override())
    except (StoreError, ValueError, TypeError):
        return None


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
        suspends=FleetOverride.model_validate_json(stored.suspends) if stored.suspends else None,
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
        order.suspends.model_dump_json() if order.suspends else None,
    )
