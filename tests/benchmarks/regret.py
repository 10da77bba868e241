"""How much decode time each policy wastes: profiles x acceptance x load, from a cold start and warm.

    python -m tests.benchmarks.regret --trace azure_code.csv --out docs/results/replay

writes `OUT.json` (every figure of every run) and `OUT.md` (the table).  The trace is an Azure LLM inference
trace (or any other that `specgov replay` reads); see docs/simulator.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.arrivals import read_arrivals
from controller.simulation.cost_profile import load_profile
from controller.simulation.replay import Run, Scenario, fixed_arms, replay_policy
from controller.simulation.replay_command import guarded
from controller.simulation.report import run_to_json
from policies.base import Learner

PROFILES = ("h200_llama8b_triton", "h200_llama8b_fa3")
ACCEPTANCE = ("0.745", "0.366", "0.745@0,0.366@300,...")
RATE_SCALES = {"low": 1.0, "mixed": 4.0, "saturated": 12.0}


@dataclass(frozen=True)
class Case:
    """One replay."""

    profile: str
    acceptance: str
    load: str
    policy: str
    start: str
    seconds: float
    seed: int

    def scenario(self, trace: str, seed: int) -> Scenario:
        """What is replayed."""
        arrivals = read_arrivals(trace).scaled(RATE_SCALES[self.load]).lasting(self.seconds)
        return Scenario(load_profile(self.profile), arrivals, parse_acceptance(self.acceptance), seed=seed)


def replay(work: tuple[Case, str]) -> dict[str, Any]:
    """Run one case; a warm one learns in an hour of other noise first."""
    case, trace = work
    bare, policy = guarded(case.policy)
    if case.start == "warm":
        if not isinstance(bare, Learner):
            raise TypeError(f"{case.policy} learns nothing, so it cannot start warm")
        replay_policy(case.scenario(trace, case.seed + 1), policy)
        learned = bare.export_state()
        bare, policy = guarded(case.policy)
        bare.import_state(learned)
    scenario = case.scenario(trace, case.seed)
    run: Run = replay_policy(scenario, policy)
    return {**asdict(case), **run_to_json(run, fixed_arms(scenario))}


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """The figures that have a target, as Markdown."""
    lines = [
        "| profile | acceptance | load | policy | start | regret | vs best fixed | probes | switches |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        drift = "drifting" if "@" in r["acceptance"] else r["acceptance"]
        shown = (_percent(r[name]) for name in ("regret", "against_best_fixed", "probe_share"))
        median = r["switches"]["per_minute_median"]
        cells = (r["profile"], drift, r["load"], r["policy"], r["start"], *shown, f"{median:g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.2f} %"


def main() -> None:
    """Replay the grid and write both files."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--trace", required=True)
    options.add_argument("--out", default="build/replay")
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--policy", action="append")
    options.add_argument("--start", choices=("cold", "warm"), action="append")
    given = options.parse_args()
    cases = [
        Case(profile, acceptance, load, policy, start, given.seconds, given.seed)
        for policy in given.policy or ("goodput",)
        for start in given.start or ("cold", "warm")
        for profile in PROFILES
        for acceptance in ACCEPTANCE
        for load in RATE_SCALES
    ]
    results = []
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.jobs) as pool:
        for result in pool.map(replay, [(case, given.trace) for case in cases]):
            results.append(result)
            out.with_suffix(".json").write_text(json.dumps(results, indent=1), encoding="utf-8")
            sys.stdout.write(table([result]).splitlines()[-1] + "\n")
            sys.stdout.flush()
    out.with_suffix(".md").write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
