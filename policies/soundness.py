"""Which numbers of an observation may be learned from.

Telemetry comes from another process: fields may be missing, NaN, negative, absurdly large or out of
order.  A policy that learns must survive all of it, so everything it reads passes through here first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

from policies.types import CellDelta

MAX_COUNT = 1e12
MAX_DEPTH = 64
MAX_STEP_S = 600.0
MIN_STEP_S = 1e-7
MAX_GAP_S = 60.0
PLAIN = {int, float}


def finite(value: object, low: float = 0.0, high: float = MAX_COUNT) -> float | None:
    """`value` as a float when it is a number within `low`..`high`, else `None` (bools are no numbers)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or not low <= value <= high:
        return None
    return float(value)


def elapsed_s(before_s: float | None, now_s: object) -> float:
    """Seconds from `before_s` to `now_s`, 0 when either is unknown or time went back, at most 60.

    A gap says nothing about what happened in it, so a longer one must not age what was learned more.
    """
    now = finite(now_s, -MAX_COUNT)
    if before_s is None or now is None:
        return 0.0
    return min(MAX_GAP_S, max(0.0, now - before_s))


def sound_cells(cells: object) -> tuple[CellDelta, ...]:
    """The cells whose numbers can be true; the others are left out whole."""
    if not isinstance(cells, Iterable):
        return ()
    return tuple(cell for cell in cells if isinstance(cell, CellDelta) and _is_sound(cell))


def _is_sound(cell: CellDelta) -> bool:
    numbers = (
        cell.steps, cell.request_steps, cell.tokens, cell.timed_steps, cell.timed_request_steps,
        cell.after_prefill_steps, cell.after_prefill_seconds, cell.timed_seconds, cell.timed_seconds_sq,
        cell.timed_context_tokens, cell.skipped_prefill, cell.skipped_prefill_seconds, cell.prefill_spells,
        cell.prefilled_requests, cell.prefilled_tokens,
    )  # fmt: skip
    if finite(cell.batch_bucket, 1, 1 << 20) is None:
        return False
    for histogram in (cell.accepted, cell.accepted_after_cold):
        if not isinstance(histogram, tuple | list) or len(histogram) > min(cell.arm.depth, MAX_DEPTH) + 1:
            return False
    return _are_counts((*numbers, *cell.accepted, *cell.accepted_after_cold)) and _is_sound_timing(cell)


def _are_counts(values: Sequence[object]) -> bool:
    """Whether all are numbers within 0..`MAX_COUNT`; a NaN shows in the sum."""
    if not set(map(type, values)) <= PLAIN and not all(isinstance(value, int | float) for value in values):
        return False
    numbers = cast("Sequence[float]", values)
    return min(numbers) >= 0 and max(numbers) <= MAX_COUNT and math.isfinite(math.fsum(numbers))


def _is_sound_timing(cell: CellDelta) -> bool:
    if cell.prefill_spells > cell.skipped_prefill:
        return False
    n = cell.skipped_prefill
    if n and not MIN_STEP_S <= cell.skipped_prefill_seconds / n <= MAX_STEP_S:
        return False
    n = cell.after_prefill_steps
    if n and not MIN_STEP_S <= cell.after_prefill_seconds / n <= MAX_STEP_S:
        return False
    n = cell.timed_steps
    if not n:
        return True
    return MIN_STEP_S <= cell.timed_seconds / n <= MAX_STEP_S and cell.timed_request_steps / n >= 0.5
