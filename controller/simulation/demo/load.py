"""The load of the demo: quiet, busy, crowded, quiet, at rates that suit the profile.

Arrivals are open loop (Poisson), so that every arm can be given exactly the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.simulation.acceptance import Acceptance
from controller.simulation.arms import Arm, arm_rows
from controller.simulation.arrivals import Arrival
from controller.simulation.closed_loop import ClosedLoop, Lengths
from controller.simulation.controls import FixedControl
from controller.simulation.cost_profile import CostProfile
from controller.simulation.engine import EngineConfig, VirtualEngine

LENGTHS = Lengths()
SHAPE = (("quiet", 0.2, 2), ("busy", 0.25, 64), ("crowded", 0.3, 128), ("quiet again", 0.25, 2))
"""Name, share of the time, and requests in flight that the best arm would have."""
BUSY_UTILISATION = 0.95
"""Of the best arm's closed-loop throughput at the busy level: below 1, so that its queue stays short."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the demo with one arrival rate."""

    name: str
    start_s: float
    end_s: float
    concurrency: int
    rate_rps: float


def plan_phases(
    profile: CostProfile, acceptance: Acceptance, config: EngineConfig, seconds: float
) -> tuple[Phase, ...]:
    """Phases of `seconds` in all, with rates taken from the simulated engine's own closed loop."""
    mean_tokens = sum(LENGTHS.output) / 2
    phases: list[Phase] = []
    start_s = 0.0
    for name, share, concurrency in SHAPE:
        best = max(
            _throughput(profile, acceptance, config, arm, concurrency)
            for arm in arm_rows(profile, plain_decode=config.plain_decode)
        )
        end_s = start_s + share * seconds
        rate = BUSY_UTILISATION * best / mean_tokens
        phases.append(Phase(name, start_s, end_s, concurrency, rate))
        start_s = end_s
    return tuple(phases)


def _throughput(
    profile: CostProfile, acceptance: Acceptance, config: EngineConfig, arm: Arm, concurrency: int
) -> float:
    """Output tokens per second of `arm` with `concurrency` clients."""
    rng = np.random.default_rng(0)
    loop = ClosedLoop(VirtualEngine(profile, acceptance, FixedControl(arm), rng, config), rng, LENGTHS)
    loop.set_concurrency(concurrency)
    loop.measure(3.0)
    return loop.measure(10.0).output_tok_s


def draw_arrivals(phases: tuple[Phase, ...], rng: np.random.Generator) -> list[Arrival]:
    """Requests in order of time."""
    arrivals = []
    for phase in phases:
        at_s = phase.start_s
        while (at_s := at_s + float(rng.exponential(1 / phase.rate_rps))) < phase.end_s:
            prompt = int(rng.integers(LENGTHS.prompt[0], LENGTHS.prompt[1] + 1))
            output = int(rng.integers(LENGTHS.output[0], LENGTHS.output[1] + 1))
            arrivals.append(Arrival(at_s, prompt, output))
    return arrivals
