"""One draft depth at every batch size: the baseline, and the yardstick for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from policies import arms, unbuilt
from policies.bounds import Bound, check_bounds
from policies.types import Action, Decision, Gear, Observation, Reason, Schedule


@dataclass(frozen=True, slots=True)
class FixedParams:
    """Parameters of `fixed`."""

    depth: Annotated[int | None, Bound(at_least=0)] = None
    """Draft depth; a depth that is not built gives the next shallower one that is.  `None`: the
    deepest built, which is what the server would do without a controller."""
    gear: Gear = Gear.COLD
    """What the draft model does at depth 0: warm, cold or frozen.  Cold by default, since a server that
    is fixed at depth 0 never drafts again and need not keep the draft KV cache in step."""

    def __post_init__(self) -> None:
        """Raise `ValueError` when a value is out of range."""
        check_bounds(self)
        if self.gear is Gear.ON:
            raise ValueError(f"gear must be warm, cold or frozen, got {str(self.gear)!r}")


class Fixed:
    """Governs with the same arm at every batch size."""

    name = "fixed"

    def __init__(self, params: FixedParams | None = None) -> None:
        self._params = params or FixedParams()

    def decide(self, observation: Observation) -> Decision:
        """The configured depth, or the nearest shallower one that is built."""
        wanted, built = self._params.depth, observation.built
        arm = arms.deepest(built) if wanted is None else arms.at_most(built, wanted, self._params.gear)
        if arm is None:
            return unbuilt.hold("any depth" if wanted is None else f"a depth of at most {wanted}", built)
        detail = f"fixed at depth {arm}"
        if wanted is not None and arm.depth != wanted:
            detail += f" (depth {wanted} is not built)"
        evidence = {"depth": arm.depth, "wanted_depth": wanted}
        return Decision(Action.GOVERN, Reason.FIXED, detail, Schedule.constant(arm), evidence=evidence)
