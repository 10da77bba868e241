"""The published case: governed throughput beside speculation always on and always off, by concurrency.

    python -m tests.benchmarks.published_case [--policy goodput] [--json]

For each profile made of published numbers (`controller/simulation/published_case.py`).  "Worst" is how far
governed throughput is below the better side: at most 2 % is the aim.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.closed_loop import Bench
from controller.simulation.cost_profile import load_profile
from controller.simulation.published_case import ACCEPTANCE, DEPTH, READINGS
from controller.simulation.replay_command import DEFAULT_POLICY, guarded

LEVELS = (1, 2, 4, 8, 16, 30, 64)


def measure(profile: str, policy: str) -> list[dict[str, Any]]:
    """Per concurrency, tokens per second of the three."""
    bench = Bench(
        load_profile(profile), parse_acceptance(str(ACCEPTANCE)), LEVELS, settle_s=120.0, measure_s=300.0
    )
    rows = zip(
        bench.hold((DEPTH, "on")), bench.hold((0, "cold")), bench.govern(guarded(policy)[1]), strict=True
    )
    return [
        {
            "concurrency": on.concurrency,
            "always_on_tok_s": on.output_tok_s,
            "always_off_tok_s": off.output_tok_s,
            "governed_tok_s": governed.output_tok_s,
            "below_the_better": 1 - governed.output_tok_s / max(on.output_tok_s, off.output_tok_s),
        }
        for on, off, governed in rows
    ]


def main() -> None:
    """Print a table per profile, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {profile: measure(profile, options.policy) for profile in READINGS}
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        return
    for profile, rows in results.items():
        sys.stdout.write(f"\n{profile}, policy {options.policy}\n\n")
        sys.stdout.write(
            "| C | always on | always off | governed | below the better side |\n|---|---|---|---|---|\n"
        )
        for row in rows:
            sys.stdout.write(
                f"| {row['concurrency']} | {row['always_on_tok_s']:.0f} | {row['always_off_tok_s']:.0f} "
                f"| {row['governed_tok_s']:.0f} | {row['below_the_better']:.1%} |\n"
            )
        sys.stdout.write(f"\nworst: {max(row['below_the_better'] for row in rows):.1%}\n")


if __name__ == "__main__":
    main()
