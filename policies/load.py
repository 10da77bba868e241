"""At which batch sizes the engine decodes, and how often it crosses from one to another.

Plain words: a depth that is better at a batch size that never occurs brings nothing, and a boundary
that the batch crosses ten times a second costs ten switches a second.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.acceptance import read_number
from policies.soundness import finite
from policies.step_cost import KNOTS, bucket_index
from policies.types import CellDelta, Schedule

Floats = npt.NDArray[np.float64]

MEMORY_S, MEMORY_STEPS = 120.0, 20000.0
PRIOR_IDLE_S = 20.0
"""As if the server had been idle for so long before: what is not known yet is not spent ahead."""
PRIOR_STEPS, PRIOR_FALLS = 300.0, 0.3
"""What is believed of falls until they are counted: one in a thousand steps, with the weight of 0.3 falls."""
PRIOR_CROSSINGS = 3.0
"""Weight of the belief that ticks show every crossing, in crossings."""


class Load:
    """Decode time by bucket, exponentially forgotten, and the rate of crossings."""

    def __init__(self) -> None:
        self.seconds = np.zeros(len(KNOTS))
        self.batch = np.array(KNOTS, dtype=np.float64)
        """Mean batch size within each bucket."""
        self.latest = np.zeros(len(KNOTS))
        """Decode steps of the latest tick that had any."""
        self._busy_s, self._watched_s = 0.0, PRIOR_IDLE_S
        self.step_s = 0.01
        """Mean seconds of a decode step."""
        self._steps = 0.0
        self._crossed = np.zeros(len(KNOTS))
        """Crossings of the lower edge of each bucket that ticks have shown."""
        self._fallen = np.zeros(len(KNOTS))
        """Ticks in which the batch fell below that edge."""
        self._shown_now = np.zeros(len(KNOTS))
        self._above: npt.NDArray[np.bool_] | None = None
        """On which side of each edge the latest tick ended, as far as it shows."""
        self._switched, self._shown = PRIOR_CROSSINGS, PRIOR_CROSSINGS

    def observe(self, cells: Sequence[CellDelta], seconds: Sequence[float], dt_s: float) -> None:
        """Take one tick; `seconds` are the decode seconds of each cell."""
        if dt_s > 0:
            fade = 2.0 ** (-dt_s / MEMORY_S)
            self._busy_s = self._busy_s * fade + min(dt_s, sum(seconds))
            self._watched_s = self._watched_s * fade + dt_s
        steps = sum(cell.steps for cell in cells)
        if steps <= 0:
            return
        fade = 2.0 ** (-steps / MEMORY_STEPS)
        self._steps = self._steps * fade + steps
        self._crossed *= fade
        self._fallen *= fade
        self.step_s += steps / self._steps * (max(1e-6, sum(seconds) / steps) - self.step_s)
        self.seconds *= 2.0 ** (-min(dt_s, sum(seconds)) / MEMORY_S)
        self.latest = np.zeros(len(KNOTS))
        for cell, spent in zip(cells, seconds, strict=True):
            k = bucket_index(cell.batch_bucket)
            self.seconds[k] += spent
            self.latest[k] += cell.steps
            share = spent / max(1e-9, self.seconds[k])
            self.batch[k] += share * (cell.request_steps / max(1.0, cell.steps) - self.batch[k])

        self._cross()

    def _cross(self) -> None:
        """Count the crossings of every edge that this tick shows: within it, and since the one before."""
        below = np.concatenate(([0.0], np.cumsum(self.latest)[:-1]))
        above = self.latest.sum() - below
        side = above > below
        before = side if self._above is None else self._above
        within = (below > 0) & (above > 0)
        self._shown_now = np.where(within, 1.0 + (side == before), side != before)
        self._crossed += self._shown_now
        self._fallen += np.where(within, before | ~side, before & ~side)
        self._above = side

    def observe_switches(self, schedule: Schedule | None, switches: float) -> None:
        """`switches` (without those of probes) were made in the latest tick under `schedule`.

        A batch may cross an edge many times within one tick; how many more than ticks show is learned here.
        """
        if schedule is None or len(schedule.rows) < 2:
            return
        shown = sum(float(self._shown_now[bucket_index(row.min_batch_size)]) for row in schedule.rows[1:])
        if shown <= 0:
            return
        fade = 2.0 ** (-shown / 100.0)
        self._switched = self._switched * fade + switches
        self._shown = self._shown * fade + shown

    @property
    def activity(self) -> float:
        """Share of the time that is spent in decode steps, 0..1."""
        return self._busy_s / self._watched_s

    @property
    def current_bucket(self) -> int | None:
        """Index of the bucket with the most steps in the latest tick; `None` before the first."""
        return int(self.latest.argmax()) if self.latest.any() else None

    def shares(self, starts: Sequence[int]) -> Floats:
        """Share of decode time in each interval between `starts`."""
        return self._spread(self.seconds, starts)

    def sizes(self, starts: Sequence[int], middles: Sequence[float]) -> tuple[float, ...]:
        """The size that stands for each interval between `starts`: the mean where one lies, else its middle.

        A batch that clients hold at 256 is timed there, and not in the middle of all that begins with 256.
        """
        sizes = list(middles)
        for batch, spent in zip(self.batch.tolist(), self.seconds.tolist(), strict=True):
            if spent > 0:
                sizes[bisect.bisect_right(starts, batch) - 1] = round(batch, 1)
        return tuple(sizes)

    def crossings(self, starts: Sequence[int]) -> Floats:
        """Expected crossings per decode step of a boundary at each of `starts[1:]`."""
        often = self._switched / self._shown
        edge = _intervals(tuple(starts)).bucket[1:]
        return np.asarray(often * (self._crossed[edge] + 1e-3) / (self._steps + 1.0))

    def falls(self, starts: Sequence[int]) -> Floats:
        """Expected ticks per decode step in which the batch shrinks below each of `starts[1:]`.

        Until much was seen: one in a thousand.
        """
        edge = _intervals(tuple(starts)).bucket[1:]
        return np.asarray((self._fallen[edge] + PRIOR_FALLS) / (self._steps + PRIOR_STEPS))

    def _spread(self, weights: Floats, starts: Sequence[int]) -> Floats:
        """Shares by interval: a bucket's weight forms a triangle around its mean batch size.

        The nearer the mean lies to an edge of the bucket, the narrower the triangle: at 256 of at most 256
        requests nothing lies at 300.
        """
        at = _intervals(tuple(starts))
        k, low, high = at.bucket, at.low, at.high
        reach = 2 * np.minimum(self.batch[k] - low, high - 1 - self.batch[k]) + (high - low) / 4
        shape = np.maximum(1e-9, 1 - np.abs(at.middle - self.batch[k]) / np.maximum(1.0, reach))
        of_bucket = np.bincount(k, weights=shape, minlength=len(KNOTS))
        return np.asarray(weights[k] * shape / of_bucket[k] / max(1e-9, float(weights.sum())))

    def export_state(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "seconds": self.seconds.tolist(),
            "batch": self.batch.tolist(),
            "crossed": self._crossed.tolist(),
            "fallen": self._fallen.tolist(),
            "steps": self._steps,
            "switched": self._switched,
            "shown": self._shown,
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming the field."""
        seconds, batch = _counts(state, "seconds"), _counts(state, "batch")
        crossed, fallen = _counts(state, "crossed"), _counts(state, "fallen")
        steps, switched, shown = (read_number(state, n, low) for n, low in _NUMBERS)
        self.seconds, self.batch = seconds, batch
        self._crossed, self._fallen, self._steps = crossed, fallen, steps
        self._switched, self._shown = switched, shown


