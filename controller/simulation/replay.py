"""Replays a trace against a cost profile in virtual time, under a policy or under one arm for ever."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from controller.simulation.acceptance import Acceptance, AfterOff
from controller.simulation.accounting import Accountant, Totals
from controller.simulation.arms import Arm
from controller.simulation.arrivals import Trace
from controller.simulation.controls import FixedControl, HookControl
from controller.simulation.cost_profile import CostProfile
from controller.simulation.engine import EngineConfig, Request, StepControl, VirtualEngine
from controller.simulation.virtual_sidecar import VirtualSidecar
from policies.base import Policy
from policies.types import Decision, Schedule


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that two replays share, so that they differ by the policy alone."""

    profile: CostProfile
    trace: Trace
    acceptance: Acceptance
    engine: EngineConfig = field(default_factory=EngineConfig)
    seed: int = 1
    """Of step noise and acceptance."""
    tick_s: float = 1.0
    """Between two decisions, > 0; the sidecar's default."""
    put_delay_s: float = 0.014
    """From a decision to the first step under it, 0..`tick_s`: 14 ms in the median on a real server."""
    drain_s: float = 600.0
    """The replay ends this long after the last arrival at the latest, finished or not."""

    def with_seed(self, seed: int) -> Scenario:
        """The same with other noise and acceptance."""
        return dataclasses.replace(self, seed=seed)


@dataclass(frozen=True, slots=True)
class Sample:
    """The run at one tick; counters are cumulative."""

    at_s: float
    running: int
    waiting: int
    depth_s: float
    """Decode seconds times the depth in use; a difference over that of `spent_s` is a mean depth."""
    spent_s: float
    oracle_s: float
    switches: int
    plan_changes: int
    emitted_tokens: int


@dataclass(slots=True)
class Run:
    """What a replay did."""

    name: str
    totals: Totals
    samples: list[Sample]
    finished: list[Request]
    unfinished: int
    rejected: int
    end_s: float
    emitted_tokens: int
    prefill_s: float
    schedule: Schedule | None = None
    """What was in force at the end; `None`: nothing."""
    decisions: list[Decision] = field(default_factory=list)


Progress = Callable[[float], None]
"""Called now and then with the virtual seconds replayed so far."""


def replay_policy(scenario: Scenario, policy: Policy, progress: Progress | None = None) -> Run:
    """Replay under `policy` (in its guards, if it is to have any), from what it knows."""
    control = HookControl(list(engine_of(scenario, FixedControl((0, "warm"))).arms))
    engine = engine_of(scenario, control)
    with VirtualSidecar(engine, control, policy) as sidecar:
        run = _replay(scenario, policy.name, engine, sidecar, progress)
        run.schedule = sidecar.schedule
    return run


def replay_arm(scenario: Scenario, name: str, arm: Arm, progress: Progress | None = None) -> Run:
    """Replay with `arm` at every step.

    A server that never drafts again is not harmed by a cold spell, so for the oracle beside it none counts.
    """
    unharmed = dataclasses.replace(scenario.engine, after_off=AfterOff(1.0, 1.0, 1.0))
    scenario = dataclasses.replace(scenario, engine=unharmed)
    return _replay(scenario, name, engine_of(scenario, FixedControl(arm)), None, progress)


def fixed_arms(scenario: Scenario) -> dict[str, Arm]:
    """The baselines of a scenario: `always_off`, and `depth_K` for every depth of its profile."""
    arms = engine_of(scenario, FixedControl((0, "warm"))).arms
    off = [arm for arm in arms if arm[0] == 0]
    named = {"always_off": off[-1]} if off else {}
    return named | {f"depth_{depth}": (depth, gear) for depth, gear in arms if depth}


def engine_of(scenario: Scenario, control: StepControl) -> VirtualEngine:
    """The engine of a scenario, steered by `control`."""
    rng = np.random.default_rng(scenario.seed)
    engine = VirtualEngine(scenario.profile, scenario.acceptance, control, rng, scenario.engine)
    for i, arrival in enumerate(scenario.trace.arrivals):
        engine.submit(Request(i, arrival.arrival_s, arrival.prompt_tokens, arrival.output_tokens))
    return engine


def _replay(
    scenario: Scenario,
    name: str,
    engine: VirtualEngine,
    sidecar: VirtualSidecar | None,
    progress: Progress | None,
) -> Run:
    draft_prefill_s = scenario.profile.prefill.draft_ms_per_request / 1000
    accountant = Accountant(engine.costs, scenario.acceptance, engine.config.after_off, draft_prefill_s)
    clock = _Clock(scenario, engine, accountant)
    samples: list[Sample] = []
    decisions: list[Decision] = []
    end_s = scenario.trace.duration_s + scenario.drain_s
    for tick in itertools.count(1):
        at_s = tick * scenario.tick_s
        clock.advance(at_s)
        if sidecar is not None:
            before = sidecar.plan_changes
            decisions.append(sidecar.turn(clock.advance, scenario.put_delay_s))
            clock.late &= sidecar.plan_changes == before
        samples.append(_sample(engine, accountant.totals, sidecar))
        if progress is not None and tick % 16 == 0:
            progress(min(engine.now_s, end_s))
        if engine.idle or engine.now_s >= end_s:
            break
    return Run(
        name=name,
        totals=accountant.totals,
        samples=samples,
        finished=engine.finished,
        unfinished=engine.running + engine.waiting,
        rejected=len(engine.rejected),
        end_s=engine.now_s,
        emitted_tokens=engine.emitted_tokens,
        prefill_s=engine.prefill_seconds,
        decisions=decisions,
    )


class _Clock:
    """Lets the engine's time pass, and accounts for its steps phase by phase."""

    def __init__(self, scenario: Scenario, engine: VirtualEngine, accountant: Accountant) -> None:
        self._acceptance = scenario.acceptance
        self._engine = engine
        self._accountant = accountant
        self.late = False
        """Whether the acceptance has changed and the schedule has not since."""

    def advance(self, until_s: float) -> None:
        """Run to `until_s`, stopping where the acceptance changes: a log must not span that."""
        while self._engine.now_s < until_s:
            start_s = self._engine.now_s
            change_s = self._acceptance.next_change_s(start_s)
            self._engine.run_until(min(until_s, change_s))
            self._accountant.account(self._engine.log, start_s, late=self.late)
            self.late |= self._engine.now_s >= change_s


def _sample(engine: VirtualEngine, totals: Totals, sidecar: VirtualSidecar | None) -> Sample:
    return Sample(
        at_s=engine.now_s,
        running=engine.running,
        waiting=engine.waiting,
        depth_s=math.fsum(arm[0] * used_s for arm, used_s in totals.used_s.items()),
        spent_s=totals.spent_s,
        oracle_s=totals.oracle_s,
        switches=totals.switches,
        plan_changes=sidecar.plan_changes if sidecar else 0,
        emitted_tokens=engine.emitted_tokens,
    )
