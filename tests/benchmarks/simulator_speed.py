"""How fast the simulator is: decode steps per second, and virtual over real time.

    python -m tests.benchmarks.simulator_speed [--seconds 3600] [--json]

An hour of a steady load at several levels of concurrency, governed by a policy through the sidecar's
observer and the hook's own policy, recorder and control plane; and with one arm held, without any of them.
CPU seconds are given beside real ones: on a shared machine only they say how fast it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.closed_loop import Bench, ClosedLoopResult
from controller.simulation.cost_profile import load_profile
from controller.simulation.replay_command import DEFAULT_POLICY, guarded

LEVELS = (1, 8, 32, 128)


def measure(seconds: float, policy: str) -> Iterator[dict[str, Any]]:
    """Per concurrency and way to run: steps, real seconds, speed-up."""
    for level in LEVELS:
        bench = Bench(
            load_profile("h200_llama8b_triton"), parse_acceptance("0.745"), (level,), measure_s=seconds
        )
        yield _time(f"policy {policy}", level, lambda bench=bench: bench.govern(guarded(policy)[1]))
        yield _time("depth 2 held", level, lambda bench=bench: bench.hold((2, "on")))


def _time(name: str, level: int, run: Callable[[], list[ClosedLoopResult]]) -> dict[str, Any]:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    (result,) = run()
    real_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    return {
        "run": name,
        "concurrency": level,
        "virtual_s": result.seconds,
        "real_s": real_s,
        "cpu_s": cpu_s,
        "speed_up": result.seconds / real_s,
        "speed_up_cpu": result.seconds / cpu_s,
        "decode_steps_per_cpu_s": result.decode_steps / cpu_s,
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(measure(options.seconds, options.policy))
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        return
    sys.stdout.write(
        "| run | C | virtual s | real s | CPU s | virtual / real | virtual / CPU | steps / CPU s |\n"
    )
    sys.stdout.write("|---" * 8 + "|\n")
    for row in rows:
        sys.stdout.write(
            f"| {row['run']} | {row['concurrency']} | {row['virtual_s']:.0f} | {row['real_s']:.1f} "
            f"| {row['cpu_s']:.1f} | {row['speed_up']:.0f}x | {row['speed_up_cpu']:.0f}x "
            f"| {row['decode_steps_per_cpu_s']:.0f} |\n"
        )


if __name__ == "__main__":
    main()
