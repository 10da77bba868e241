"""Leave the choice to SGLang."""

from __future__ import annotations

from dataclasses import dataclass

from policies.types import Action, Decision, Observation, Reason


@dataclass(frozen=True, slots=True)
class NativeParams:
    """SGLang's own policy has nothing to set here."""


class Native:
    """Always hands back to SGLang's own policy."""

    name = "native"

    def decide(self, _observation: Observation) -> Decision:
        """Release, whatever is observed."""
        return Decision(Action.RELEASE, Reason.NATIVE, "SGLang's own policy chooses the draft depth")
