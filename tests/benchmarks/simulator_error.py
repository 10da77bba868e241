"""How far the simulator is from the real server: the same closed loop, the same profile.

    python -m tests.benchmarks.simulator_error [--json]

The measured figures are in `data/`; `docs/simulator.md` shows what this prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.closed_loop import Bench, ClosedLoopResult
from controller.simulation.cost_profile import load_profile
from controller.simulation.engine import EngineConfig

MEASURED = Path(__file__).parent / "data" / "h200_llama8b_triton_closed_loop.json"


def compare(levels: Sequence[int] | None = None, measure_s: float = 30.0) -> Iterator[dict[str, Any]]:
    """Per column and concurrency, measured and simulated tokens per second."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    for column in measured["columns"]:
        known = dict(zip(measured["concurrency"], column["tok_s"], strict=True))
        wanted = [level for level in known if levels is None or level in levels]
        bench = Bench(
            load_profile(measured["profile"]),
            parse_acceptance(column["acceptance"]),
            wanted,
            measure_s=measure_s,
            engine=EngineConfig(plain_decode=column["arm"] == "plain"),
        )
        for result in _run(bench, column["arm"]):
            real = known[result.concurrency]
            yield {
                "column": column["name"],
                "concurrency": result.concurrency,
                "measured_tok_s": real,
                "simulated_tok_s": round(result.output_tok_s, 1),
                "error": result.output_tok_s / real - 1,
            }


def _run(bench: Bench, arm: str) -> list[ClosedLoopResult]:
    if arm == "native":
        return bench.native()
    off = {"plain": (0, "frozen"), "depth_0": (0, "warm")}
    return bench.hold(off.get(arm) or (int(arm.removeprefix("depth_")), "on"))


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = list(compare())
    if as_json:
        json.dump(rows, sys.stdout, indent=1)
        return
    levels = sorted({row["concurrency"] for row in rows})
    sys.stdout.write("| simulated tok/s (error) | " + " | ".join(f"C={c}" for c in levels) + " |\n")
    sys.stdout.write("|---" * (len(levels) + 1) + "|\n")
    for name in dict.fromkeys(row["column"] for row in rows):
        cells = [f"{r['simulated_tok_s']:.0f} ({r['error']:+.0%})" for r in rows if r["column"] == name]
        sys.stdout.write(f"| {name} | " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    main()
