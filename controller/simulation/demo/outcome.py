"""What came of the demo: the governed run, and the same arrivals with one arm held for ever.

Every number is counted in a run: tokens that the engine emitted within a phase, and the TPOT of the
requests that arrived in it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.simulation.acceptance import Acceptance
from controller.simulation.arms import OFF_COLD, OFF_WARM, Arm
from controller.simulation.controls import FixedControl
from controller.simulation.cost_profile import CostProfile
from controller.simulation.demo.load import Phase
from controller.simulation.engine import EngineConfig, Request, VirtualEngine
from controller.simulation.report import percentiles, tpots

WHOLE = "whole run"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run: its requests, and output tokens emitted up to certain times."""

    requests: Sequence[Request]
    at_s: Sequence[float]
    tokens: Sequence[int]

    def tokens_at(self, at_s: float) -> float:
        """Tokens emitted by `at_s`, between samples by a straight line."""
        return float(np.interp(at_s, self.at_s, self.tokens)) if self.at_s else 0.0


def held_arm(
    profile: CostProfile,
    acceptance: Acceptance,
    config: EngineConfig,
    arm: Arm,
    requests: Sequence[Request],
    *,
    seed: int,
    end_s: float,
) -> Trajectory:
    """The same arrivals with `arm` at every step, until every request is answered."""
    engine = VirtualEngine(profile, acceptance, FixedControl(arm), np.random.default_rng(seed), config)
    for request in requests:
        engine.submit(Request(request.index, request.arrival_s, request.prompt_tokens, request.output_tokens))
    at_s, tokens = [0.0], [0]
    while not engine.idle or engine.now_s < end_s:
        engine.run_until(engine.now_s + 0.05)
        engine.log.steps.clear()
        at_s.append(engine.now_s)
        tokens.append(engine.emitted_tokens)
    return Trajectory(engine.finished, at_s, tokens)


def off_arm(arms: Sequence[Arm]) -> Arm:
    """What a server without speculation runs, as far as the profile has it."""
    return OFF_COLD if OFF_COLD in arms else OFF_WARM


def compare(phases: Sequence[Phase], arms: dict[str, Trajectory]) -> list[dict[str, Any]]:
    """Per phase, and for the whole run, tokens per second and TPOT of every arm; JSON-ready."""
    whole = Phase(WHOLE, phases[0].start_s, phases[-1].end_s, 0, 0.0)
    starts = [phase.start_s for phase in phases]
    rows = []
    for i, phase in enumerate((*phases, whole)):
        figures = {}
        for name, run in arms.items():
            mine = [
                request
                for request in run.requests
                if phase is whole or bisect.bisect_right(starts, request.arrival_s) - 1 == i
            ]
            emitted = run.tokens_at(phase.end_s) - run.tokens_at(phase.start_s)
            figures[name] = {
                "output_tok_s": emitted / (phase.end_s - phase.start_s),
                "tpot_ms": {k: v and v * 1e3 for k, v in percentiles(tpots(mine)).items()},
                "requests": len(mine),
            }
        rows.append({"phase": phase.name, "start_s": phase.start_s, "end_s": phase.end_s, "arms": figures})
    return rows
