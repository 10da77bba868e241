"""Kept is not in force: since when the engine has been seen to do what is ordered.  Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

Given = tuple[object, ...]
"""What tells an order from another, see `Override.given`."""
REMEMBERED = 16
"""Orders, the one in force included, of which it is known when they were last in force."""


@dataclass(frozen=True, slots=True)
class Force:
    """Of one order, as far as this process has seen it; seconds since the epoch."""

    since_unix_s: float | None = None
    """Since when it has been in force without a break; `None`: it is not, or not yet."""
    gap_unix_s: tuple[float, float] | None = None
    """From when to when it was last not in force after it had been; `None`: never, as far as is known."""


class ForceTracker:
    """Follows the order that stands, turn by turn; remembers the ones before it for when they come back."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Given, float] = OrderedDict()
        self._given: Given | None = None
        self.now = Force()
        """As of the last `update`."""

    def update(self, given: Given | None, *, obeyed: bool, now_unix_s: float) -> Force:
        """`given`: the order that stands, `None`: none; `obeyed`: the engine is seen to do what it says."""
        if given != self._given:
            self._given, self.now = given, Force()
        if not obeyed:
            self.now = Force(None, self.now.gap_unix_s)
            return self.now
        if self.now.since_unix_s is None:
            before = self._seen.get(given) if given is not None else None
            gap = None if before is None else (before, now_unix_s)
            self.now = Force(now_unix_s, gap)
        if given is not None:
            self._seen[given] = now_unix_s
            self._seen.move_to_end(given)
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return self.now

    def ever(self, given: Given) -> bool:
        """Whether the order was seen in force in this process, and is among the last `REMEMBERED`."""
        return given in self._seen
