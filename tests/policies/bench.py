"""A test bench: an engine reduced to a table of step times and acceptances, observed once a tick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from policies.base import Policy
from policies.step_cost import KNOTS, bucket_index
from policies.types import OFF_COLD, Action, Arm, CellDelta, Decision, Observation, Probe, Schedule

BUILT = (OFF_COLD, Arm(1), Arm(2), Arm(4))


def step_s(batch: int, arm: Arm) -> float:
    """An engine whose speculation wins below about 40 requests and loses above: seconds of a step."""
    return 0.005 + 0.00002 * batch + arm.depth * 0.0004 + 0.00004 * batch * arm.depth


@dataclass
class Bench:
    """Runs a policy against the table; `batch` and `p` may be functions of the time in s."""

    policy: Policy
    batch: Callable[[float], int]
    p: Callable[[float], float] = lambda _t: 0.745
    seconds: Callable[[int, Arm], float] = step_s
    built: tuple[Arm, ...] = BUILT
    noise: float = 0.03
    seed: int = 7
    now_s: float = 0.0
    schedule: Schedule | None = None
    probe: Probe | None = None
    left: int = 0
    resting: tuple[tuple[int, Arm], ...] = ()
    decisions: list[Decision] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    spent_s: float = 0.0
    best_s: float = 0.0
    probe_s: float = 0.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.schedule = self.schedule or Schedule.constant(self.built[-1])

    def run(self, ticks: int) -> Bench:
        """Let so many seconds pass; returns itself."""
        for _ in range(ticks):
            observation = self.observe()
            decision = self.policy.decide(observation)
            self.observations.append(observation)
            self.decisions.append(decision)
            if decision.action is Action.GOVERN:
                if decision.probe != self.probe:
                    self.left = decision.probe.burst_steps if decision.probe else 0
                self.schedule, self.probe = decision.schedule, decision.probe
        return self

    def observe(self) -> Observation:
        """One second of decoding at one batch size: the probe first, then the schedule."""
        batch, end_s = self.batch(self.now_s), self.now_s + 1.0
        cells, probed = [], 0
        if self.probe and self.left and self.probe.min_batch_size <= batch <= self.probe.max_batch_size:
            probed, self.left = self.left, 0
            cells.append(self.cell(batch, self.probe.arm, probed, is_probe=True))
        arm = self.schedule.arm_for(batch)
        steps = max(2, int((end_s - self.now_s) / self.seconds(batch, arm)))
        cells.append(self.cell(batch, arm, steps, is_probe=False))
        self.now_s = end_s
        return Observation(
            now_s=end_s, built=self.built, running_reqs=batch, queue_reqs=0, batch_size=batch,
            load_age_s=0.0, cells=tuple(cells), decode_steps=probed + steps, prefill_batches=1,
            switches=2 if probed else 0, probe_steps=probed, telemetry_age_s=0.0,
            in_force=self.schedule, in_use=arm, resting=self.resting,
        )  # fmt: skip

    def cell(self, batch: int, arm: Arm, steps: int, *, is_probe: bool) -> CellDelta:
        """What the hook would have counted."""
        times = self.seconds(batch, arm) * np.exp(self.rng.normal(0, self.noise, steps))
        self.account(batch, arm, float(times.sum()), steps, is_probe=is_probe)
        p = self.p(self.now_s)
        drafts = np.minimum(self.rng.geometric(1 - p, steps * batch) - 1, arm.depth)
        counts = tuple(np.bincount(drafts, minlength=arm.depth + 1).tolist())
        clean = times[1:] if is_probe else times
        return CellDelta(
            KNOTS[bucket_index(batch)], arm, steps, steps * batch,
            steps * batch + int(drafts.sum()), counts, (0,) * len(counts),
            len(clean), float(clean.sum()), float((clean**2).sum()), len(clean) * batch,
            len(clean) * batch * 300,
        )  # fmt: skip

    def account(self, batch: int, arm: Arm, spent_s: float, steps: int, *, is_probe: bool) -> None:
        """Against the arm that is best at this batch size and acceptance."""
        p = self.p(self.now_s)

        def rate(a: Arm) -> float:
            return sum(p**j for j in range(a.depth + 1)) / self.seconds(batch, a)

        self.spent_s += spent_s
        self.best_s += spent_s * rate(arm) / max(rate(a) for a in self.built)
        self.probe_s += spent_s if is_probe else 0.0

    @property
    def regret(self) -> float:
        """Seconds spent over what the best arms would have needed for the same tokens, minus 1."""
        return self.spent_s / self.best_s - 1
