"""A curve in one line of text.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
UNKNOWN = " "


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The latest `width` values, right-aligned, from 0 to the greatest; `None` leaves a gap."""
    shown = list(values)[-width:]
    most = max((value for value in shown if value is not None), default=0)
    marks = [UNKNOWN if value is None else _block(value, most) for value in shown]
    return "".join(marks).rjust(width)


def _block(value: float, most: float) -> str:
    if most <= 0:
        return BLOCKS[0]
    return BLOCKS[min(len(BLOCKS) - 1, round(value / most * (len(BLOCKS) - 1)))]
