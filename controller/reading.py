"""Reading numbers out of JSON that somebody else wrote: what is not sound is `None`, never 0.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: Any) -> float | None:
    """A finite number >= 0, else `None`; booleans and text are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) and as_float >= 0 else None


def whole(value: Any) -> int | None:
    """A whole number >= 0, else `None`; 6.0 is whole."""
    as_float = number(value)
    return int(as_float) if as_float is not None and as_float == int(as_float) else None


def text(value: Any, limit: int = 400) -> str | None:
    """Text, cut to `limit` characters, else `None`."""
    return value[:limit] if isinstance(value, str) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any, limit: int = 4096) -> list[Mapping[str, Any]]:
    """The objects of a JSON array, at most `limit`."""
    return [row for row in value[:limit] if isinstance(row, Mapping)] if isinstance(value, list) else []
