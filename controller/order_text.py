"""What an order says in words, and who says it: one rule for REST, its commands and the fleet's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from controller.order_rules import MAX_TEXT

Printable = Annotated[
    str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00-\x1f\x7f\u2028-\u202e\u2066-\u2069]*$")
]
"""One line that reads as it was written: what breaks a line or turns the direction of text is refused."""

Why = Annotated[Printable, StringConstraints(strip_whitespace=True, min_length=1)]
"""A reason: `Printable`, and not blank."""


def in_words(fault: Mapping[str, Any]) -> str:
    """What pydantic found wrong.  The one pattern of an order is `Printable`'s, and nobody reads patterns."""
    if fault["type"] == "string_pattern_mismatch":
        return "must be one line, without control characters (line breaks, tabs, turns of direction)"
    return str(fault["msg"])
