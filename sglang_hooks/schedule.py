"""The schedule: which draft depth to use at which batch size, and when to probe.

Pure: standard library only, no SGLang, no clock.  Used by the scheduler processes (lookup), by the
HTTP process (validation of a PUT) and by the simulated engine.

Two forms:

- JSON, as `PUT /speculation` takes it (`parse_plan`);
- flat numbers, as SGLang's `set_internal_state` request carries them, since that request is a
  `Dict[str, int | float]` (`Plan.to_wire`, `Plan.from_wire`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

GEARS = ("on", "warm", "cold", "frozen")
"""What happens to the draft model in a step, most work first.

`on`: drafts are proposed and verified (depth > 0, always).  The others are gears of off (depth 0):
`warm`: draft-extend keeps the draft KV cache in step.  `cold`: draft-extend is skipped; requests
that live through it draft badly until they end.  `frozen`: as `cold`, and the draft prefill of new
requests is skipped too.
"""

MAX_ROWS = 64
MAX_BATCH_SIZE = 1 << 20
MAX_STEPS = 1 << 30
MAX_LEASE_S = 3600.0
MAX_SEQUENCE = (1 << 53) - 1
PREFIX = "specgov."


class InvalidPlanError(ValueError):
    """A plan that must not be applied.

    `field` is the JSON path of the offending value, e.g. `schedule[2].depth`.
    """

    def __init__(self, field: str, rule: str, value: object) -> None:
        super().__init__(f"{field} {rule}, got {_short(value)}")
        self.field = field
        self.rule = rule
        self.value = value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, slots=True)
class Row:
    """From `min_batch_size` requests up (until the next row), draft `depth` tokens, in `gear`."""

    min_batch_size: int
    depth: int
    gear: str = "on"

    def to_json(self) -> dict[str, Any]:
        """The JSON form, as `PUT /speculation` takes it."""
        row: dict[str, Any] = {"min_batch_size": self.min_batch_size, "depth": self.depth}
        if self.depth == 0:
            row["gear"] = self.gear
        return row


@dataclass(frozen=True, slots=True)
class Probe:
    """Every `every_steps` decode steps within the batch-size range, `burst_steps` steps at `depth`.

    `min_batch_size` and `max_batch_size` are inclusive; steps outside the range are not counted and
    end a burst.  `bursts` is how many bursts are run at most under this plan.
    """

    depth: int
    every_steps: int
    burst_steps: int
    gear: str = "on"
    min_batch_size: int = 1
    max_batch_size: int = MAX_BATCH_SIZE
    bursts: int = MAX_STEPS

    def to_json(self) -> dict[str, Any]:
        """The JSON form, as `PUT /speculation` takes it."""
        probe: dict[str, Any] = {
            "depth": self.depth,
            "every_steps": self.every_steps,
            "burst_steps": self.burst_steps,
            "min_batch_size": self.min_batch_size,
            "max_batch_size": self.max_batch_size,
            "bursts": self.bursts,
        }
        if self.depth == 0:
            probe["gear"] = self.gear
        return probe


class Schedule:
    """An immutable table from batch size to `Row`; the first row starts at batch size 1."""

    __slots__ = ("_starts", "rows")

    def __init__(self, rows: Iterable[Row]) -> None:
        """Raises `InvalidPlanError` when the rows are not a table (see `check_rows`)."""
        self.rows: tuple[Row, ...] = tuple(rows)
        check_rows(self.rows)
        self._starts = [row.min_batch_size for row in self.rows]

    def row_for(self, batch_size: int) -> Row:
        """The row in force at `batch_size`; sizes below 1 get the first row."""
        return self.rows[max(0, bisect.bisect_right(self._starts, batch_size) - 1)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return f"Schedule({list(self.rows)!r})"


def check_rows(rows: tuple[Row, ...]) -> None:
    """Raise `InvalidPlanError` unless `rows` start at 1, ascend strictly, and pair depth with gear."""
    if not rows:
        raise InvalidPlanError("schedule", "must have at least one row", [])
    if len(rows) > MAX_ROWS:
        raise InvalidPlanError("schedule", f"must have at most {MAX_ROWS} rows", len(rows))
    previous = 0
    for i, row in enumerate(rows):
        at = f"schedule[{i}]"
        if i == 0 and row.min_batch_size != 1:
            rule = "must be 1 in the first row, so that no batch size is left without a depth"
            raise InvalidPlanError(f"{at}.min_batch_size", rule, row.min_batch_size)
        if row.min_batch_size <= previous:
            rule = f"must be above the row before ({previous})"
            raise InvalidPlanError(f"{at}.min_batch_size", rule, row.min_batch_size)
        if row.min_batch_size > MAX_BATCH_SIZE:
            raise InvalidPlanError(
                f"{at}.min_batch_size", f"must be at most {MAX_BATCH_SIZE}", row.min_batch_size
            )
        check_arm(at, row.depth, row.gear)
        previous = row.min_batch_size


def check_arm(at: str, depth: int, gear: str) -> None:
    """Raise `InvalidPlanError` unless `gear` goes with `depth` (`on` exactly when depth > 0)."""
    if depth < 0:
        raise InvalidPlanError(f"{at}.depth", "must be >= 0", depth)
    if gear not in GEARS:
        raise InvalidPlanError(f"{at}.gear", f"must be one of {', '.join(GEARS)}", gear)
    if (depth > 0) != (gear == "on"):
        rule = "must be warm, cold or frozen at depth 0 and is left out at depth > 0"
        raise InvalidPlanError(f"{at}.gear", rule, gear)
