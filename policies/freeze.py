"""An operator lets the policy move in one direction only: nothing deeper, or nothing shallower."""

from __future__ import annotations

import dataclasses

from policies import arms
from policies.base import Policy
from policies.guard import Guard
from policies.types import Action, Arm, Decision, Directive, Mode, Observation, Reason, Row, Schedule


class Freeze(Guard):
    """Cuts what the policy proposes to the limit of `observation.directive`, at each batch size by itself.

    The limit is the table that was in force when the order was given, whoever gave it: what the policy had
    in mind beneath another order is no limit, so a hold that would bring it back is cut as well.
    """

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self._last: Schedule | None = None

    def decide(self, observation: Observation) -> Decision:
        """The proposal, or the part of it that the order allows."""
        proposal, directive = self.inner.decide(observation), observation.directive
        if proposal.action is Action.RELEASE:
            self._last = None
        wanted = proposal.schedule or self._last
        cut = _cut(wanted, directive, observation.built) if wanted and directive else wanted
        self._last = cut
        if directive is None or cut == wanted:
            return proposal
        return _frozen(proposal, directive, cut)


def _cut(wanted: Schedule, directive: Directive, built: tuple[Arm, ...]) -> Schedule | None:
    """`wanted` within the limit; `None`: nothing that is built is."""
    limit = directive.limit
    if limit is None or directive.mode not in (Mode.NO_DEEPER, Mode.NO_SHALLOWER):
        return wanted
    deeper = directive.mode is Mode.NO_SHALLOWER
    if not arms.deeper_anywhere(*((limit, wanted) if deeper else (wanted, limit))):
        return wanted
    rows = []
    for start in sorted({row.min_batch_size for row in (*wanted.rows, *limit.rows)}):
        arm = _within(wanted.arm_for(start), limit.arm_for(start), built, deeper=deeper)
        if arm is None:
            return None
        rows.append(Row(start, arm))
    return Schedule(tuple(rows)).merged()


def _within(wanted: Arm, limit: Arm, built: tuple[Arm, ...], *, deeper: bool) -> Arm | None:
    """The arm that is wanted, or the built one nearest to the limit on the side that is allowed."""
    if wanted.depth >= limit.depth if deeper else wanted.depth <= limit.depth:
        return wanted
    if limit in built:
        return limit
    if deeper:
        return min((arm for arm in built if arm.depth >= limit.depth), default=None)
    return arms.at_most(built, limit.depth)


def _frozen(proposal: Decision, directive: Directive, cut: Schedule | None) -> Decision:
    mode = str(directive.mode).replace("_", " ")
    who = f"{directive.actor or 'someone'}: {directive.reason or 'no reason given'}"
    return dataclasses.replace(
        proposal,
        action=Action.HOLD if cut is None else Action.GOVERN,
        reason=Reason.FREEZE,
        detail=f"{mode} than {directive.limit}, by {who}: {proposal.detail}",
        schedule=cut,
        probe=None,
        evidence={**proposal.evidence, "mode": str(directive.mode), "actor": directive.actor},
    )
