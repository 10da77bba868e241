"""What a server can be made to do while it is measured.

Written as `off-cold`, `off-warm`, `off-frozen`, `depth-3`, `native`, `policy:goodput`, or `as-is` (nothing is
asked of the server: one without speculation, or somebody else's configuration).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from policies.types import Arm, Gear

AS_IS = "as-is"
NATIVE = "native"
_DEPTH = re.compile(r"depth-(\d+)")
_POLICY = re.compile(r"policy:([a-z][a-z0-9_-]*)")


@dataclass(frozen=True, slots=True)
class BenchArm:
    """One thing to measure: `fixed` for a depth held by a schedule, `policy` for a sidecar's policy."""

    label: str
    fixed: Arm | None = None
    policy: str | None = None

    @property
    def native(self) -> bool:
        """Whether SGLang's own rule decides, with the control endpoint handed back."""
        return self.label == NATIVE


def parse_arm(text: str) -> BenchArm:
    """The arm of a label; raises `ValueError` that lists the known forms."""
    if text in (AS_IS, NATIVE):
        return BenchArm(text)
    if text.startswith("off-") and text[4:] in set(Gear) - {Gear.ON}:
        return BenchArm(text, fixed=Arm(0, Gear(text[4:])))
    if (found := _DEPTH.fullmatch(text)) is not None:
        depth = int(found[1])
        return BenchArm(text, fixed=Arm(depth) if depth else Arm(0, Gear.WARM))
    if (found := _POLICY.fullmatch(text)) is not None:
        return BenchArm(text, policy=found[1])
    known = "off-cold, off-warm, off-frozen, depth-N, native, policy:NAME, as-is"
    raise ValueError(f"arm must be one of {known}, got {text!r}")


def arm_of(depth: int, gear: Gear) -> BenchArm:
    """The fixed arm of a depth and gear."""
    return parse_arm(f"depth-{depth}" if depth else f"off-{gear.value}")
