"""How much decode time each policy wastes: profiles x acceptance x load, from a cold start and warm.

    python -m tests.benchmarks.regret --trace azure_code.csv --out docs/results/replay

writes `OUT.json` (every figure of every run) and `OUT.md` (the table).  The trace is an Azure LLM inference
trace (or any other that `specgov replay` reads); see docs/simulator.md.  `native` is SGLang's own rule on a
server without the plugin: its off is SGLang's own depth 0, so its regret is against another oracle, and what
can be compared are the decode seconds.  `--after-off cautious` takes the drafts that are accepted after
off without the draft model to be half as likely as any until the request ends, instead of what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller.simulation.acceptance import AFTER_OFF, CAUTIOUS, parse_acceptance
from controller.simulation.arms import OFF_COLD, OFF_FROZEN, OFF_WARM
from controller.simulation.arrivals import read_arrivals
from controller.simulation.cost_profile import load_profile
from controller.simulation.engine import EngineConfig
from controller.simulation.replay import Run, Scenario, fixed_arms, replay_policy
from controller.simulation.replay_command import guarded
from controller.simulation.report import run_to_json
from policies.base import Learner, Policy
from tests.benchmarks.informed import Informed

PROFILES = ("h200_llama8b_triton", "h200_llama8b_fa3")
ACCEPTANCE = ("0.745", "0.366", "0.745@0,0.366@300,...")
RATE_SCALES = {"low": 1.0, "mixed": 4.0, "saturated": 12.0}
INFORMED_OFF = {"warm off": OFF_WARM, "cold off": OFF_COLD, "frozen off": OFF_FROZEN}
"""The gears that an informed policy has for its off, each in a replay of its own."""

POLICIES = ("goodput", "informed", "native", "threshold")
ORDER = (
    ("goodput", "cold"),
    ("goodput", "warm"),
    ("informed", "warm off"),
    ("informed", "cold off"),
    ("informed", "frozen off"),
    ("native", "cold"),
    ("threshold", "cold"),
)


@dataclass(frozen=True)
class Case:
    """A policy on one load, from a cold start; and once more with what that taught it, if it learns."""

    profile: str
    acceptance: str
    load: str
    policy: str
    seconds: float
    seed: int
    after_off: str = "measured"
    """What requests draft after off without the draft model, of `acceptance.AFTER_OFF`."""

    def scenario(self, trace: str, seed: int) -> Scenario:
        """What is replayed."""
        arrivals = read_arrivals(trace).scaled(RATE_SCALES[self.load]).lasting(self.seconds)
        after_off = AFTER_OFF[self.after_off]
        engine = EngineConfig(plain_decode=self.policy != "native", after_off=after_off)
        acceptance = parse_acceptance(self.acceptance)
        return Scenario(load_profile(self.profile), arrivals, acceptance, engine=engine, seed=seed)


def replay(work: tuple[Case, str]) -> list[dict[str, Any]]:
    """Run one case: cold, and warm with other noise."""
    case, trace = work
    if case.policy == "informed":
        scenario = case.scenario(trace, case.seed)
        policies = ((gear, Informed(scenario, off)) for gear, off in INFORMED_OFF.items())
        return [figures(case, gear, scenario, policy) for gear, policy in policies]
    learner, policy = guarded(case.policy)
    results = [figures(case, "cold", case.scenario(trace, case.seed), policy)]
    if isinstance(learner, Learner):
        warm, policy = guarded(case.policy)
        assert isinstance(warm, Learner)
        warm.import_state(learner.export_state())
        results.append(figures(case, "warm", case.scenario(trace, case.seed + 1), policy))
    return results


def figures(case: Case, start: str, scenario: Scenario, policy: Policy) -> dict[str, Any]:
    """One replay, in figures."""
    run: Run = replay_policy(scenario, policy)
    named = {name: value for name, value in asdict(case).items() if name != "seed"}
    return {**named, "start": start, "seed": scenario.seed, **run_to_json(run, fixed_arms(scenario))}


HEADINGS = (
    "profile", "acceptance", "load", "policy", "start", "after off", "decode s", "regret", "with cold harm",
    "with draft prefills", "vs always off", "vs best fixed", "probes", "switches/min",
    "lost: not cold", "first steps", "switches", "late", "other arms",
)  # fmt: skip


CAUSES = ("not_going_cold", "first_steps_after_off", "switches", "late_after_a_shift", "other_arms")
"""Of `lost_seconds`, shown for goodput and for what could be reached."""

Test = Callable[[Mapping[str, Any]], bool]

TARGETS: tuple[tuple[str, Test, Test], ...] = (
    ("regret at most 2 % from a cold start", lambda r: r["start"] == "cold", lambda r: r["regret"] <= 0.02),
    ("regret at most 1 % warm", lambda r: r["start"] == "warm", lambda r: r["regret"] <= 0.01),
    (
        "the first, with the lasting harm of cold and frozen charged too",
        lambda r: r["start"] == "cold",
        lambda r: r["regret_with_cold_harm"] <= 0.02,
    ),
    (
        "the second, with that harm",
        lambda r: r["start"] == "warm",
        lambda r: r["regret_with_cold_harm"] <= 0.01,
    ),
    (
        "at most 1 % worse than the better of always-off and the best fixed depth",
        lambda _: True,
        lambda r: r["against_best_fixed"] <= 0.01,
    ),
    ("probes at most 1 % of decode time", lambda _: True, lambda r: r["probe_share"] <= 0.01),
    (
        "fewer than 6 switches a minute in the median",
        lambda _: True,
        lambda r: (r["switches"]["per_minute_median"] or 0) < 6,
    ),
)
"""Name, which replays of goodput it is about, and whether one meets it."""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown page: what was asked for, and every replay."""
    return (
        "# Policies on an hour of real arrivals (simulated)\n\n"
        "Made by `python -m tests.benchmarks.regret` (`make bench-regret`) from the Azure LLM inference trace"
        " of code completion at 1 (low), 4 (mixed) and 12 (saturated) times its rate, seed"
        f" {results[0]['seed']}; warm: once more with what that taught, and other noise;"
        " drifting: acceptance 0.745 and 0.366 in turn, 300 s each. Step times are"
        " those of the profiles, not of a running GPU; how true that is: [simulator](../simulator.md)."
        " `native` is SGLang's own rule without the plugin, whose off is another: of it only the decode"
        " seconds can be compared. The default table of `threshold` was written down for this very machine."
        " `informed` is what could be reached: it knows every cost and acceptance, takes the best arm with"
        " one gear for off, and learns of a shift from its counts alone (`tests/benchmarks/informed.py`)."
        " Lost: shares of the oracle's decode seconds, by cause"
        " ([what they mean](../simulator.md#the-json)).\n\n"
        "After off without the draft model the first step accepts nothing. From the second step on `measured`"
        f" takes each draft to be accepted {AFTER_OFF['measured'].cold:g} (cold) and"
        f" {AFTER_OFF['measured'].frozen:g} (prefilled while frozen) times as often until the request ends,"
        " which is what [a small trained pair](after-cold.md) showed;"
        f" `cautious` {CAUTIOUS.cold:g} times, an assumption. Until the former was measured this page knew"
        " the latter alone, without the loss of the first step.\n\n"
        + targets(results)
        + f"\n{table(results)}"
    )


