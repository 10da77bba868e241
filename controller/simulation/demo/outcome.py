"""What came of the demo: the governed run, and the same arrivals with one arm held for ever.

Every number is counted in a run: tokens that the engine emitted within a phase, the TPOT of the requests
that arrived in it, and over all requests how long they took.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.simulation.acceptance import Acceptance
from controller.simulation.arms import OFF_COLD, OFF_FROZEN, OFF_WARM, Arm
from controller.simulation.controls import FixedControl
from controller.simulation.cost_profile import CostProfile
from controller.simulation.demo.load import Phase
from controller.simulation.engine import EngineConfig, Request, VirtualEngine
from controller.simulation.report import percentiles, tpots


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
    return next(arm for arm in (OFF_FROZEN, OFF_COLD, OFF_WARM) if arm in arms)


def compare(phases: Sequence[Phase], arms: dict[str, Trajectory]) -> list[dict[str, Any]]:
    """Per phase, tokens per second while its load is offered, and TPOT, of every arm; JSON-ready.

    A phase `drains` when some arm starts it with more unanswered requests than its own load keeps in
    flight: then tokens per second count the backlog of the phase before, and more is not better.
    """
    starts = [phase.start_s for phase in phases]
    rows = []
    for i, phase in enumerate(phases):
        figures: dict[str, dict[str, Any]] = {}
        for name, run in arms.items():
            mine = [r for r in run.requests if bisect.bisect_right(starts, r.arrival_s) - 1 == i]
            emitted = run.tokens_at(phase.end_s) - run.tokens_at(phase.start_s)
            figures[name] = {
                "output_tok_s": emitted / (phase.end_s - phase.start_s),
                "tpot_ms": _milliseconds(percentiles(tpots(mine))),
                "requests": len(mine),
                "carried_in": _unanswered(run.requests, phase.start_s),
            }
        drains = any(figure["carried_in"] > phase.concurrency for figure in figures.values())
        span = {"phase": phase.name, "start_s": phase.start_s, "end_s": phase.end_s}
        rows.append({**span, "drains": drains, "arms": figures})
    return rows


def whole_run(arms: dict[str, Trajectory]) -> dict[str, dict[str, Any]]:
    """Latencies of all requests of every arm; JSON-ready.

    Not tokens per second: every arm serves the same arrivals to the end, so these are equal by construction.
    """
    figures = {}
    for name, run in arms.items():
        ends = [(r.finish_s, r.finish_s - r.arrival_s) for r in run.requests if r.finish_s is not None]
        e2e = [latency_s for _, latency_s in ends]
        figures[name] = {
            "e2e_s": {"mean": float(np.mean(e2e)) if e2e else None, **percentiles(e2e)},
            "tpot_ms": _milliseconds(percentiles(tpots(run.requests))),
            "last_done_s": max((finish_s for finish_s, _ in ends), default=None),
            "requests": len(run.requests),
            "unfinished": len(run.requests) - len(ends),
        }
    return figures


def summary(whole: dict[str, dict[str, Any]]) -> str:
    """One sentence: what governing brought, by mean end-to-end latency and the time of the last answer."""
    governed, others = whole["governed"], {k: v for k, v in whole.items() if k != "governed"}
    lost = sum(figures["unfinished"] for figures in whole.values())
    if lost or not governed["requests"]:
        return f"No comparison: {lost} of the requests were not answered in time."
    mean_s = governed["e2e_s"]["mean"]
    against = " and ".join(
        f"{f['e2e_s']['mean']:.2f} s {_spoken(name)} ({100 * (mean_s / f['e2e_s']['mean'] - 1):+.0f} %)"
        for name, f in others.items()
    )
    ends = ", ".join(f"{_spoken(name)} at {f['last_done_s']:.1f} s" for name, f in others.items())
    return (
        f"Governed, a request took {mean_s:.2f} s on average, against {against};"
        f" the last was answered at {governed['last_done_s']:.1f} s ({ends})."
    )


def _spoken(arm: str) -> str:
    return arm.replace("_", " ")


def _milliseconds(seconds: dict[str, float | None]) -> dict[str, float | None]:
    return {name: value and value * 1e3 for name, value in seconds.items()}


def _unanswered(requests: Sequence[Request], at_s: float) -> int:
    """Requests that had come before `at_s` and were not finished then."""
    return sum(r.arrival_s < at_s and (r.finish_s is None or r.finish_s > at_s) for r in requests)
