"""The cost profile that a benchmark measured, as `specgov replay` and `specgov demo` read it.  Pure.

Step times of a steered server come from the hook (clean decode intervals, by batch size); those of a server
without speculation from its streams, one token a step: the median gap between tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.bench.outcome import Outcome
from controller.bench.statistics import quantile

MIN_TIMED_STEPS = 20
"""A cell with fewer clean steps says too little."""
_ROW_OF_GEAR = {"cold": "depth_0_plain_decode", "frozen": "depth_0_plain_decode"}


def cost_profile(outcome: Outcome, name: str) -> dict[str, Any] | None:
    """The profile; `None` unless a step time of a steered server was measured.

    A server without speculation adds a row for comparison; alone it has nothing to replay.
    """
    about: Mapping[str, Any] = outcome.about
    rows: dict[str, dict[int, float]] = {}
    for label, depth in outcome.held_depths().items():
        if label in outcome.plain:
            rows["plain"] = _plain_row(outcome, label)
            continue
        for concurrency in sorted(outcome.throughput().get(label, {})):
            row = _row_name(depth, label, own_off=_own_off(about))
            for batch_size, ms in _steered(outcome, label, depth, concurrency).items():
                rows.setdefault(row, {}).setdefault(batch_size, ms)
    step_ms = {
        row: {str(b): round(ms, 4) for b, ms in sorted(points.items())}
        for row, points in rows.items()
        if points
    }
    if not step_ms.keys() - {"plain"}:
        return None
    profile = {"schema": 1, "name": name, "sglang": about.get("sglang_version"), "model": about.get("model")}
    context = _context(outcome)
    if context is not None:
        profile["context"] = {"per_request_tokens": round(context, 1)}
    return {
        **profile,
        "step_ms": step_ms,
        "notes": "Measured by specgov bench; step times by mean batch size, plain's by clients at once.",
    }


def _own_off(about: Mapping[str, Any]) -> bool:
    """Whether off was SGLang's own, the plugin's plain decoding not being in force."""
    status = about.get("plain_decode")
    return isinstance(status, Mapping) and status.get("in_force") is False


def _row_name(depth: int, label: str, *, own_off: bool) -> str:
    if depth:
        return f"depth_{depth}"
    gear = label.removeprefix("off-")
    return _ROW_OF_GEAR.get(gear, "depth_0" if own_off else "off_warm")


def _steered(outcome: Outcome, label: str, depth: int, concurrency: int) -> dict[int, float]:
    """Mean batch size to milliseconds a step, of the cells at the arm's own depth."""
    cells = [c for c in outcome.cells(label, concurrency) if c.depth == depth and c.timed_steps]
    steps = sum(c.timed_steps for c in cells)
    if steps < MIN_TIMED_STEPS:
        return {}
    batch_size = sum(c.timed_request_steps for c in cells) / steps
    return {max(1, round(batch_size)): 1e3 * sum(c.timed_seconds for c in cells) / steps}


def _plain_row(outcome: Outcome, label: str) -> dict[int, float]:
    gaps: dict[int, list[float]] = {}
    for window in outcome.measured():
        if window.label == label and window.concurrency is not None and window.stats.itl_p50_s is not None:
            gaps.setdefault(window.concurrency, []).append(window.stats.itl_p50_s * 1e3)
    return {c: ms for c, each in gaps.items() if (ms := quantile(each, 0.5)) is not None and ms > 0}


def _context(outcome: Outcome) -> float | None:
    """Mean context tokens per request while the step times were measured."""
    cells = [cell for window in outcome.measured() for cell in window.cells]
    requests = sum(cell.timed_request_steps for cell in cells)
    return sum(cell.timed_context_tokens for cell in cells) / requests if requests else None
