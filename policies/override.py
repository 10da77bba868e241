"""An operator's order, which stands above the policy and above every guard."""

from __future__ import annotations

import dataclasses

from policies import arms, unbuilt
from policies.base import Policy
from policies.types import Action, Arm, Decision, Directive, Mode, Observation, Reason, Schedule


class Override:
    """Obeys `observation.directive`; asks the inner policy when there is none.

    The inner policy is asked in either case, so that what it keeps of past observations has no gap.  When
    the order ends while the inner policy holds, what it proposed last is restored: a hold would keep the
    operator's schedule.
    """

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self._last: Decision | None = None
        self._obeying = False

    @property
    def name(self) -> str:
        """The inner policy's name."""
        return self.inner.name

    def decide(self, observation: Observation) -> Decision:
        """The operator's order, else what the inner policy proposes."""
        proposal = self.inner.decide(observation)
        if proposal.action is not Action.HOLD:
            self._last = proposal
        directive = observation.directive
        if directive is not None and not directive.mode.leaves_policy:
            self._obeying = True
            return _obey(directive, observation.built)
        was_obeying, self._obeying = self._obeying, False
        if was_obeying and proposal.action is Action.HOLD:
            return self._restored(proposal, observation.built)
        return proposal

    def _restored(self, hold: Decision, built: tuple[Arm, ...]) -> Decision:
        detail = f"override ended; {hold.detail}"
        last = self._last
        if last is None or last.schedule is None or not arms.only_built(last.schedule, built):
            return dataclasses.replace(hold, action=Action.RELEASE, detail=detail)
        return dataclasses.replace(
            hold, action=Action.GOVERN, schedule=last.schedule, probe=last.probe, detail=detail
        )


def arm_for(directive: Directive, built: tuple[Arm, ...]) -> Arm | None:
    """The arm that `directive` asks for; `None` when it is not built, or asks for none (`native`)."""
    if directive.mode is Mode.OFF:
        return arms.off(built)
    if directive.mode is Mode.ON:
        wanted = directive.depth
        return arms.deepest(built) if wanted is None else next((a for a in built if a.depth == wanted), None)
    return None


def _obey(directive: Directive, built: tuple[Arm, ...]) -> Decision:
    who = f"{directive.actor or 'someone'}: {directive.reason or 'no reason given'}"
    asked = {} if directive.depth is None else {"depth": directive.depth}
    evidence = {"mode": str(directive.mode), **asked, "actor": directive.actor}
    if directive.mode is Mode.NATIVE:
        return Decision(Action.RELEASE, Reason.OVERRIDE, f"native, by {who}", evidence=evidence)
    arm = arm_for(directive, built)
    if arm is None:
        depth = "" if directive.depth is None else f" at depth {directive.depth}"
        return unbuilt.hold(f"{directive.mode}{depth}, by {who},", built, evidence)
    schedule = Schedule.constant(arm)
    return Decision(Action.GOVERN, Reason.OVERRIDE, f"depth {arm}, by {who}", schedule, evidence=evidence)
