"""What going cold costs later: requests that lived through it draft badly until they end.

A cold step is cheaper than a warm one by a measured time.  Its price comes when the batch shrinks below
the boundary and drafting begins again: the requests that are still there accept fewer drafts.  The
hook counts accepted drafts of such requests apart (`accepted_after_cold`), so the price is measured:

    lost steps of a drafting cell = its steps * share of such request-steps * (1 - E_cold / E_clean)
    loss per rise = lost steps / rises from cold to drafting        (both exponentially forgotten)

`selection.py` charges it at every boundary between a cold row and another, times the rises expected there.
Where off lasts long and requests are short that is next to nothing; where the batch keeps dipping in and
out of cold it moves the boundary, or makes warm the better gear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.acceptance import Survival, expected_tokens, read_number
from policies.types import Arm, CellDelta, Gear

COLD = (Gear.COLD, Gear.FROZEN)
MEMORY_RISES = 50.0
PRIOR_LOSS_STEPS, PRIOR_RISES = 10.0, 2.0
"""Decode steps that a rise from cold is believed to cost until measured, and the weight of that belief."""


@dataclass
class ColdLedger:
    """Decode steps lost after cold, and the rises that they are due to."""

    lost_steps: float = PRIOR_LOSS_STEPS * PRIOR_RISES
    rises: float = PRIOR_RISES
    _was_cold: bool = False

    def observe(self, cells: Sequence[CellDelta], survival: Survival, switches: float | None) -> None:
        """Take one tick with `switches` changes of arm."""
        cold = any(cell.arm.gear in COLD for cell in cells)
        drafting = [cell for cell in cells if cell.arm.depth]
        rises = 0.0
        if drafting and (cold or self._was_cold):
            rises = max(1.0 if self._was_cold or not cold else 0.0, (switches or 1.0) / 2 if cold else 0.0)
        if cells:
            self._was_cold = cold and not drafting
        fade = 2.0 ** (-rises / MEMORY_RISES)
        self.rises = self.rises * fade + rises
        self.lost_steps = self.lost_steps * fade + sum(c.steps * shortfall(c, survival) for c in drafting)

    @property
    def loss_per_rise(self) -> float:
        """Decode steps lost after each rise from cold."""
        return self.lost_steps / self.rises

    def export_state(self) -> dict[str, float]:
        """JSON-ready."""
        return {"lost_steps": self.lost_steps, "rises": self.rises}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        lost, rises = read_number(state, "lost_steps"), read_number(state, "rises", 1e-3)
        self.lost_steps, self.rises = lost, rises


def shortfall(cell: CellDelta, survival: Survival) -> float:
    """Share of the cell's steps that its requests from a cold spell cost."""
    after_cold, clean = sum(cell.accepted_after_cold), sum(cell.accepted)
    if after_cold <= 0:
        return 0.0
    depth = cell.arm.depth
    full = expected_tokens(survival.conditional(depth)[0], depth)
    poor = expected_tokens(survival.after_cold(depth), depth)
    return after_cold / (after_cold + clean) * max(0.0, 1.0 - poor / full)


def is_cold(arm: Arm) -> bool:
    """Whether the draft cache falls behind in this arm."""
    return arm.gear in COLD
