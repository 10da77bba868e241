"""What a cold start costs: the first seconds of a closed loop whose load arrives at once, simulated.

    python -m tests.benchmarks.cold_start [--seconds 8] [--tick 0.25]

`goodput` knows nothing; the arms that it is held against hold their depth from the first step on, under the
same arrivals.  Prefill costs what was measured in closed loops with prompts of 200 tokens: 11 ms a batch and
11 ms for 1000 tokens (docs/results/h200-governed.md).  Up to the batch sizes of which the profiles tell.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.arms import OFF_WARM, Arm
from controller.simulation.closed_loop import Bench
from controller.simulation.cost_profile import PrefillCost, load_profile
from controller.simulation.replay_command import guarded

PREFILL = PrefillCost(fixed_ms=11.0, ms_per_1k_tokens=11.0, draft_ms_per_request=0.5, stated=True)
LEVELS = {"h200_llama8b_triton_chain": (1, 8, 32, 64, 128), "h200_llama8b_fa3": (1, 8, 32, 64, 128, 256)}


@dataclass(frozen=True)
class Cell:
    """One load: what `goodput` emitted, as a share of what the best arm did."""

    profile: str
    acceptance: str
    concurrency: int
    best: Arm
    share: float


def measure(seconds: float, tick_s: float) -> Iterator[Cell]:
    """Every profile, acceptance and level."""
    for name, levels in LEVELS.items():
        profile = dataclasses.replace(load_profile(name), prefill=PREFILL)
        for acceptance in ("0.745", "0.366"):
            for level in levels:
                bench = Bench(
                    profile, parse_acceptance(acceptance), [level], settle_s=0.01, measure_s=seconds
                )
                held = {arm: bench.hold(arm)[0].output_tok_s for arm in bench.arms() if arm != OFF_WARM}
                best = max(held, key=lambda arm: held[arm])
                _, policy = guarded("goodput")
                (run,) = bench.govern(policy, tick_s=tick_s)
                yield Cell(name, acceptance, level, best, run.output_tok_s / held[best])


def main() -> None:
    """Print a line for each load, then the whole."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=8.0)
    options.add_argument("--tick", type=float, default=0.25)
    given = options.parse_args()
    cells = []
    for cell in measure(given.seconds, given.tick):
        cells.append(cell)
        depth, gear = cell.best
        best = f"depth {depth}" if depth else f"off ({gear})"
        sys.stdout.write(
            f"{cell.profile} {cell.acceptance} C={cell.concurrency}: {100 * cell.share:.1f} % of {best}\n"
        )
        sys.stdout.flush()
    mean, low = statistics.geometric_mean([c.share for c in cells]), [c for c in cells if c.share < 0.98]
    sys.stdout.write(f"{100 * mean:.1f} % in the mean; {len(low)} of {len(cells)} loads below 98 %\n")


if __name__ == "__main__":
    main()
