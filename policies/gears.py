"""What going cold costs later: requests that lived through it draft badly until they end.

A cold step is cheaper than a warm one by a measured time.  Its price comes when the batch shrinks below
the boundary and drafting begins again: the requests that are still there accept fewer drafts.  The
hook counts accepted drafts of such requests apart (`accepted_after_cold`), so the price is measured:

    lost seconds of a drafting cell = its seconds * share of such request-steps * (1 - E_cold / E_clean)
    loss per rise = lost seconds / rises from cold to drafting        (both exponentially forgotten)

`selection.py` charges it at every boundary between a cold row and another, times the rises expected
there; `probing.py` charges it to every probe of cold.  Where off lasts long and requests are short it is
next to nothing; where the batch keeps dipping in and out of cold, or a few long requests outlive each
burst, it moves the boundary, makes warm the better gear, or drafting throughout the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.acceptance import Survival, expected_tokens, read_number
from policies.types import Arm, CellDelta, Gear

COLD = (Gear.COLD, Gear.FROZEN)
MEMORY_RISES = 30.0
PRIOR_LOSS_STEPS, PRIOR_RISES = 20.0, 0.3
"""Decode steps that a rise from cold is believed to cost, until measured, and the weight of that."""


@dataclass
class ColdLedger:
    """Decode seconds lost after cold, and the rises that they are due to."""

    lost_s: float = 0.0
    rises: float = 0.0
    _was_cold: bool = False

    def observe(self, cells: Sequence[CellDelta], seconds: Sequence[float], survival: Survival) -> None:
        """Take one tick: its cells and the seconds of each.

        A tick counts for one rise at most: requests that draft badly already do not do so twice.
        """
        if not cells:
            return
        cold = any(is_cold(cell.arm) for cell in cells)
        drafting = any(cell.arm.depth for cell in cells)
        rises = 1.0 if drafting and (cold or self._was_cold) else 0.0
        self._was_cold = cold and not drafting
        fade = 2.0 ** (-rises / MEMORY_RISES)
        lost_s = sum(s * shortfall(c, survival) for c, s in zip(cells, seconds, strict=True) if c.arm.depth)
        self.lost_s = self.lost_s * fade + lost_s
        self.rises = self.rises * fade + rises

    def loss_s(self, step_s: float) -> float:
        """Seconds lost after each rise from cold, given the mean seconds of a decode step.

        One standard error (of a mean of exponential losses) on the cautious side: with few rises seen, most
        of what they cost is still to come.
        """
        mean = (self.lost_s + PRIOR_RISES * PRIOR_LOSS_STEPS * step_s) / (self.rises + PRIOR_RISES)
        return mean * (1.0 + 1.0 / math.sqrt(self.rises + 1.0))

    def export_state(self) -> dict[str, float]:
        """JSON-ready."""
        return {"lost_s": self.lost_s, "rises": self.rises}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        lost_s, rises = read_number(state, "lost_s"), read_number(state, "rises")
        self.lost_s, self.rises = lost_s, rises


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
