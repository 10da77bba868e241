"""Decode-seconds for the same tokens, and regret.

Two policies that serve the same arrivals do not see the same batches, so their seconds cannot be
compared step by step.  What can be compared, at each step that a run really made, is the rate of its arm
with the rate of any other arm *on that very batch*.  With b requests, c context tokens, acceptance phase p,
and n_h of the requests with harm h (`acceptance.Harm`; their p_j are multiplied by the factor of that harm):

    tokens(arm) = sum over h of n_h * E_p,h[tokens | depth]
    g(arm)      = tokens(arm) / T(arm, b, c)                expected tokens per second, without noise
    spent       = T(used, b, c) + switch seconds

    regret = sum(spent) / sum(tokens(used) / max over arms of g'(arm)) - 1

The oracle (the maximum) knows true costs and acceptance of the batch at hand, and pays for no switch, no
probe and no rise: in g' the drafts of every request are at hand, also where the run had gone cold before (a
stale request counts as what it is from the second step on).  So regret is wrong depths, learning, probes,
switches, and what the first step after off without the draft model loses.  The lasting harm of requests that
lived through such a spell is in the second figure, the same against an oracle whose requests are unharmed:

    regret_with_cold_harm = sum(spent) / sum(tokens(used) / max over arms of g''(arm)) - 1

The same sum with g'' of one arm gives the seconds that this arm would have spent for the same tokens, had it
been held for ever: always-off, or depth k.  In the third the draft model's prefill (D seconds) is counted
with the step that follows it: spent as it was, and by the oracle unless its best arm then is frozen:

    regret_with_draft_prefill = sum(spent + D spent) / sum(tokens(used) / max of tokens'(arm) / (T + D)) - 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from controller.simulation.acceptance import Acceptance, AfterOff, Harm, expected_tokens, survival
from controller.simulation.arms import OFF_COLD, OFF_FROZEN, OFF_WARM, Arm, ArmCost
from controller.simulation.engine import Step, StepLog
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
    draft_prefill_s: float = 0.0
    """Seconds of the draft model's prefills."""
    with_prefill_oracle_s: float = 0.0
    """What the best arm would have needed for both."""
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

    @property
    def regret_with_draft_prefill(self) -> float | None:
        """The same of decoding and the draft model's prefills together; `None` before the first step."""
        if not self.with_prefill_oracle_s:
            return None
        return (self.spent_s + self.draft_prefill_s) / self.with_prefill_oracle_s - 1

    def against(self, arm: Arm) -> float | None:
        """`spent_s` over what `arm` would have needed, minus 1; negative: less was spent."""
        alone_s = self.same_tokens_s.get(arm)
        return self.spent_s / alone_s - 1 if alone_s else None


