"""What every policy says when it cannot have the depth that it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.types import Action, Arm, Decision, Reason


def hold(wanted: str, built: Sequence[Arm], evidence: Mapping[str, Any] | None = None) -> Decision:
    """Hold.  That `wanted` is not built can only be said of an engine of which it is known what is.

    `wanted`: a phrase for the depths that were asked for, such as "a depth of at most 2".
    """
    listed = ", ".join(map(str, built))
    if built:
        reason, detail = Reason.NOT_BUILT, f"{wanted} is not built (built: {listed})"
    else:
        reason = Reason.NOT_CONTROLLED
        detail = f"{wanted} cannot be asked for now: the engine does not answer, or cannot be controlled"
    return Decision(Action.HOLD, reason, detail, evidence=evidence or {})
