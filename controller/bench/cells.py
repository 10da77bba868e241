"""What the hook counted between two answers of `GET /speculation`.  Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SUMS = (
    "steps",
    "request_steps",
    "tokens",
    "timed_steps",
    "timed_seconds",
    "timed_request_steps",
    "timed_context_tokens",
)


@dataclass(frozen=True, slots=True)
class CellCount:
    """One (batch bucket, depth, gear): differences of the hook's counters, summed over DP ranks."""

    batch_bucket: int
    depth: int
    gear: str
    steps: int
    request_steps: int
    tokens: int
    timed_steps: int
    timed_seconds: float
    timed_request_steps: int
    timed_context_tokens: int

    @property
    def step_ms(self) -> float | None:
        """Mean time of a clean decode step; `None` without one."""
        return 1e3 * self.timed_seconds / self.timed_steps if self.timed_steps else None


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[CellCount, ...]:
    """Counts between two states; raises `ValueError` when a counter went back (the engine restarted)."""
    old, new = _sums(before), _sums(after)
    counts = []
    for key in sorted(old.keys() | new.keys()):
        delta = {name: new.get(key, {}).get(name, 0) - old.get(key, {}).get(name, 0) for name in _SUMS}
        if delta["steps"] < 0:
            raise ValueError(
                f"counters of {key} must not go back, got {delta['steps']} steps: the engine restarted"
            )
        if delta["steps"]:
            counts.append(CellCount(*key, **delta))
    return tuple(counts)


def merge(counts: Iterable[CellCount]) -> tuple[CellCount, ...]:
    """Add up counts of the same cell."""
    sums: dict[tuple[int, int, str], dict[str, Any]] = defaultdict(lambda: dict.fromkeys(_SUMS, 0))
    for count in counts:
        into = sums[count.batch_bucket, count.depth, count.gear]
        for name in _SUMS:
            into[name] += getattr(count, name)
    return tuple(CellCount(*key, **values) for key, values in sorted(sums.items()))


def _sums(state: Mapping[str, Any]) -> dict[tuple[int, int, str], dict[str, Any]]:
    sums: dict[tuple[int, int, str], dict[str, Any]] = defaultdict(lambda: dict.fromkeys(_SUMS, 0))
    for rank in state.get("telemetry") or []:
        for cell in rank["cells"]:
            into = sums[cell["batch_bucket"], cell["depth"], cell["gear"]]
            for name in _SUMS:
                into[name] += cell[name]
    return sums