class Accountant:
    """Adds up a step log; call `account` at least once per acceptance phase."""

    def __init__(
        self,
        costs: Mapping[Arm, ArmCost],
        acceptance: Acceptance,
        after_off: AfterOff,
        draft_prefill_s: float = 0.0,
    ) -> None:
        """`draft_prefill_s`: seconds of the draft model's prefill of one request."""
        self.totals = Totals(same_tokens_s=dict.fromkeys(costs, 0.0), used_s=dict.fromkeys(costs, 0.0))
        self._costs = costs
        self._arms = list(costs)
        self._index = {arm: i for i, arm in enumerate(self._arms)}
        self._last_used: int | None = None
        self._acceptance = acceptance
        self._factors = after_off.factors()
        self._draft_prefill_s = draft_prefill_s
        self._depth = np.array([depth for depth, _ in costs])
        behind = (OFF_COLD, OFF_FROZEN) if OFF_WARM in costs else ()
        self._harmless = np.array([arm not in behind for arm in costs])
        self._prefills = np.array([[arm != OFF_FROZEN] for arm in costs])

    def account(self, log: StepLog, phase_s: float, *, late: bool = False) -> None:
        """Take the steps out of `log`; all must belong to the acceptance phase at `phase_s`.

        `late`: the acceptance has shifted and the schedule was not changed since.
        """
        steps, log.steps = log.steps, []
        if not steps:
            return
        batch, context = (np.array([s[i] for s in steps], dtype=np.int64) for i in (1, 2))
        seconds = np.array([self._costs[arm].seconds(batch, context) for arm in self._arms])
        taken = _Taken(
            used=np.array([self._index[step.arm] for step in steps]),
            batch=batch,
            seconds=seconds,
            tokens=self._tokens(np.array([step.harmed for step in steps]), phase_s),
            switch_s=np.array([step.switch_s for step in steps]),
            probing=np.array([step.probing for step in steps]),
        )
        self._add(taken)
        self._add_losses(taken, late=late)
        self._add_prefills(taken, steps)
        self._count_switches(taken.used)

    def _tokens(self, harmed: npt.NDArray[np.int64], phase_s: float) -> _Tokens:
        """Expected tokens by (arm, step): as the batch is, had its drafts been at hand, and unharmed."""
        positions = self._acceptance.at(phase_s).positions
        deepest = int(self._depth.max())
        each = np.array([expected_tokens(survival(positions, deepest, f)) for f in self._factors])
        by_arm = each[:, self._depth]
        ready = harmed.copy()
        ready[:, Harm.COLD] += ready[:, Harm.STALE]
        ready[:, Harm.STALE] = 0
        unharmed = by_arm[Harm.NONE][:, None] * harmed.sum(axis=1)
        return _Tokens((harmed @ by_arm).T, (ready @ by_arm).T, unharmed)

    def _count_switches(self, used: npt.NDArray[np.int64]) -> None:
        first, last = int(used[0]), int(used[-1])
        self.totals.switches += int(np.count_nonzero(np.diff(used)))
        self.totals.switches += self._last_used not in (None, first)
        self._last_used = last

    def _add(self, taken: _Taken) -> None:
        totals, tokens = self.totals, taken.got
        spent = taken.took_s + taken.switch_s
        totals.steps += len(tokens)
        totals.tokens += float(tokens.sum())
        totals.spent_s += float(spent.sum())
        totals.oracle_s += float((tokens / taken.rates.max(axis=0)).sum())
        unharmed = taken.tokens.unharmed / taken.seconds
        totals.unharmed_oracle_s += float((tokens / unharmed.max(axis=0)).sum())
        totals.probe_s += float(spent[taken.probing].sum())
        per_arm = np.bincount(taken.used, weights=spent, minlength=len(self._arms))
        for i, arm in enumerate(self._arms):
            totals.same_tokens_s[arm] += float((tokens / unharmed[i]).sum())
            totals.used_s[arm] += float(per_arm[i])

    def _add_losses(self, taken: _Taken, *, late: bool) -> None:
        losses, rates = self.totals.losses, taken.rates
        best_s, harmless_s = (taken.got / r.max(axis=0) for r in (rates, rates[self._harmless]))
        stale_s = taken.took_s * (1.0 - taken.got / taken.at_used(taken.tokens.ready))
        losses.switches_s += float(taken.switch_s.sum())
        wrong_s = taken.took_s - harmless_s
        losses.add(taken.batch, (wrong_s, harmless_s - best_s, stale_s), taken.probing, late=late)

    def _add_prefills(self, taken: _Taken, steps: list[Step]) -> None:
        spent_s = math.fsum(step.draft_prefill_s for step in steps)
        due_s = self._draft_prefill_s * np.array([step.prefilled for step in steps])
        rates = taken.tokens.ready / (taken.seconds + self._prefills * due_s)
        self.totals.draft_prefill_s += spent_s
        self.totals.with_prefill_oracle_s += float((taken.got / rates.max(axis=0)).sum())


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Expected tokens by (arm, step)."""

    as_is: Floats
    ready: Floats
    """Had the drafts of all its requests been at hand."""
    unharmed: Floats
    """Had no request ever been off without the draft model."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """Steps that were made."""

    used: npt.NDArray[np.int64]
    """Index of the arm."""
    batch: npt.NDArray[np.int64]
    seconds: Floats
    """Noise-free, by (arm, step)."""
    tokens: _Tokens
    switch_s: Floats
    probing: npt.NDArray[np.bool_]

    def at_used(self, by_arm: Floats) -> Floats:
        """What each step's own arm has of `by_arm`."""
        return np.asarray(by_arm[self.used, np.arange(len(self.used))])

    @property
    def got(self) -> Floats:
        """Expected tokens of each step."""
        return self.at_used(self.tokens.as_is)

    @property
    def took_s(self) -> Floats:
        """Noise-free seconds of each step."""
        return self.at_used(self.seconds)

    @property
    def rates(self) -> Floats:
        """What the oracle chooses from: tokens per second by (arm, step)."""
        return np.asarray(self.tokens.ready / self.seconds)
