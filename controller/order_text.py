"""What an order says in words, and who says it: one rule for REST, its commands and the fleet's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from controller.order_rules import MAX_TEXT

MAX_SHOWN = 60
"""Characters of a refused value that its refusal repeats."""

Printable = Annotated[
    str,
    Field(
        max_length=MAX_TEXT,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]*$",
    ),
]
"""One line that reads as it was written: what breaks a line, steers a terminal (C0 and C1), turns the
direction of text or is a space of no width is refused."""

Why = Annotated[Printable, StringConstraints(strip_whitespace=True, min_length=1)]
"""A reason: `Printable`, and not blank."""


def in_words(fault: Mapping[str, Any]) -> str:
    """What pydantic found wrong.  The one pattern of an order is `Printable`'s, and nobody reads patterns."""
    if fault["type"] == "string_pattern_mismatch":
        held = "line breaks, tabs, turns of direction, zero-width spaces"
        return f"must be one line, without control characters ({held})"
    return str(fault["msg"])


def in_full(fault: Mapping[str, Any]) -> str:
    """`in_words`, then what was given and what to do.

    The value of a field that is not known is not repeated: it may be a secret in the wrong place.
    """
    if fault["type"] == "missing":
        return f"{in_words(fault)}, got nothing: give it"
    if fault["type"] == "extra_forbidden":
        return f"{in_words(fault)}: no such field, leave it out"
    return f"{in_words(fault)}, got {shown(fault['input'])}: see /docs for what it takes"


def shown(value: Any) -> str:
    """A JSON value in at most `MAX_SHOWN` characters, none of them a control character."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[:MAX_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
