"""The range of a parameter, written once, at its field: checked when it is set, printed in the reference.

A field says `patience_s: Positive = 2.0` or `depth: Annotated[int | None, Bound(at_least=0)] = None`, and
`__post_init__` calls `check_bounds(self)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Bound:
    """What a number, or each of a tuple, must be: finite, and within; `None`: no limit on that side."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` is within."""
        return (
            math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"within {self.at_least:g}..{self.at_most:g}"
        signs = ((">", self.above), (">=", self.at_least), ("<=", self.at_most))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in signs if limit is not None)


Positive = Annotated[float, Bound(above=0)]
NotNegative = Annotated[float, Bound(at_least=0)]
Share = Annotated[float, Bound(at_least=0, at_most=1)]
Count = Annotated[int, Bound(at_least=1)]


def bounds_of(params: type[Any]) -> Mapping[str, tuple[Bound, bool]]:
    """Of a class: the bound of every field that has one, and whether it may be left out (`None`)."""
    found = {}
    for name, hint in get_type_hints(params, include_extras=True).items():
        for bound in getattr(hint, "__metadata__", ()):
            if isinstance(bound, Bound):
                found[name] = bound, type(None) in get_args(hint.__origin__)
    return found


def check_bounds(params: Any) -> None:
    """Raise `ValueError` for the first field that is out of its bound: field, rule, value."""
    for name, (bound, optional) in bounds_of(type(params)).items():
        value = getattr(params, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if (value is None and optional) or all(map(bound.holds, numbers)):
            continue
        rule = f"{bound} and finite" if any(map(math.isinf, numbers)) else f"{bound}"
        each = " each" if isinstance(value, tuple) else ""
        raise ValueError(f"{name} must be {rule}{each}{' or left out' if optional else ''}, got {value!r}")