@dataclass(frozen=True)
class _Intervals:
    """What follows from the starts of intervals alone: asked for several times a tick, always the same."""

    bucket: npt.NDArray[np.intp]
    """Index of the bucket that each lies in ..."""
    low: npt.NDArray[np.intp]
    high: npt.NDArray[np.intp]
    """... and its edges."""
    middle: Floats


@functools.lru_cache(maxsize=16)
def _intervals(starts: tuple[int, ...]) -> _Intervals:
    bucket = np.array([bucket_index(start) for start in starts], dtype=np.intp)
    ends = [*starts[1:], 2 * KNOTS[-1]]
    middle = np.array([(a + b - 1) / 2 for a, b in zip(starts, ends, strict=True)])
    low, high = np.array(KNOTS), np.array([*KNOTS[1:], 2 * KNOTS[-1]])
    return _Intervals(bucket, low[bucket], high[bucket], middle)


def _counts(state: Mapping[str, Any], name: str) -> Floats:
    values = state.get(name)
    if not isinstance(values, list) or len(values) != len(KNOTS) or None in map(finite, values):
        raise ValueError(f"{name} must be {len(KNOTS)} counts, got {values!r:.80}")
    return np.array(values, dtype=np.float64)


_NUMBERS = (("steps", 0.0), ("switched", 0.0), ("shown", 1e-3))


def grid() -> tuple[list[int], list[float]]:
    """Batch sizes at which a row may begin, and the size that stands for each interval.

    Every bucket of the telemetry, cut into up to four: a crossover inside a wide bucket is then placed
    within a quarter of it.
    """
    starts: list[int] = []
    for i, knot in enumerate(KNOTS):
        end = KNOTS[i + 1] if i + 1 < len(KNOTS) else 2 * knot
        parts = min(4, end - knot)
        starts.extend(knot + (end - knot) * part // parts for part in range(parts))
    ends = [*starts[1:], 2 * KNOTS[-1]]
    return starts, [(a + b - 1) / 2 for a, b in zip(starts, ends, strict=True)]
