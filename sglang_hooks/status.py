"""What this scheduler process does otherwise than SGLang; `plain_decode` and `chain_verify` fill it in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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


@dataclass
class ChainVerifyStatus:
    """Whether verifies above depth 0 run as decoding, on which attention backend, and if not why."""

    in_force: bool = False
    backend: str | None = None
    reason: str | None = "not installed: the target verifies SGLang's own way"
    draft_extend: bool = False
    """Whether the draft model's extend behind a verify runs as decoding, too."""

    def to_json(self) -> dict[str, Any]:
        """The form in `GET /speculation`."""
        return asdict(self)


CHAIN_VERIFY = ChainVerifyStatus()