def targets(results: Sequence[Mapping[str, Any]]) -> str:
    """What was asked for, and in how many replays it was met, for each kind of aftermath."""
    kinds = [kind for kind in AFTER_OFF if any(r["after_off"] == kind for r in results)]
    lines = [f"| asked of goodput | {' | '.join(kinds)} |", "| --- |" + " --- |" * len(kinds)]
    for name, about, met in TARGETS:
        met_in = (count((r for r in results if r["after_off"] == kind), about, met) for kind in kinds)
        lines.append(f"| {name} | {' | '.join(met_in)} |")
    return "\n".join(lines) + "\n"


def count(results: Iterable[Mapping[str, Any]], about: Test, met: Test) -> str:
    """In how many replays of goodput a target is met, and the replays in which it is not."""
    asked = [r for r in results if r["policy"] == "goodput" and about(r)]
    missed = [f"{r['profile']} {row(r)[1]} {r['load']} {r['start']}" for r in asked if not met(r)]
    text = f"{len(asked) - len(missed)} of {len(asked)}"
    return f"{text}; not: {', '.join(missed)}" if missed else text


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """The figures that have a target, as Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row(result))} |" for result in results)]) + "\n"


def row(r: Mapping[str, Any]) -> list[str]:
    """One replay's cells."""
    drift = "drifting" if "@" in r["acceptance"] else r["acceptance"]
    own = r["policy"] == "native"
    shares = [
        r["regret"],
        r["regret_with_cold_harm"],
        r["regret_with_draft_prefill"],
        r["against"].get("always_off"),
        r["against_best_fixed"],
    ]
    shown = ["other oracle" if own else _percent(value) for value in shares]
    median = r["switches"]["per_minute_median"]
    asked = r["policy"] in ("goodput", "informed")
    lost = [r["lost_seconds"][cause] / r["oracle_seconds"] if asked else None for cause in CAUSES]
    names = [str(r[name]) for name in ("profile", "load", "policy", "start", "after_off")]
    return [
        names[0], drift, *names[1:], f"{r['decode_seconds']:.1f}", *shown,
        _percent(r["probe_share"]), "unknown" if median is None else f"{median:g}",
        *("-" if share is None else _percent(share) for share in lost),
    ]  # fmt: skip


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.2f} %"


def write(out: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Both files; a replay to a line of the JSON."""
    kinds = list(AFTER_OFF)
    results = sorted(
        results, key=lambda r: (ORDER.index((r["policy"], r["start"])), kinds.index(r["after_off"]))
    )
    lines = ",\n".join(json.dumps(result) for result in results)
    out.with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    out.with_suffix(".md").write_text(page(results), encoding="utf-8")


def main() -> None:
    """Replay the grid and write both files."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--trace", required=True)
    options.add_argument("--out", default="build/replay")
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--policy", action="append", help=f"one or several of {', '.join(POLICIES)}")
    options.add_argument("--after-off", choices=tuple(AFTER_OFF), default="measured")
    options.add_argument("--load", choices=tuple(RATE_SCALES), action="append")
    options.add_argument(
        "--add", action="append", default=[], metavar="JSON", help="replay nothing: the page of these results"
    )
    given = options.parse_args()
    cases = [
        Case(profile, acceptance, load, policy, given.seconds, given.seed, given.after_off)
        for policy in given.policy or POLICIES
        for profile in PROFILES
        for acceptance in ACCEPTANCE
        for load in given.load or RATE_SCALES
    ]
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for path in given.add:
        results += json.loads(Path(path).read_text(encoding="utf-8"))
    if given.add:
        write(out, results)
        return
    began_s = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(replay, [(case, given.trace) for case in cases]):
            results += found
            write(out, results)
            for result in found:
                done = f"{len(results)}, {time.monotonic() - began_s:.0f} s"
                sys.stdout.write(f"{done}: {' | '.join(row(result))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
