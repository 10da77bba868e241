"""What an operator writes down by hand: depth by batch size, and off while many wait.

Each boundary of the table has hysteresis in requests: going up it lies at `min_batch_size`, once crossed
it lies `hysteresis_reqs` lower until the batch has shrunk below that.  The whole table is handed to the
engine, so a burst between two ticks is answered in the next decode step; the tick only moves boundaries.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

from policies import arms, unbuilt
from policies.bounds import Bound, check_bounds
from policies.types import Action, Arm, Decision, Gear, Observation, Reason, Row, Schedule


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """From `min_batch_size` requests up, draft `depth` tokens."""

    min_batch_size: int
    """Requests decoded together on one DP rank, >= 1."""
    depth: int | None
    """Draft depth, >= 0; a depth that is not built gives the next shallower one.  `None`: the deepest."""


@dataclass(frozen=True, slots=True)
class ThresholdParams:
    """Parameters of `threshold`."""

    rows: tuple[ThresholdRow, ...] = (ThresholdRow(1, None), ThresholdRow(32, 0))
    """The table; the first row starts at 1, the rest ascend.  The default turns speculation off from 32
    requests up, which lies between the crossovers of 25 and 41 seen on one H200 with an 8B model at depth
    2 and 4: measure your own, they move with hardware, model, kernel, acceptance and context."""
    hysteresis_reqs: Annotated[int, Bound(at_least=0)] = 4
    """How far, in requests, a boundary that was crossed upwards moves down.  4 is wider than the
    step-to-step change of a batch in which one request in ten finishes at the default boundary."""
    off_at_queue_reqs: Annotated[int | None, Bound(at_least=1)] = None
    """Speculation off at every batch size once this many requests wait.  `None`: the queue is not
    looked at, since a queue behind a small, memory-bound batch is no reason to stop drafting."""
    on_below_queue_reqs: Annotated[int | None, Bound(at_least=1)] = None
    """The table rules again once fewer than this many wait, at most `off_at_queue_reqs`.  `None`: half of
    it."""
    gear: Gear = Gear.WARM
    """What the draft model does at depth 0.  Warm by default: thresholds are crossed often, and a warm
    draft KV cache lets drafting come back at once."""

    def __post_init__(self) -> None:
        """Raise `ValueError` when a value is out of range."""
        starts = [row.min_batch_size for row in self.rows]
        if not starts or starts[0] != 1 or any(b <= a for a, b in itertools.pairwise(starts)):
            raise ValueError(f"rows must start at min_batch_size 1 and ascend strictly, got {starts!r}")
        if any(row.depth is not None and row.depth < 0 for row in self.rows):
            raise ValueError(f"rows[].depth must be >= 0, got {[row.depth for row in self.rows]!r}")
        check_bounds(self)
        if self.gear is Gear.ON:
            raise ValueError(f"gear must be warm, cold or frozen, got {str(self.gear)!r}")
        self._check_queue()

    def _check_queue(self) -> None:
        off_at, on_below = self.off_at_queue_reqs, self.on_below_queue_reqs
        if on_below is not None and (off_at is None or on_below > off_at):
            raise ValueError(
                f"on_below_queue_reqs must be at most off_at_queue_reqs ({off_at}), got {on_below!r}"
            )


class Threshold:
    """Governs with the operator's table."""

    name = "threshold"

    def __init__(self, params: ThresholdParams | None = None) -> None:
        self._params = params or ThresholdParams()
        self._crossed = [False] * len(self._params.rows)
        self._queue_long = False
        self._depth: int | None = None

    def decide(self, observation: Observation) -> Decision:
        """The table with its boundaries where hysteresis has them now, or off while the queue is long."""
        batch_size = observation.batch_size
        self._cross(batch_size)
        self._judge_queue(observation.queue_reqs)
        schedule = self._schedule(observation.built)
        if schedule is None:
            return unbuilt.hold("a depth of the table", observation.built)
        reason = self._reason(schedule, batch_size)
        evidence = {
            "batch_size": batch_size,
            "queue_reqs": observation.queue_reqs,
            "queue_long": self._queue_long,
            "boundaries": [row.min_batch_size for row in schedule.rows],
        }
        return Decision(
            Action.GOVERN, reason, self._detail(schedule, batch_size), schedule, evidence=evidence
        )

    def _cross(self, batch_size: int | None) -> None:
        if batch_size is None:
            return
        for i, row in enumerate(self._params.rows):
            low = self._lowered(i) if self._crossed[i] else row.min_batch_size
            self._crossed[i] = batch_size >= low

    def _lowered(self, i: int) -> int:
        """Boundary `i` after it was crossed; never at or below the row before it."""
        rows = self._params.rows
        floor = rows[i - 1].min_batch_size + 1 if i else 1
        return max(floor, rows[i].min_batch_size - self._params.hysteresis_reqs)

    def _judge_queue(self, queue_reqs: int | None) -> None:
        off_at = self._params.off_at_queue_reqs
        if off_at is None or queue_reqs is None:
            return
        on_below = self._params.on_below_queue_reqs or max(1, off_at // 2)
        self._queue_long = queue_reqs >= (on_below if self._queue_long else off_at)

    def _schedule(self, built: tuple[Arm, ...]) -> Schedule | None:
        if self._queue_long:
            arm = arms.off(built, self._params.gear)
            return Schedule.constant(arm) if arm else None
        rows = []
        for i, row in enumerate(self._params.rows):
            arm = arms.deepest(built) if row.depth is None else self._arm(built, row.depth)
            if arm is None:
                return None
            rows.append(Row(self._lowered(i) if self._crossed[i] else row.min_batch_size, arm))
        return Schedule(tuple(rows)).merged()

    def _arm(self, built: tuple[Arm, ...], depth: int) -> Arm | None:
        return arms.at_most(built, depth, self._params.gear)

    def _reason(self, schedule: Schedule, batch_size: int | None) -> Reason:
        depth = schedule.arm_for(batch_size or 1).depth
        before, self._depth = self._depth, depth
        if before is None or depth == before:
            return Reason.THRESHOLD_STAY
        return Reason.THRESHOLD_UP if depth > before else Reason.THRESHOLD_DOWN

    def _detail(self, schedule: Schedule, batch_size: int | None) -> str:
        if self._queue_long:
            return f"off: at least {self._params.off_at_queue_reqs} requests wait"
        if batch_size is None:
            return f"batch size not known; by batch size {_bands(schedule)}"
        here = f"depth {schedule.arm_for(batch_size)} at batch size {batch_size}"
        return here if len(schedule.rows) == 1 else f"{here}; by batch size {_bands(schedule)}"


def _bands(schedule: Schedule) -> str:
    """Such as "from 1 depth 4, from 32 depth 0 warm"."""
    return ", ".join(f"from {row.min_batch_size} depth {row.arm}" for row in schedule.rows)
