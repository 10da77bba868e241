"""What `GET /speculation` says, as records, and plans in the form that `PUT` takes.  Pure.

See docs/protocol.md.  Unknown fields are ignored; what is not sound is `None` or left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.reading import mapping, number, rows, text, whole
from policies.types import Arm, Gear, Probe, Row, Schedule

PROTOCOL = 1
MAX_SEQUENCE = (1 << 53) - 1
MAX_DEPTH = 64
"""Depths above this are not taken for real."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is put in force: a table and, perhaps, a probe."""

    schedule: Schedule
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """Counters of one (batch bucket, arm) since the engine started; see `policies.types.CellDelta`."""

    batch_bucket: int
    arm: Arm
    steps: int
    request_steps: int
    tokens: int
    accepted: tuple[int, ...]
    accepted_after_cold: tuple[int, ...]
    timed_steps: int
    timed_seconds: float
    timed_seconds_sq: float
    timed_request_steps: int
    timed_context_tokens: int
    after_prefill_steps: int = 0
    after_prefill_seconds: float = 0.0
    skipped_prefill: int = 0
    skipped_prefill_seconds: float = 0.0
    prefill_spells: int = 0
    prefilled_requests: int = 0
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RankTelemetry:
    """Counters of one DP rank since its scheduler started, and its latest decode step."""

    dp_rank: int
    started_unix_s: float | None
    decode_steps: int | None
    prefill_batches: int | None
    switches: int | None
    probe_steps: int | None
    hook_errors: int | None
    arm: Arm | None
    batch_size: int | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RankAck:
    """What one scheduler process applied last; `sequence` is `None` when it cannot be seen."""

    dp_rank: int | None
    tp_rank: int | None
    sequence: int | None


@dataclass(frozen=True, slots=True)
class ControlState:
    """The control side of the engine."""

    protocol: int | None
    plugin_version: str | None
    sglang_version: str | None
    controllable: bool
    reason: str | None
    """Why control is impossible."""
    built: tuple[Arm, ...]
    built_depths: tuple[int, ...]
    fallback: str | None
    state: str | None
    """`governed`, `fallback` or `native`."""
    plan: Plan | None
    """What is in force; `None`: nothing, or not readable."""
    sequence: int
    holder: str | None
    lease_left_s: float | None
    lease_expired: int | None
    """Leases that ended by themselves since the engine started."""
    plain_decode: bool | None
    plain_decode_reason: str | None
    chain_verify: bool | None
    """Whether the target verifies by decoding; `None`: a hook that does not say."""
    chain_verify_backend: str | None
    """The target's attention backend."""
    chain_verify_reason: str | None
    """Why it does not."""
    ranks: tuple[RankAck, ...]
    ranks_agree: bool | None
    telemetry: tuple[RankTelemetry, ...]
    problems: tuple[str, ...] = ()

    @property
    def lease_live(self) -> bool:
        """Whether somebody's plan is in force under a lease."""
        return self.state == "governed" and bool(self.lease_left_s)

    def held_by(self, holder: str) -> bool:
        """Whether `holder`'s plan is in force."""
        return self.lease_live and self.holder == holder


def parse_control_state(body: Any) -> ControlState | None:
    """The answer of `GET`, `PUT` or `DELETE /speculation`; `None` when it is not that."""
    state = mapping(body)
    if "controllable" not in state:
        return None
    problems: list[str] = []
    depths = _depths(state.get("built_depths"))
    lease, plain = mapping(state.get("lease")), mapping(state.get("plain_decode"))
    telemetry = [_telemetry(row, problems) for row in rows(state.get("telemetry"), 1024)]
    agree, in_force = state.get("ranks_agree"), plain.get("in_force")
    chain = mapping(state.get("chain_verify"))
    chained = chain.get("in_force")
    return ControlState(
        protocol=whole(state.get("protocol")),
        plugin_version=text(state.get("plugin_version"), 64),
        sglang_version=text(state.get("sglang_version"), 64),
        controllable=state.get("controllable") is True,
        reason=text(state.get("reason")),
        built=_arms(depths, state.get("gears")),
        built_depths=depths,
        fallback=str(state.get("fallback"))[:64],
        state=text(state.get("state"), 64),
        plan=_plan(state, problems),
        sequence=min(whole(state.get("sequence")) or 0, MAX_SEQUENCE),
        holder=text(state.get("holder"), 128),
        lease_left_s=number(lease.get("left_s")),
        lease_expired=whole(lease.get("expired")),
        plain_decode=in_force if isinstance(in_force, bool) else None,
        plain_decode_reason=text(plain.get("reason")),
        chain_verify=chained if isinstance(chained, bool) else None,
        chain_verify_backend=text(chain.get("backend"), 128),
        chain_verify_reason=text(chain.get("reason")),
        ranks=tuple(_ack(row) for row in rows(state.get("ranks"), 4096)),
        ranks_agree=agree if isinstance(agree, bool) else None,
        telemetry=tuple(rank for rank in telemetry if rank is not None),
        problems=tuple(problems),
    )


def plan_to_json(plan: Plan, *, lease_s: float, sequence: int, holder: str) -> dict[str, Any]:
    """The body of `PUT /speculation`."""
    table = [{"min_batch_size": row.min_batch_size, **_arm_json(row.arm)} for row in plan.schedule.rows]
    probe = plan.probe
    probe_json = probe and {
        **_arm_json(probe.arm),
        "every_steps": probe.every_steps,
        "burst_steps": probe.burst_steps,
        "min_batch_size": probe.min_batch_size,
        "max_batch_size": probe.max_batch_size,
        "bursts": probe.bursts,
    }
    return {
        "schedule": table,
        "probe": probe_json,
        "lease_s": lease_s,
        "sequence": sequence,
        "holder": holder,
    }


