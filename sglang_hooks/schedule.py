"""The schedule: which draft depth to use at which batch size, and when to probe.

Pure: standard library only, no SGLang, no clock.  Used by the scheduler processes (lookup), by the
HTTP process (validation of a PUT) and by the simulated engine.

Two forms:

- JSON, as `PUT /speculation` takes it (`parse_plan`);
- flat numbers, as SGLang's `set_internal_state` request carries them, since that request is a
  `Dict[str, int | float]` (`Command.to_wire`, `Command.from_wire`).
"""

from __future__ import annotations

import bisect
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GEARS = ("on", "warm", "cold", "frozen")
"""What happens to the draft model in a step, most work first.

`on`: drafts are proposed and verified (depth > 0, always).  The others are gears of off (depth 0):
`warm`: draft-extend keeps the draft KV cache in step.  `cold`: draft-extend is skipped; requests
that live through it draft badly until they end.  `frozen`: as `cold`, and the draft prefill of new
requests is skipped too.
"""
GEAR_RULE = "must be warm, cold or frozen at depth 0 and is left out at depth > 0"

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


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def _short(value: object) -> str:
    return _REPR.repr(value)


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
    if gear not in GEARS or (depth > 0) != (gear == "on"):
        raise InvalidPlanError(f"{at}.gear", GEAR_RULE, gear)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a `PUT /speculation` asks for."""

    schedule: Schedule
    probe: Probe | None
    lease_s: float
    """Seconds that the plan is in force unless renewed; 1..3600."""
    sequence: int
    """Order of plans; 1..2^53-1."""
    holder: str
    """Who sent it; 1..128 printable characters."""


@dataclass(frozen=True, slots=True)
class Command:
    """What the HTTP process tells every scheduler process: follow `schedule`, or, with `None`, SGLang.

    `order` is the HTTP process's own counter, `sequence` the holder's (0: no plan was ever sent).
    """

    order: int
    sequence: int
    schedule: Schedule | None
    probe: Probe | None = None

    def to_wire(self) -> dict[str, int | float]:
        """The flat form; every value is an `int`."""
        rows = self.schedule.rows if self.schedule is not None else ()
        flat: dict[str, int | float] = {
            f"{PREFIX}order": self.order,
            f"{PREFIX}sequence": self.sequence,
            f"{PREFIX}rows": len(rows),
        }
        for i, row in enumerate(rows):
            flat[f"{PREFIX}row.{i}.min_batch_size"] = row.min_batch_size
            flat[f"{PREFIX}row.{i}.depth"] = row.depth
            flat[f"{PREFIX}row.{i}.gear"] = GEARS.index(row.gear)
        if self.probe is not None:
            for name in _PROBE_NUMBERS:
                flat[f"{PREFIX}probe.{name}"] = getattr(self.probe, name)
            flat[f"{PREFIX}probe.gear"] = GEARS.index(self.probe.gear)
        return flat

    @classmethod
    def from_wire(
        cls, flat: Mapping[str, object], built_depths: Collection[int], gears: Collection[str]
    ) -> Command:
        """Read the flat form back, trusting nothing; raises `InvalidPlanError` naming the key.

        SGLang coerces "1" and true to numbers on the way, and whoever may call its
        `/set_internal_state` may send our keys, so everything is checked again.
        """
        left = dict(flat)

        def take(name: str, low: int, high: int) -> int:
            key = PREFIX + name
            if key not in left:
                raise InvalidPlanError(key, "must be given", None)
            return _integer(key, left.pop(key), low, high)

        def take_gear(name: str) -> str:
            return GEARS[take(name, 0, len(GEARS) - 1)]

        order, sequence = take("order", 1, MAX_SEQUENCE), take("sequence", 0, MAX_SEQUENCE)
        rows = tuple(
            Row(
                take(f"row.{i}.min_batch_size", 1, MAX_BATCH_SIZE),
                take(f"row.{i}.depth", 0, MAX_STEPS),
                take_gear(f"row.{i}.gear"),
            )
            for i in range(take("rows", 0, MAX_ROWS))
        )
        probe = None
        if any(key.startswith(f"{PREFIX}probe.") for key in left):
            numbers = {name: take(f"probe.{name}", 0, MAX_STEPS) for name in _PROBE_NUMBERS}
            probe = Probe(gear=take_gear("probe.gear"), **numbers)
        if left:
            raise InvalidPlanError(min(left), "is not a known key", left[min(left)])
        if not rows and probe is not None:
            raise InvalidPlanError(f"{PREFIX}probe.depth", "must come with a schedule", probe.depth)
        schedule = Schedule(rows) if rows else None
        check_available(schedule, probe, built_depths, gears)
        return cls(order, sequence, schedule, probe)


_PROBE_NUMBERS = ("depth", "every_steps", "burst_steps", "min_batch_size", "max_batch_size", "bursts")


def check_available(
    schedule: Schedule | None, probe: Probe | None, built_depths: Collection[int], gears: Collection[str]
) -> None:
    """Raise `InvalidPlanError` when a depth was not built or a gear of off is not in force here."""
    arms = [(f"schedule[{i}]", r.depth, r.gear) for i, r in enumerate(schedule.rows if schedule else ())]
    if probe is not None:
        check_probe(probe)
        arms.append(("probe", probe.depth, probe.gear))
    for at, depth, gear in arms:
        if depth not in built_depths:
            built = ", ".join(map(str, sorted(built_depths)))
            raise InvalidPlanError(f"{at}.depth", f"must be a built depth ({built})", depth)
        if depth == 0 and gear not in gears:
            rule = f"must be a gear that is available here ({', '.join(gears)})"
            raise InvalidPlanError(f"{at}.gear", rule, gear)


def check_probe(probe: Probe) -> None:
    """Raise `InvalidPlanError` unless the probe's numbers go together."""
    check_arm("probe", probe.depth, probe.gear)
    for name in ("every_steps", "burst_steps", "min_batch_size", "bursts"):
        if getattr(probe, name) < 1:
            raise InvalidPlanError(f"probe.{name}", "must be >= 1", getattr(probe, name))
    if probe.burst_steps > probe.every_steps:
        rule = f"must be at most probe.every_steps ({probe.every_steps})"
        raise InvalidPlanError("probe.burst_steps", rule, probe.burst_steps)
    if probe.max_batch_size < probe.min_batch_size:
        rule = f"must be at least probe.min_batch_size ({probe.min_batch_size})"
        raise InvalidPlanError("probe.max_batch_size", rule, probe.max_batch_size)


