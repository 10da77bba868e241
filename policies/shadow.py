"""How two policies differ where it matters: at the batch sizes that the engine decodes.

Pure: fed with what both decided, the telemetry of each tick, and what one of them expects of every arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policies.soundness import sound_cells
from policies.types import CellDelta, Decision, Forecast, Schedule

MEMORY_STEPS = 10_000.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Over the recent load, weighted by decode steps."""

    differing_share: float
    """Share of decode steps at batch sizes where the two name different arms, 0..1."""
    predicted_gain: float | None
    """Expected tok/s of the shadow over those of the active policy, minus 1; `None`: not known."""


class Comparison:
    """Adds up ticks, exponentially forgotten in decode steps."""

    def __init__(self) -> None:
        self._steps = self._differing = 0.0
        self._known = self._active = self._shadow = 0.0
        self._schedules: tuple[Schedule | None, Schedule | None] = (None, None)

    def add(
        self,
        active: Decision,
        shadow: Decision,
        cells: Iterable[CellDelta],
        forecasts: Iterable[Forecast] = (),
    ) -> Difference | None:
        """Take one tick; `None` while either has not named a schedule, or nothing was decoded."""
        before = self._schedules
        self._schedules = (active.schedule or before[0], shadow.schedule or before[1])
        one, other = self._schedules
        if one is None or other is None:
            return None
        expected = _by_arm(forecasts)
        for cell in sound_cells(tuple(cells)):
            self._add(cell, one, other, expected)
        return self.difference()

    def difference(self) -> Difference | None:
        """What was added up; `None` before the first decode step."""
        if self._steps <= 0:
            return None
        gain = self._shadow / self._active - 1 if self._known > 0 and self._active > 0 else None
        return Difference(self._differing / self._steps, gain)

    def _add(
        self, cell: CellDelta, one: Schedule, other: Schedule, expected: Mapping[str, list[Forecast]]
    ) -> None:
        if cell.steps <= 0:
            return
        fade = 2.0 ** (-cell.steps / MEMORY_STEPS)
        batch = max(1.0, cell.request_steps / cell.steps)
        arms = (one.arm_for(int(batch)), other.arm_for(int(batch)))
        self._steps = self._steps * fade + cell.steps
        self._differing = self._differing * fade + cell.steps * (arms[0] != arms[1])
        rates = [_rate(expected.get(str(arm), []), batch) for arm in arms]
        if rates[0] is not None and rates[1] is not None:
            self._known = self._known * fade + cell.steps
            self._active = self._active * fade + cell.steps * rates[0]
            self._shadow = self._shadow * fade + cell.steps * rates[1]


def _by_arm(forecasts: Iterable[Forecast]) -> dict[str, list[Forecast]]:
    found: dict[str, list[Forecast]] = {}
    for each in forecasts:
        found.setdefault(str(each.arm), []).append(each)
    return found


def _rate(forecasts: list[Forecast], batch: float) -> float | None:
    """Expected tok/s at the batch size nearest to `batch`."""
    nearest = min(forecasts, key=lambda f: abs(f.batch_size - batch), default=None)
    return nearest.tok_s if nearest else None
