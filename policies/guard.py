"""What a guard is: a policy around a policy."""

from __future__ import annotations

from typing import Any

from policies.base import Policy
from policies.types import Action, Decision, Observation, Reason, Schedule


class Guard:
    """A policy around a policy; subclasses define `decide`."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """The inner policy's name."""
        return self.inner.name


class ChangeGuard(Guard):
    """Base of guards that judge changes of the schedule: knows what was let through last.

    Nothing was let through after a release or an engine restart, so the next schedule is no change.
    """

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self.current: Schedule | None = None
        self._epoch = 0

    def decide(self, observation: Observation) -> Decision:
        """The proposal, or what `judge` makes of it when it would change the schedule in force."""
        proposal = self.inner.decide(observation)
        if observation.engine_epoch != self._epoch:
            self._epoch, self.current = observation.engine_epoch, None
        if proposal.action is Action.RELEASE:
            self.current = None
        if proposal.schedule is None or proposal.schedule == self.current:
            return proposal
        if self.current is not None:
            verdict = self.judge(proposal, self.current, observation)
            if verdict is not None:
                return verdict
            self.changed(observation)
        self.current = proposal.schedule
        return proposal

    def held(
        self, proposal: Decision, observation: Observation, reason: Reason, why: str, **evidence: Any
    ) -> Decision:
        """The proposal is not let through; its probe is: what it teaches does not depend on the change."""
        detail, numbers = f"held{why}: {proposal.detail}", {**proposal.evidence, **evidence}
        probe, current = proposal.probe, self.current
        if probe is None or current is None or current != observation.in_force:
            return Decision(Action.HOLD, reason, detail, evidence=numbers)
        if probe.arm in (current.arm_for(probe.min_batch_size), current.arm_for(probe.max_batch_size)):
            return Decision(Action.HOLD, reason, detail, evidence=numbers)
        return Decision(Action.GOVERN, reason, detail, current, probe, numbers)

    def judge(self, proposal: Decision, current: Schedule, observation: Observation) -> Decision | None:
        """What to do instead of changing from `current` to the proposal; `None`: let it through."""
        raise NotImplementedError

    def changed(self, observation: Observation) -> None:
        """Called whenever a change is let through."""
        raise NotImplementedError
