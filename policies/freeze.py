"""An operator lets the policy move in one direction only: nothing deeper, or nothing shallower."""

from __future__ import annotations

from policies.arms import deeper_anywhere
from policies.guard import ChangeGuard
from policies.types import Action, Decision, Mode, Observation, Reason, Schedule


class Freeze(ChangeGuard):
    """Holds changes in the direction that `observation.directive` has frozen."""

    def judge(self, proposal: Decision, current: Schedule, observation: Observation) -> Decision | None:
        """Hold a change that goes deeper (or shallower) at some batch size while that is frozen."""
        directive = observation.directive
        if directive is None or proposal.schedule is None:
            return None
        if directive.mode is Mode.NO_DEEPER:
            frozen = deeper_anywhere(proposal.schedule, current)
        elif directive.mode is Mode.NO_SHALLOWER:
            frozen = deeper_anywhere(current, proposal.schedule)
        else:
            return None
        if not frozen:
            return None
        who = f"{directive.actor or 'someone'}: {directive.reason or 'no reason given'}"
        evidence = {**proposal.evidence, "mode": str(directive.mode), "actor": directive.actor}
        return Decision(
            Action.HOLD,
            Reason.FREEZE,
            f"held, {str(directive.mode).replace('_', ' ')} by {who}: {proposal.detail}",
            evidence=evidence,
        )

    def changed(self, observation: Observation) -> None:
        """Nothing to note."""
