"""What going off without the draft model costs later: requests that lived through it draft badly.

A cold step is cheaper than a warm one by a measured time.  Its price comes when the batch shrinks below
the boundary and drafting begins again.  Of the first step then, all drafts are lost: they are left over from
before, whatever the model.  What the steps after it lose is the model's own: next to nothing for a draft that
has nearly all it knows from the target's hidden states, more for one that leans on its own KV cache.  The
hook counts accepted drafts of such requests apart (`accepted_after_cold`), so the whole price is measured:

    lost seconds of a drafting cell = its seconds * (n * E - tokens of those n) / (tokens expected of all)
    loss per rise = lost seconds / rises to drafting        (both exponentially forgotten)

with n its request-steps after cold and E the tokens expected of a clean one, at the acceptance of the
same tick; kept apart for rises from cold and from frozen.  `selection.py` charges it at every boundary
between a cold row and another, times the rises expected there; `probing.py` charges it to every probe of
cold.  Where off lasts long and requests are short it is next to nothing; where the batch keeps dipping in
and out of cold, or a few long requests outlive each burst, it moves the boundary, or makes warm the
better gear, or drafting throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.acceptance import Survival, expected_tokens, read_number
from policies.types import Arm, CellDelta, Gear

COLD = (Gear.COLD, Gear.FROZEN)
MEMORY_RISES = 30.0
PRIOR_RISES = 0.3
PRIOR_LOSS_STEPS = {Gear.COLD: 1.0, Gear.FROZEN: 2.0}
"""Decode steps that a rise is believed to cost until measured, with the weight of `PRIOR_RISES`: the drafts
of one step, which no model is spared; as much again for requests whose prompt is not in the draft's cache."""


@dataclass
class Price:
    """Decode seconds lost after rises from one gear, and the rises that they are due to."""

    lost_s: float = 0.0
    rises: float = 0.0

    def add(self, lost_s: float, rises: float) -> None:
        """Take one tick."""
        fade = 2.0 ** (-rises / MEMORY_RISES)
        self.lost_s = self.lost_s * fade + lost_s
        self.rises = self.rises * fade + rises

    def mean_s(self, prior_s: float) -> float:
        """Seconds lost after each rise; `prior_s` until seen.

        One standard error (of a mean of exponential losses) on the cautious side: with few rises seen, most
        of what they cost is still to come.
        """
        mean = max(0.0, self.lost_s + PRIOR_RISES * prior_s) / (self.rises + PRIOR_RISES)
        return mean * (1.0 + 1.0 / math.sqrt(self.rises + 1.0))


@dataclass
class ColdLedger:
    """What rises have cost, by the gear that they were from."""

    prices: dict[Gear, Price] = field(default_factory=lambda: {gear: Price() for gear in COLD})
    _spell: Gear = Gear.COLD
    _was_cold: bool = False

    def observe(self, cells: Sequence[CellDelta], seconds: Sequence[float], survival: Survival) -> None:
        """Take one tick: its cells and the seconds of each.

        A tick counts for one rise at most.  What requests lose is put down to the gear of the last spell.
        """
        if not cells:
            return
        steps = {gear: sum(cell.steps for cell in cells if cell.arm.gear is gear) for gear in COLD}
        cold = any(steps.values())
        if cold:
            self._spell = max(COLD, key=steps.__getitem__)
        drafting = any(cell.arm.depth for cell in cells)
        rises = 1.0 if drafting and (cold or self._was_cold) else 0.0
        self._was_cold = cold and not drafting
        lost_s = sum(s * shortfall(c, survival) for c, s in zip(cells, seconds, strict=True) if c.arm.depth)
        self.prices[self._spell].add(lost_s, rises)

    def loss_s(self, gear: Gear, step_s: float) -> float:
        """Seconds lost after each rise from `gear`, given the mean seconds of a step; 0 but for `COLD`."""
        if gear not in COLD:
            return 0.0
        return self.prices[gear].mean_s(PRIOR_LOSS_STEPS[gear] * step_s)

    def export_state(self) -> dict[str, float]:
        """JSON-ready."""
        each = [(f"{gear}_", price) for gear, price in self.prices.items()]
        return {at + name: value for at, price in each for name, value in vars(price).items()}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        read = {gear: [read_number(state, f"{gear}_{name}", low) for name, low in _NUMBERS] for gear in COLD}
        self.prices = {gear: Price(*numbers) for gear, numbers in read.items()}


_NUMBERS = (("lost_s", -math.inf), ("rises", 0.0))


def shortfall(cell: CellDelta, survival: Survival) -> float:
    """Share of the cell's steps that its requests from a cold spell cost; by chance it may be below 0."""
    after_cold, clean = sum(cell.accepted_after_cold), sum(cell.accepted)
    if after_cold <= 0:
        return 0.0
    expected = expected_tokens(survival.conditional(cell.arm.depth)[0], cell.arm.depth)
    got = sum((1 + accepted) * n for accepted, n in enumerate(cell.accepted_after_cold))
    return (after_cold * expected - got) / ((after_cold + clean) * expected)


def is_cold(arm: Arm) -> bool:
    """Whether the draft cache falls behind in this arm."""
    return arm.gear in COLD
