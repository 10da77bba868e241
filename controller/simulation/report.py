"""What a replay has to say, as JSON; `docs/simulator.md` describes every field."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from controller.control_state import schedule_to_json
from controller.simulation.arms import Arm
from controller.simulation.engine import Request
from controller.simulation.losses import Losses
from controller.simulation.replay import Run, Sample, Scenario

MINUTE_S = 60.0


def run_to_json(run: Run, baselines: Mapping[str, Arm]) -> dict[str, Any]:
    """One policy's figures; `baselines` names the arms that it is compared with."""
    totals = run.totals
    against = {name: totals.against(arm) for name, arm in baselines.items()}
    known = [value for value in against.values() if value is not None]
    return {
        "regret": totals.regret,
        "regret_with_cold_harm": totals.regret_with_cold_harm,
        "regret_with_draft_prefill": totals.regret_with_draft_prefill,
        "decode_seconds": totals.spent_s,
        "oracle_seconds": totals.oracle_s,
        "draft_prefill_seconds": totals.draft_prefill_s,
        "lost_seconds": lost_to_json(totals.losses),
        "against": against,
        "against_best_fixed": max(known, default=None),
        "decode_steps": totals.steps,
        "output_tokens": run.emitted_tokens,
        "output_tok_s": run.emitted_tokens / run.end_s if run.end_s else None,
        "seconds": run.end_s,
        "prefill_seconds": run.prefill_s,
        "requests": {
            "finished": len(run.finished),
            "unfinished": run.unfinished,
            "rejected": run.rejected,
        },
        "ttft_s": percentiles(ttfts(run.finished)),
        "tpot_s": percentiles(tpots(run.finished)),
        "switches": _rate(run, lambda sample: sample.switches),
        "plan_changes": _rate(run, lambda sample: sample.plan_changes),
        "probe_share": totals.probe_share,
        "arm_seconds": {f"{depth} {gear}": seconds for (depth, gear), seconds in totals.used_s.items()},
        "schedule": schedule_to_json(run.schedule) if run.schedule else None,
    }


def lost_to_json(losses: Losses) -> dict[str, Any]:
    """`decode_seconds - oracle_seconds` by cause."""
    by_batch = sorted(losses.arms_by_batch_s.items())
    return {
        "switches": losses.switches_s,
        "probes": losses.probes_s,
        "not_going_cold": losses.cold_s,
        "first_steps_after_off": losses.stale_s,
        "late_after_a_shift": losses.late_s,
        "other_arms": losses.arms_s,
        "wrong_arms_by_batch": {str(batch): lost_s for batch, lost_s in by_batch},
    }


def scenario_to_json(scenario: Scenario, acceptance: str) -> dict[str, Any]:
    """What was replayed."""
    trace, engine = scenario.trace, scenario.engine
    return {
        "profile": {"name": scenario.profile.name, **scenario.profile.about},
        "prefill_stated": scenario.profile.prefill.stated,
        "arrivals": {
            "format": trace.format,
            "requests": len(trace.arrivals),
            "seconds": trace.duration_s,
            "bad_rows": len(trace.bad_rows),
            "first_bad_rows": [str(row) for row in trace.bad_rows[:5]],
            "reordered": trace.reordered,
        },
        "acceptance": acceptance,
        "draft_prefill_ms_per_request": scenario.profile.prefill.draft_ms_per_request,
        "after_off": dataclasses.asdict(engine.after_off),
        "plain_decode": engine.plain_decode,
        "max_running_requests": engine.max_running_requests,
        "kv_tokens": engine.kv_tokens,
        "noise": engine.noise,
        "switch_seconds": engine.switch_s,
        "tick_seconds": scenario.tick_s,
        "seed": scenario.seed,
    }


def ttfts(requests: Iterable[Request]) -> list[float]:
    """Arrival to first token, in seconds, of those that have one."""
    return [r.first_token_s - r.arrival_s for r in requests if r.first_token_s is not None]


def tpots(requests: Iterable[Request]) -> list[float]:
    """(end - first token) / (output tokens - 1), in seconds, of finished requests of two tokens and more."""
    return [
        (r.finish_s - r.first_token_s) / (r.output_tokens - 1)
        for r in requests
        if r.finish_s is not None and r.first_token_s is not None and r.output_tokens > 1
    ]


def percentiles(values: list[float]) -> dict[str, float | None]:
    """Median and 99th percentile; `None` without values."""
    if not values:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": float(p50), "p99": float(p99)}


def _rate(run: Run, count: Callable[[Sample], int]) -> dict[str, float | None]:
    """Total, and the median over whole minutes in which something was decoded."""
    minutes = [_at(run.samples, start * MINUTE_S) for start in range(int(run.end_s // MINUTE_S) + 1)]
    busy = [
        count(after) - count(before)
        for before, after in itertools.pairwise(minutes)
        if after.spent_s > before.spent_s
    ]
    total = count(run.samples[-1]) if run.samples else 0
    return {"total": total, "per_minute_median": statistics.median(busy) if busy else None}


_START = Sample(
    at_s=0,
    running=0,
    waiting=0,
    depth_s=0,
    spent_s=0,
    oracle_s=0,
    switches=0,
    plan_changes=0,
    emitted_tokens=0,
)


def _at(samples: list[Sample], at_s: float) -> Sample:
    """The last sample not after `at_s`."""
    i = int(np.searchsorted([sample.at_s for sample in samples], at_s, side="right"))
    return samples[i - 1] if i else _START