def schedule_to_json(schedule: Schedule) -> list[dict[str, Any]]:
    """The table as status and logs show it."""
    return [{"min_batch_size": row.min_batch_size, **_arm_json(row.arm)} for row in schedule.rows]


def _arm_json(arm: Arm) -> dict[str, Any]:
    return {"depth": arm.depth} if arm.depth else {"depth": 0, "gear": str(arm.gear)}


def _depths(value: Any) -> tuple[int, ...]:
    found = {whole(depth) for depth in value[:MAX_DEPTH]} if isinstance(value, list) else set()
    return tuple(sorted(depth for depth in found if depth is not None and depth <= MAX_DEPTH))


def _arms(depths: tuple[int, ...], gears: Any) -> tuple[Arm, ...]:
    known = [g for g in (gears if isinstance(gears, list) else []) if g in ("warm", "cold", "frozen")]
    off = [Arm(0, Gear(g)) for g in dict.fromkeys(known or ["warm"])] if 0 in depths else []
    return (*off, *(Arm(depth) for depth in depths if depth))


def _arm(value: Mapping[str, Any]) -> Arm | None:
    depth = whole(value.get("depth"))
    if depth is None or depth > MAX_DEPTH:
        return None
    gear = value.get("gear", "on" if depth else "warm")
    try:
        return Arm(depth, Gear(gear))
    except ValueError:
        return None


def _plan(state: Mapping[str, Any], problems: list[str]) -> Plan | None:
    if state.get("schedule") is None:
        return None
    table = [(whole(row.get("min_batch_size")), _arm(row)) for row in rows(state["schedule"], 64)]
    try:
        schedule = Schedule(tuple(Row(n, arm) for n, arm in table if n is not None and arm is not None))
        return Plan(schedule, _probe(mapping(state.get("probe"))))
    except ValueError as error:
        problems.append(f"schedule: {error}")
        return None


def _probe(value: Mapping[str, Any]) -> Probe | None:
    arm = _arm(value)
    names = ("every_steps", "burst_steps", "min_batch_size", "max_batch_size", "bursts")
    numbers = [whole(value.get(name)) for name in names]
    if arm is None or any(n is None for n in numbers):
        return None
    every, burst, low, high, bursts = (n or 0 for n in numbers)
    return Probe(arm, every, burst, low, high, bursts)


def _ack(row: Mapping[str, Any]) -> RankAck:
    return RankAck(whole(row.get("dp_rank")), whole(row.get("tp_rank")), whole(row.get("sequence")))


def _telemetry(row: Mapping[str, Any], problems: list[str]) -> RankTelemetry | None:
    rank = whole(row.get("dp_rank"))
    if rank is None:
        problems.append("telemetry: dp_rank")
        return None
    cells = [_cell(cell, rank, problems) for cell in rows(row.get("cells"))]
    return RankTelemetry(
        dp_rank=rank,
        started_unix_s=number(row.get("started_unix_s")),
        decode_steps=whole(row.get("decode_steps")),
        prefill_batches=whole(row.get("prefill_batches")),
        switches=whole(row.get("switches")),
        probe_steps=whole(row.get("probe_steps")),
        hook_errors=whole(row.get("hook_errors")),
        arm=_arm(row),
        batch_size=whole(row.get("batch_size")),
        cells=tuple(cell for cell in cells if cell is not None),
    )


_PREFILLS = ("skipped_prefill", "prefill_spells", "prefilled_requests", "prefilled_tokens")
_COUNTS = ("steps", "request_steps", "tokens", "timed_steps", "timed_request_steps", "timed_context_tokens")


def _cell(row: Mapping[str, Any], rank: int, problems: list[str]) -> Cell | None:
    """A cell is whole or nothing: half of its counters would make a wrong rate."""
    arm, bucket = _arm(row), whole(row.get("batch_bucket"))
    counts = {name: whole(row.get(name)) for name in _COUNTS}
    seconds, squares = number(row.get("timed_seconds")), number(row.get("timed_seconds_sq"))
    accepted, after_cold = _histogram(row.get("accepted")), _histogram(row.get("accepted_after_cold"))
    if arm is None or bucket is None or seconds is None or squares is None or accepted is None:
        problems.append(f"dp_rank {rank}: cell {row.get('batch_bucket')!r} {row.get('depth')!r}")
        return None
    if any(count is None for count in counts.values()):
        problems.append(f"dp_rank {rank}: cell {bucket} {arm}")
        return None
    known = {name: count or 0 for name, count in counts.items()}
    return Cell(
        bucket,
        arm,
        accepted=accepted,
        accepted_after_cold=after_cold or (0,) * len(accepted),
        timed_seconds=seconds,
        timed_seconds_sq=squares,
        after_prefill_steps=whole(row.get("after_prefill_steps")) or 0,
        after_prefill_seconds=number(row.get("after_prefill_seconds")) or 0.0,
        **_prefills(row),
        **known,
    )


def _prefills(row: Mapping[str, Any]) -> dict[str, Any]:
    """All or none: what a prefill adds cannot be told from half of the counters."""
    seconds = number(row.get("skipped_prefill_seconds"))
    counts = {name: whole(row.get(name)) for name in _PREFILLS}
    if seconds is None or any(count is None for count in counts.values()):
        return {}
    return {"skipped_prefill_seconds": seconds, **counts}


def _histogram(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_DEPTH + 1:
        return None
    counts = [whole(count) for count in value]
    return None if any(count is None for count in counts) else tuple(count or 0 for count in counts)
