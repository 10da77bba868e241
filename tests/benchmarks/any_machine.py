"""Is the default policy right on machines that nobody tuned it for?  `python -m tests.benchmarks.any_machine`

Draws machines, acceptances and loads at random, replays each from a cold start, and prints how much decode
time was wasted against an oracle that knows all of it, and against the better of always-off and the best
fixed depth.  `--worlds N` of them (default 16), or `--world I` alone, which is drawn the same again; `--out`
writes `OUT.json` (every figure of every world) and `OUT.md`.

A machine is a roofline (Williams et al., 2009) with soft knees: a step reads the weights, or computes for
every token that it takes in, whichever is longer; attention is paid per request, and by the verify once more
per draft as badly as the kernel does it; each draft costs a share of the weights and a launch.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controller.simulation.acceptance import AFTER_OFF, parse_acceptance
from controller.simulation.arrivals import Arrival, Trace
from controller.simulation.cost_profile import CostProfile, parse_profile
from controller.simulation.engine import EngineConfig
from controller.simulation.replay import Scenario, fixed_arms, replay_policy
from controller.simulation.replay_command import guarded
from controller.simulation.report import run_to_json

SECONDS = 1800.0
LEVEL_SECONDS = (60.0, 400.0)
"""How long the load stays at one level."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEPTHS = ((1, 2, 4), (1, 2, 3, 5), (1, 3, 7), (2,), (4,), (1, 2, 3, 4, 5, 6, 7))
OUTPUT_TOKENS, PROMPT_TOKENS = 200, 300
"""Medians; log-normal with a sigma of 0.6 and 0.8."""


@dataclass(frozen=True)
class Machine:
    """What a decode step costs; times in ms."""

    weights_ms: float
    """Reading the weights once, and the rest that no batch size changes."""
    knee_tokens: float
    """Tokens in a step at which computing takes as long as reading the weights."""
    attention_ms: float
    """Per request."""
    verify_penalty: float
    """How much worse a verify's attention does per token than decoding."""
    draft_share: float
    """One draft step's reading, as a share of the weights."""
    draft_launch_ms: float
    depths: tuple[int, ...]

    def step_ms(self, depth: int, batch_size: int) -> float:
        """One decode step; depth 0 is plain decoding."""
        tokens = batch_size * (depth + 1)
        penalty = 1.0 if depth == 0 else self.verify_penalty * (depth + 1)
        draft = self.draft_share * self._dense(batch_size) + self.draft_launch_ms
        return self._dense(tokens) + self.attention_ms * batch_size * penalty + depth * draft

    def profile(self) -> CostProfile:
        """As `specgov bench` would have measured it."""
        rows = {"plain": 0, **{f"depth_{depth}": depth for depth in self.depths}}
        steps = {
            name: {str(size): self.step_ms(depth, size) for size in SIZES} for name, depth in rows.items()
        }
        return parse_profile({"schema": 1, "name": "drawn", "step_ms": steps})

    def _dense(self, tokens: float) -> float:
        """The soft maximum (a norm of order 4) of reading and computing."""
        return float(self.weights_ms * (1.0 + (tokens / self.knee_tokens) ** 4) ** 0.25)


def draw_machine(rng: np.random.Generator) -> Machine:
    """From a small dense model on one GPU to a large one on several, with good kernels and bad ones."""
    weights_ms = _log_uniform(rng, 2.0, 30.0)
    return Machine(
        weights_ms=weights_ms,
        knee_tokens=_log_uniform(rng, 24.0, 600.0),
        attention_ms=weights_ms * _log_uniform(rng, 0.0005, 0.02),
        verify_penalty=_log_uniform(rng, 0.5, 4.0),
        draft_share=_log_uniform(rng, 0.02, 0.25),
        draft_launch_ms=rng.uniform(0.0, 0.5),
        depths=DEPTHS[rng.integers(len(DEPTHS))],
    )


def draw_acceptance(rng: np.random.Generator) -> str:
    """One probability, one that falls by position, or a change every few minutes."""
    first = rng.uniform(0.2, 0.92)
    kind = rng.integers(3)
    if kind == 0:
        return f"{first:.3f}"
    if kind == 1:
        return "/".join(f"{first * 0.9**i:.3f}" for i in range(7))
    other, period_s = rng.uniform(0.2, 0.92), rng.integers(180, 900)
    return f"{first:.3f}@0,{other:.3f}@{period_s},..."


def draw_load(rng: np.random.Generator, machine: Machine) -> Trace:
    """Poisson arrivals whose rate keeps so many requests busy: another number every few minutes."""
    return Trace("drawn", tuple(_arrivals(rng, machine)))


