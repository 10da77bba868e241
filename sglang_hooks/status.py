"""What this scheduler process can do beyond SGLang's own depth switching; filled in by `plain_decode`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class PlainDecodeStatus:
    """Whether depth 0 runs as plain decoding, on which attention backend, and if not why."""

    in_force: bool = False
    backend: str | None = None
    reason: str | None = "not installed: depth 0 runs as SGLang's own one-token verify step"
    gears: tuple[str, ...] = ("warm",)
    """Gears of off that may be asked for; `warm` is what SGLang itself does."""

    def to_json(self) -> dict[str, Any]:
        """The form in `GET /speculation`."""
        return {"in_force": self.in_force, "backend": self.backend, "reason": self.reason}


PLAIN_DECODE = PlainDecodeStatus()