def parse_plan(body: object, built_depths: Collection[int], gears: Collection[str]) -> Plan:
    """Read the JSON of a `PUT /speculation`; raises `InvalidPlanError` naming the JSON path."""
    fields = _object("", body, {"schedule", "lease_s", "sequence", "holder"}, {"probe"})
    rows = fields["schedule"]
    if not isinstance(rows, list):
        raise InvalidPlanError("schedule", "must be a list of rows", rows)
    if len(rows) > MAX_ROWS:
        raise InvalidPlanError("schedule", f"must have at most {MAX_ROWS} rows", len(rows))
    schedule = Schedule(_parse_row(f"schedule[{i}]", row) for i, row in enumerate(rows))
    probe = _parse_probe(fields["probe"]) if fields.get("probe") is not None else None
    check_available(schedule, probe, built_depths, gears)
    return Plan(
        schedule=schedule,
        probe=probe,
        lease_s=_number("lease_s", fields["lease_s"], 1.0, MAX_LEASE_S),
        sequence=_integer("sequence", fields["sequence"], 1, MAX_SEQUENCE),
        holder=_holder(fields["holder"]),
    )


def _parse_row(at: str, row: object) -> Row:
    fields = _object(at, row, {"min_batch_size", "depth"}, {"gear"})
    depth = _integer(f"{at}.depth", fields["depth"], 0, MAX_STEPS)
    start = _integer(f"{at}.min_batch_size", fields["min_batch_size"], 1, MAX_BATCH_SIZE)
    return Row(start, depth, _gear(at, fields, depth))


def _parse_probe(probe: object) -> Probe:
    required = {"depth", "every_steps", "burst_steps"}
    fields = _object("probe", probe, required, {"gear", "min_batch_size", "max_batch_size", "bursts"})
    numbers = {
        name: _integer(f"probe.{name}", fields[name], 0, MAX_STEPS)
        for name in _PROBE_NUMBERS
        if name in fields
    }
    return Probe(gear=_gear("probe", fields, numbers["depth"]), **numbers)


def _gear(at: str, fields: Mapping[str, object], depth: int) -> str:
    gear = fields.get("gear", "on" if depth > 0 else "warm")
    if not isinstance(gear, str):
        raise InvalidPlanError(f"{at}.gear", GEAR_RULE, gear)
    return gear


def _holder(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or not value.isprintable():
        raise InvalidPlanError("holder", "must be 1 to 128 printable characters", value)
    return value


def _object(at: str, value: object, required: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidPlanError(at or "body", "must be an object", value)
    prefix = f"{at}." if at else ""
    for key in value:
        if key not in required and key not in optional:
            rule = f"is not a known field (known: {', '.join(sorted(required | optional))})"
            raise InvalidPlanError(prefix + _short(key).strip("'"), rule, value[key])
    for key in sorted(required - value.keys()):
        raise InvalidPlanError(prefix + key, "must be given", None)
    return value


def _integer(at: str, value: object, low: int, high: int) -> int:
    if type(value) is not int:  # bool is an int, 3.0 is a float: neither is what was meant
        raise InvalidPlanError(at, "must be an integer", value)
    if not low <= value <= high:
        raise InvalidPlanError(at, f"must be between {low} and {high}", value)
    return value


def _number(at: str, value: object, low: float, high: float) -> float:
    if type(value) not in (int, float):
        raise InvalidPlanError(at, "must be a number", value)
    if not low <= value <= high:  # type: ignore[operator]  # also refuses NaN
        raise InvalidPlanError(at, f"must be between {low:g} and {high:g}", value)
    return float(value)  # type: ignore[arg-type]
