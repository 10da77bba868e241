"""What stands ordered at this moment, and whether the latest turn knows of it.  Pure.

A turn may hang for as long as the engine does.  An order is in force in the sidecar at once, so what is said
of it comes from the orders; what is said of the engine comes from the latest turn, with its age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.loop import TickResult, out_of_reach
from controller.overrides import Override
from controller.recorders import override_to_json
from policies.types import Mode

LATE_PERIODS, LATE_S = 3, 3.0
"""A turn older than so many periods, and so many seconds, was the last before something hung."""
WHY_LATE = "the engine is slow or hangs, or turns fail: see the sidecar's log"


@dataclass(frozen=True, slots=True)
class Standing:
    """The order that stands now, and how far it has come."""

    order: Override | None
    fleet: Override | None
    """The fleet's order, also where one on this pod is in force instead."""
    since_unix_s: float
    """Since when the mode has been what it is."""
    taken_up: bool
    """Whether the latest turn decided under it."""
    obstacle: str | None
    """Why the engine cannot be made to follow it now; `None`: nothing is in the way."""
    unconfirmed: str | None
    """Why it is not known that the engine follows it, though nothing is known to be in the way."""
    late: bool
    """Whether the latest turn must have been followed by another, see `is_late`."""
    after_restart: dict[str, Any] | None = None
    """What a restart of the sidecar would put in force instead; `None`: the same."""

    @property
    def mode(self) -> Mode:
        """`auto` without an order."""
        return self.order.mode if self.order else Mode.AUTO


def is_late(age_s: float, period_s: float) -> bool:
    """Whether a turn that began `age_s` ago must have been followed by another."""
    return age_s > max(LATE_PERIODS * period_s, LATE_S)


def standing(
    last: TickResult | None,
    order: Override | None,
    fleet: Override | None,
    *,
    changed_unix_s: float | None,
    pin_ended: bool,
    age_s: float,
    late: bool,
    after_restart: dict[str, Any] | None,
) -> Standing:
    """How `order` stands after the turn `last`, decided `age_s` ago; `late`: see `is_late`.

    `changed_unix_s`: when an order ended after which this one, or none, stands; `None`: not known.
    `pin_ended`: whether a crash loop's pin has been ended since that turn.
    """
    if last is None:
        since_unix_s = order.set_unix_s if order else (changed_unix_s or 0.0)
        return Standing(order, fleet, since_unix_s, False, None, "no turn is done yet", late, after_restart)
    known = order.given if order else None
    taken_up = known == (last.override.given if last.override else None) and not pin_ended
    obstacle = None if order is None or order.mode is Mode.AUTO else out_of_reach(last.link, last.steered)
    return Standing(
        order,
        fleet,
        last.mode_since_unix_s if taken_up else _since(order, changed_unix_s, last),
        taken_up,
        obstacle,
        None if obstacle else _unconfirmed(last, taken_up=taken_up, age_s=age_s, late=late),
        late,
        after_restart,
    )


def _since(order: Override | None, changed_unix_s: float | None, last: TickResult) -> float:
    """Of an order that no turn has seen; one that another had covered stands since that ended."""
    times = (order.set_unix_s if order else None, changed_unix_s)
    return max((time for time in times if time is not None), default=last.now_unix_s)


def _unconfirmed(last: TickResult, *, taken_up: bool, age_s: float, late: bool) -> str | None:
    if not taken_up:
        why = f": {WHY_LATE}" if late else ""
        return f"no turn has looked at it yet, the last is {age_s:.0f} s old{why}"
    if late:
        return f"the last turn is {age_s:.0f} s old: {WHY_LATE}"
    return last.unmet


def order_to_json(now: Standing, last: TickResult | None) -> dict[str, Any]:
    """The order that stands, JSON-ready, with how far it has come."""
    order, force = now.order, last.force if last and now.taken_up else None
    said = override_to_json(order) if order else {"mode": str(Mode.AUTO)}
    return {
        **said,
        "obstacle": now.obstacle,
        "remedy": last.remedy if last and now.obstacle else None,
        "unconfirmed": now.unconfirmed,
        "in_force_since_unix_s": force.since_unix_s if force and not now.obstacle else None,
        "gap_unix_s": list(force.gap_unix_s) if force and force.gap_unix_s else None,
        "after_restart": now.after_restart,
    }
