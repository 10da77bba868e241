"""Closed loops, where clients hold the batch at its size: what counting prefills brings, simulated.

    python -m tests.benchmarks.held_batch [--after 10] [--seconds 20] [--tick 0.25]

`goodput` knows nothing at first and is counted `--after` seconds; beside it the same policy to which prefills
cost nothing, and every arm held.  Prefills cost what was measured in closed loops with prompts of 200 tokens:
11 ms for those behind one step and 11 ms for 1000 tokens (docs/results/h200-governed.md).  Steps of 256
requests, of which the profile does not tell, take what the same page's law was fitted to.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import numpy as np

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.arms import OFF_WARM
from controller.simulation.closed_loop import Bench
from controller.simulation.cost_profile import CostProfile, CostRow, load_profile
from controller.simulation.replay_command import guarded
from policies.goodput import Goodput
from policies.prefill_cost import PrefillCost
from tests.benchmarks.cold_start import PREFILL

LEVELS = (8, 32, 64, 128, 256)
AT_256_MS = {
    "plain": 12.0,
    "off_warm": 12.5,
    "depth_0": 71.0,
    "depth_1": 20.8,
    "depth_2": 31.6,
    "depth_4": 54.0,
}


class Costless(PrefillCost):
    """Prefills cost nothing."""

    def amortized_s(self, tokens: Any, _fit: Any) -> Any:
        """Nothing."""
        return np.zeros_like(tokens)


def profile() -> CostProfile:
    """An H200, Triton, drafts verified by decoding, up to 256 requests."""
    measured = load_profile("h200_llama8b_triton_chain")
    rows = {
        name: CostRow((*row.batch_sizes, 256), (*row.step_ms, AT_256_MS[name]))
        for name, row in measured.rows.items()
    }
    return dataclasses.replace(measured, rows=rows, prefill=PREFILL)


def main() -> None:
    """Print a line for each load."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--after", type=float, default=10.0, metavar="SECONDS")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--tick", type=float, default=0.25, metavar="SECONDS")
    given = options.parse_args()
    for acceptance in ("0.745", "0.366"):
        for level in LEVELS:
            bench = Bench(
                profile(),
                parse_acceptance(acceptance),
                [level],
                settle_s=given.after,
                measure_s=given.seconds,
            )
            held = {arm: bench.hold(arm)[0].output_tok_s for arm in bench.arms() if arm != OFF_WARM}
            best = max(held, key=lambda arm: held[arm])
            counted, costless = (
                govern(bench, given.tick, prefill) for prefill in (PrefillCost(), Costless())
            )
            sys.stdout.write(
                f"{acceptance} C={level}: best {best[0]} {best[1]} {held[best]:.0f} tok/s; goodput"
                f" {100 * counted / held[best]:.1f} %,"
                f" with prefills at no cost {100 * costless / held[best]:.1f} %\n"
            )
            sys.stdout.flush()


def govern(bench: Bench, tick_s: float, prefill: PrefillCost) -> float:
    """Tokens per second of a `goodput` that counts prefills so."""
    learner, policy = guarded("goodput")
    assert isinstance(learner, Goodput)
    learner.models = dataclasses.replace(learner.models, prefill=prefill)
    (run,) = bench.govern(policy, tick_s=tick_s)
    return run.output_tok_s


if __name__ == "__main__":
    main()
