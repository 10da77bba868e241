"""Decode-seconds for the same tokens, and regret.

Two policies that serve the same arrivals do not see the same batches, so their seconds cannot be
compared step by step.  What can be compared, at each step that a run really made, is the rate of its arm
with the rate of any other arm *on that very batch*.  With b requests, c context tokens, acceptance phase p,
and n of the requests after a cold spell:

    tokens(arm) = (b - n) * E_p[tokens | depth] + n * E_p,cold[tokens | depth]
    g(arm)      = tokens(arm) / T(arm, b, c)                expected tokens per second, without noise
    spent       = T(used, b, c) + switch seconds

    regret = sum(spent) / sum(tokens(used) / max over arms of g(arm)) - 1

The oracle (the maximum) knows true costs and acceptance of the batch at hand, and pays for no switch and no
probe: regret is wrong depths, learning, probes and switches.  It is told nothing of the future, so it takes
the requests as they are, those after a cold spell too.  What going cold did to them is in the second figure,
the same against an oracle whose requests are all unharmed (n = 0 in its g):

    regret_with_cold_harm = sum(spent) / sum(tokens(used) / max over arms of g(arm | n = 0)) - 1

The same sum with g of one arm, unharmed, gives the seconds that this arm would have spent for the same
tokens, had it been held for ever: always-off, or depth k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from controller.simulation.acceptance import Acceptance, expected_tokens, survival
from controller.simulation.arms import OFF_COLD, OFF_WARM, Arm, ArmCost
from controller.simulation.engine import StepLog
from controller.simulation.losses import Losses

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(slots=True)
class Totals:
    """Sums over all accounted steps; seconds are noise-free decode seconds."""

    steps: int = 0
    tokens: float = 0.0
    """Expected tokens of the steps that were made."""
    spent_s: float = 0.0
    oracle_s: float = 0.0
    """What the best arm at each step would have needed for the same tokens."""
    unharmed_oracle_s: float = 0.0
    """The same, had no request lived through a cold spell."""
    same_tokens_s: dict[Arm, float] = field(default_factory=dict)
    """By arm: the seconds that it would have needed for the same tokens."""
    used_s: dict[Arm, float] = field(default_factory=dict)
    """By arm: the seconds that were spent in it."""
    probe_s: float = 0.0
    """Seconds that were spent in probe steps."""
    switches: int = 0
    """Changes of arm from one decode step to the next, probes included."""
    losses: Losses = field(default_factory=Losses)
    """`spent_s - oracle_s` by cause."""

    @property
    def probe_share(self) -> float | None:
        """Share of the decode seconds spent in probe steps, 0..1; `None` before the first step."""
        return self.probe_s / self.spent_s if self.spent_s else None

    @property
    def regret(self) -> float | None:
        """`spent_s / oracle_s - 1`; `None` before the first step."""
        return self.spent_s / self.oracle_s - 1 if self.oracle_s else None

    @property
    def regret_with_cold_harm(self) -> float | None:
        """`spent_s / unharmed_oracle_s - 1`; `None` before the first step."""
        return self.spent_s / self.unharmed_oracle_s - 1 if self.unharmed_oracle_s else None

    def against(self, arm: Arm) -> float | None:
        """`spent_s` over what `arm` would have needed, minus 1; negative: less was spent."""
        alone_s = self.same_tokens_s.get(arm)
        return self.spent_s / alone_s - 1 if alone_s else None


class Accountant:
    """Adds up a step log; call `account` at least once per acceptance phase."""

    def __init__(
        self, costs: Mapping[Arm, ArmCost], acceptance: Acceptance, after_cold_factor: float
    ) -> None:
        self.totals = Totals(same_tokens_s=dict.fromkeys(costs, 0.0), used_s=dict.fromkeys(costs, 0.0))
        self._costs = costs
        self._arms = list(costs)
        self._index = {arm: i for i, arm in enumerate(self._arms)}
        self._last_used: int | None = None
        self._acceptance = acceptance
        self._factor = after_cold_factor
        self._max_depth = max(depth for depth, _ in costs)
        self._harmless = np.array([arm != OFF_COLD or OFF_WARM not in costs for arm in costs])

    def account(self, log: StepLog, phase_s: float, *, late: bool = False) -> None:
        """Take the steps out of `log`; all must belong to the acceptance phase at `phase_s`.

        `late`: the acceptance has shifted and the schedule was not changed since.
        """
        steps, log.steps = log.steps, []
        if not steps:
            return
        positions = self._acceptance.at(phase_s).positions
        fresh = expected_tokens(survival(positions, self._max_depth))
        cold = expected_tokens(survival(positions, self._max_depth, self._factor))
        used = np.array([self._index[step.arm] for step in steps])
        batch, context, after_cold = (np.array([s[i] for s in steps], dtype=np.int64) for i in (1, 2, 3))
        switch_s = np.array([step.switch_s for step in steps])
        seconds = np.array([self._costs[arm].seconds(batch, context) for arm in self._arms])
        depth = np.array([depth for depth, _ in self._arms])
        unharmed = batch * fresh[depth][:, None]
        tokens = unharmed - after_cold * (fresh - cold)[depth][:, None]
        at = np.arange(len(steps))
        spent = seconds[used, at] + switch_s
        self._add(used, tokens[used, at], spent, (tokens / seconds, unharmed / seconds))
        probing = np.array([step.probing for step in steps])
        self.totals.probe_s += float(spent[probing].sum())
        rates = tokens / seconds
        best_s, harmless_s = (tokens[used, at] / r.max(axis=0) for r in (rates, rates[self._harmless]))
        self.totals.losses.switches_s += float(switch_s.sum())
        self.totals.losses.add(batch, seconds[used, at] - harmless_s, harmless_s - best_s, probing, late=late)
        self._count_switches(used)

    def _count_switches(self, used: npt.NDArray[np.int64]) -> None:
        first, last = int(used[0]), int(used[-1])
        self.totals.switches += int(np.count_nonzero(np.diff(used)))
        self.totals.switches += self._last_used not in (None, first)
        self._last_used = last

    def _add(
        self, used: npt.NDArray[np.int64], tokens: Floats, spent: Floats, rates: tuple[Floats, Floats]
    ) -> None:
        """`rates`: tokens per second by (arm, step), for the batch as it is and for an unharmed one."""
        totals, (as_is, unharmed) = self.totals, rates
        totals.steps += len(used)
        totals.tokens += float(tokens.sum())
        totals.spent_s += float(spent.sum())
        totals.oracle_s += float((tokens / as_is.max(axis=0)).sum())
        totals.unharmed_oracle_s += float((tokens / unharmed.max(axis=0)).sum())
        per_arm = np.bincount(used, weights=spent, minlength=len(self._arms))
        for i, arm in enumerate(self._arms):
            totals.same_tokens_s[arm] += float((tokens / unharmed[i]).sum())
            totals.used_s[arm] += float(per_arm[i])
