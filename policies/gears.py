"""What going cold really costs: requests that lived through it draft badly afterwards.

A cold step is cheaper than a warm one by a measured time.  Its price comes later, when the batch shrinks
and drafting begins again: the requests that are still there accept fewer drafts until they end.  Both
sides are in the telemetry, so nothing is assumed: while drafting, the hook counts accepted drafts of
such requests apart (`accepted_after_cold`), hence

    lost seconds of a drafting cell = its seconds * share of such request-steps * (1 - E_cold / E_clean)
    price of cold = lost seconds / seconds spent cold          (both exponentially forgotten)

The price lowers the log-goodput of the cold arms.  Where off lasts long and requests are short it is
near zero; where the batch keeps dipping in and out of cold it makes warm, or drafting on, the better choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.acceptance import Survival, expected_tokens, read_number
from policies.types import Arm, CellDelta, Gear

MEMORY_S = 300.0
PRIOR_COLD_S = 1.0
MAX_PRICE = 0.7
GONE = 0.02
"""Share of request-steps after cold at which the requests of a probe are taken to have ended."""
PROBE_LOSS_STEPS = 10.0
"""Decode steps that a probe of cold is believed to cost afterwards, until measured."""


@dataclass
class ColdLedger:
    """Seconds spent cold by the schedule, and seconds lost by it later; the same for probes of cold."""

    cold_s: float = 0.0
    lost_s: float = 0.0
    probe_loss_steps: float = PROBE_LOSS_STEPS
    """Decode steps that a probe of cold costs afterwards (mean of the latest ones)."""
    _probe_loss: float | None = None
    """What the latest probe of cold has cost so far; `None`: its requests are gone."""

    def observe(
        self, cells: Sequence[CellDelta], seconds: Sequence[float], survival: Survival, probed: Arm | None
    ) -> None:
        """Take one tick; `probed` is the arm of the probe that was pending in it."""
        fade = 2.0 ** (-sum(seconds) / MEMORY_S)
        self.cold_s *= fade
        self.lost_s *= fade
        lost_s = lost_steps = 0.0
        for cell, spent in zip(cells, seconds, strict=True):
            if cell.arm.gear in (Gear.COLD, Gear.FROZEN):
                self._went_cold(spent, by_probe=cell.arm == probed)
            elif cell.arm.depth and cell.arm != probed:
                lost_s += spent * _shortfall(cell, survival)
                lost_steps += cell.steps * _shortfall(cell, survival)
        if self._probe_loss is None:
            self.lost_s += lost_s
        else:
            self._probe_loss += lost_steps
            self._close(cells)

    def _went_cold(self, spent_s: float, *, by_probe: bool) -> None:
        if by_probe:
            self._probe_loss = self._probe_loss or 0.0
        else:
            self.cold_s += spent_s
            self._probe_loss = None

    def _close(self, cells: Sequence[CellDelta]) -> None:
        """End the account of a probe once few of its requests are left."""
        drafting = [cell for cell in cells if cell.arm.depth]
        after_cold = sum(sum(cell.accepted_after_cold) for cell in drafting)
        total = after_cold + sum(sum(cell.accepted) for cell in drafting)
        if self._probe_loss is not None and total > 0 and after_cold <= GONE * total:
            self.probe_loss_steps += 0.3 * (self._probe_loss - self.probe_loss_steps)
            self._probe_loss = None

    @property
    def price(self) -> float:
        """Seconds lost later per second spent cold."""
        return min(MAX_PRICE, self.lost_s / (self.cold_s + PRIOR_COLD_S))

    def export_state(self) -> dict[str, float]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in _STATE}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        values = [read_number(state, name) for name in _STATE]
        self.cold_s, self.lost_s, self.probe_loss_steps = values


_STATE = ("cold_s", "lost_s", "probe_loss_steps")


def _shortfall(cell: CellDelta, survival: Survival) -> float:
    """Share of the cell's time that its requests from a cold spell cost."""
    after_cold, clean = sum(cell.accepted_after_cold), sum(cell.accepted)
    if after_cold <= 0:
        return 0.0
    depth = cell.arm.depth
    full = expected_tokens(survival.conditional(depth)[0], depth)
    poor = expected_tokens(survival.after_cold(depth), depth)
    return after_cold / (after_cold + clean) * max(0.0, 1.0 - poor / full)
