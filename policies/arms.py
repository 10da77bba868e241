"""Choosing among the arms that an engine has built."""

from __future__ import annotations

from collections.abc import Sequence

from policies.types import Arm, Gear, Schedule

OFF_PREFERENCE = (Gear.COLD, Gear.WARM, Gear.FROZEN)
"""Cold first: it costs as little as a server without speculation, at the price of requests that live
through it drafting badly until they end, and whoever finds their tokens in the prefix cache."""


def deepest(built: Sequence[Arm]) -> Arm | None:
    """The arm with the greatest depth; `None` when nothing is built."""
    return max((arm for arm in built if arm.depth), default=None) or off(built)


def off(built: Sequence[Arm], gear: Gear | None = None) -> Arm | None:
    """Depth 0 in `gear`, or in the first gear of `OFF_PREFERENCE` that is built; `None`: depth 0 is not."""
    gears = (gear, *OFF_PREFERENCE) if gear else OFF_PREFERENCE
    return next((Arm(0, g) for g in gears if g is not Gear.ON and Arm(0, g) in built), None)


def at_most(built: Sequence[Arm], depth: int, gear: Gear | None = None) -> Arm | None:
    """The deepest arm not above `depth` (off in `gear`); `None` when all that is built is deeper."""
    return max((arm for arm in built if 0 < arm.depth <= depth), default=None) or off(built, gear)


def only_built(schedule: Schedule, built: Sequence[Arm]) -> bool:
    """Whether each arm that `schedule` names is built."""
    return all(row.arm in built for row in schedule.rows)


def deeper_anywhere(new: Schedule, old: Schedule) -> bool:
    """Whether `new` drafts deeper than `old` at some batch size."""
    starts = {row.min_batch_size for row in (*new.rows, *old.rows)}
    return any(new.arm_for(n).depth > old.arm_for(n).depth for n in starts)


def reverts(new: Schedule, old: Schedule, before: Schedule, after: Schedule) -> bool:
    """Whether going from `old` to `new` takes back where going from `before` to `after` drafted less.

    That is to draft deeper there, and as deep as before: another depth, less deep, is no way back.
    """
    starts = {row.min_batch_size for table in (new, old, before, after) for row in table.rows}
    return any(
        new.arm_for(n).depth > old.arm_for(n).depth
        and new.arm_for(n).depth >= before.arm_for(n).depth > after.arm_for(n).depth
        for n in starts
    )