def _arrivals(rng: np.random.Generator, machine: Machine) -> Iterator[Arrival]:
    at_s, until_s, rate = 0.0, 0.0, 0.0
    first_s: float | None = None
    while at_s < SECONDS:
        if at_s >= until_s:
            until_s = at_s + rng.uniform(*LEVEL_SECONDS)
            busy = _log_uniform(rng, 1.0, 160.0)
            rate = busy / (OUTPUT_TOKENS * 1.2 * machine.step_ms(0, round(busy)) / 1000)
        at_s += rng.exponential(1.0 / rate)
        first_s = at_s if first_s is None else first_s
        prompt = PROMPT_TOKENS * math.exp(rng.normal(0.0, 0.8))
        output = OUTPUT_TOKENS * math.exp(rng.normal(0.0, 0.6))
        yield Arrival(at_s - first_s, max(1, round(prompt)), max(1, round(output)))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def replay(world: tuple[int, int, str, str]) -> dict[str, Any]:
    """One world under one policy, from a cold start; and what was drawn."""
    seed, index, policy, after_off = world
    rng = np.random.default_rng([seed, index])
    machine, acceptance = draw_machine(rng), draw_acceptance(rng)
    engine = EngineConfig(after_off=AFTER_OFF[after_off])
    load = draw_load(rng, machine)
    scenario = Scenario(machine.profile(), load, parse_acceptance(acceptance), engine, seed + index)
    run = replay_policy(scenario, guarded(policy)[1])
    return {
        "world": index,
        "machine": {name: _short(value) for name, value in vars(machine).items()},
        "acceptance": acceptance,
        "after_off": after_off,
        **run_to_json(run, fixed_arms(scenario)),
    }


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "regret against the oracle, %": lambda r: 100 * r["regret"],
    "the same, lasting harm of cold charged, %": lambda r: 100 * r["regret_with_cold_harm"],
    "worse than the best fixed, %": lambda r: 100 * r["against_best_fixed"],
    "probes, % of decode time": lambda r: 100 * r["probe_share"],
    "switches a minute, median": lambda r: r["switches"]["per_minute_median"] or 0,
}


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Quantiles over the worlds, and the worlds that went worst."""
    lines = ["| over all worlds | median | 90 % | worst | in world |", "| --- | --- | --- | --- | --- |"]
    for name, figure in FIGURES.items():
        values = [figure(r) for r in results]
        worst = int(np.argmax(values))
        at = [f"{value:.2f}" for value in (*np.quantile(values, [0.5, 0.9]), values[worst])]
        lines.append(f"| {name} | {' | '.join(at)} | {results[worst]['world']} |")
    return "\n".join(lines) + "\n"


MACHINE = {
    "weights_ms": "weights, ms",
    "knee_tokens": "knee, tokens",
    "attention_ms": "attention, ms a request",
    "verify_penalty": "verify's penalty",
    "draft_share": "draft's share",
    "depths": "depths",
}


def worlds(results: Sequence[Mapping[str, Any]]) -> str:
    """One world to a row."""
    headings = ["world", *MACHINE.values(), "acceptance", *FIGURES]
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for r in results:
        drawn = [_cell(r["machine"][name]) for name in MACHINE]
        figures = [f"{figure(r):.2f}" for figure in FIGURES.values()]
        lines.append(f"| {' | '.join([str(r['world']), *drawn, r['acceptance'], *figures])} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else ", ".join(map(str, value))


def line(r: Mapping[str, Any]) -> str:
    """One world in a line."""
    figures = ", ".join(f"{name} {figure(r):.2f}" for name, figure in FIGURES.items())
    return f"world {r['world']}: {figures}; {r['acceptance']}; {r['machine']}"


def page(results: Sequence[Mapping[str, Any]], policy: str, seed: int) -> str:
    """The Markdown page."""
    command = (
        f"python -m tests.benchmarks.any_machine --policy {policy} --seed {seed} --worlds {len(results)}"
    )
    return (
        f"# {policy} on machines drawn at random (simulated)\n\n"
        f"Made by `{command}`: {len(results)} machines, acceptances and loads that nobody chose,"
        f" {SECONDS / 60:.0f} minutes each, from a cold start. What is drawn, and from which ranges, is at"
        f" the head of that module.\n\n{summary(results)}\n{worlds(results)}"
    )


def main() -> None:
    """Replay, print, write the JSON if asked to."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--worlds", type=int, default=16)
    options.add_argument("--world", type=int, help="this one alone")
    options.add_argument("--policy", default="goodput")
    options.add_argument("--after-off", choices=tuple(AFTER_OFF), default="measured")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--out", type=Path, help="where to write OUT.json and OUT.md")
    given = options.parse_args()
    indices = range(given.worlds) if given.world is None else [given.world]
    began_s = time.monotonic()
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for result in pool.map(replay, [(given.seed, i, given.policy, given.after_off) for i in indices]):
            results.append(result)
            sys.stdout.write(
                f"{len(results)}/{len(indices)}, {time.monotonic() - began_s:.0f} s: {line(result)}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"\n{given.policy}, {len(results)} worlds of {SECONDS:.0f} s, seed {given.seed}\n\n")
    sys.stdout.write(summary(results))
    if given.out:
        rows = ",\n".join(json.dumps(result) for result in results)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(page(results, given.policy, given.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
