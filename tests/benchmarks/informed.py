"""What could be reached: a policy that knows every cost and acceptance, but must see a shift in its counts.

At each batch size it takes the best arm of the profile's own figures, at the profile's mean context, with
one gear for off: warm, which harms no request, or another. When acceptance shifts it goes on with the table
of before until `ENOUGH` request-steps with drafts were reported since: where that table drafts this takes
one tick, where it is off it waits for a batch at which it drafts (it does not probe). It pays for its
switches, for its tick, and for what its off does to requests, as every policy does.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.simulation.acceptance import Phase, expected_tokens, survival
from controller.simulation.arms import OFF_WARM, ArmCost
from controller.simulation.arms import Arm as Key
from controller.simulation.controls import FixedControl
from controller.simulation.replay import Scenario, engine_of
from policies.types import Action, Arm, Decision, Gear, Observation, Reason, Row, Schedule

ENOUGH = 50
"""Request-steps at depth 4 that tell 0.745 from 0.366 (docs/policies.md)."""
TIE = 1.002
"""Another arm must be better by this factor, or the one of the batch size below goes on."""


class Informed:
    """Follows the best table of the phase that its counts have shown; see the module's docstring."""

    name = "informed"

    def __init__(self, scenario: Scenario, off: Key = OFF_WARM) -> None:
        self._acceptance = scenario.acceptance
        costs = engine_of(scenario, FixedControl(OFF_WARM)).costs
        phases = scenario.acceptance.phases
        self._tables = {phase: best_table(costs, phase, off) for phase in phases}
        self._shown = scenario.acceptance.at(0.0)
        self._seen = 0.0
        self._now_s = 0.0

    def decide(self, observation: Observation) -> Decision:
        """The table of the phase in force, once it was seen."""
        before_s, self._now_s = self._now_s, observation.now_s
        counts: float = sum(sum(cell.accepted) for cell in observation.cells if cell.arm.depth)
        shift_s = self._acceptance.next_change_s(before_s)
        if shift_s < self._now_s:  # those of them that were made after it
            self._seen, counts = 0.0, counts * (self._now_s - shift_s) / (self._now_s - before_s)
        self._seen += counts
        if self._seen >= ENOUGH:
            self._shown = self._acceptance.at(self._now_s)
        return Decision(Action.GOVERN, Reason.EXTERNAL, "knows", self._tables[self._shown])


def best_table(costs: Mapping[Key, ArmCost], phase: Phase, off: Key) -> Schedule:
    """The arm with the most tokens per second at every batch size, with `off` for off."""
    arms = [arm for arm in costs if arm[0] or arm == off]
    tokens = expected_tokens(survival(phase.positions, max(depth for depth, _ in costs)))
    rows: list[tuple[int, Key]] = []
    for batch in range(1, len(next(iter(costs.values())).base_s)):
        rates = {arm: float(tokens[arm[0]] / costs[arm].base_s[batch]) for arm in arms}
        best = max(arms, key=rates.__getitem__)
        if not rows or rates[best] > TIE * rates[rows[-1][1]]:
            rows.append((batch, best))
    return Schedule(tuple(Row(batch, Arm(depth, Gear(gear))) for batch, (depth, gear) in rows)).merged()
