"""The table of plain_decode.py's results as Markdown:  off_table.py results.json > table.md

`results.json` is what analyse.py makes, one plan per attention backend.  Per concurrency: the median decode
step of the plain server in ms, then per arm its step and its output tokens per second as ratios to the plain
server's, the 95 % half width of the latter over rounds, and the number of rounds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path


def rows(summary: list[dict]) -> Iterator[str]:
    """One line per concurrency, kind of sampling and arm."""
    groups = {(s["C"], s.get("settling")) for s in summary}
    for concurrency, sampling in sorted(groups, key=lambda group: (str(group[1] or ""), group[0])):
        here = [s for s in summary if (s["C"], s.get("settling")) == (concurrency, sampling)]
        plain = next((s for s in here if s["label"] == "plain"), None)
        if plain is None:
            continue
        for s in here:
            if s is not plain:
                yield line(concurrency, sampling, plain, s)


def line(concurrency: int, sampling: str | None, plain: dict, arm: dict) -> str:
    """Ratios to the plain server; what was not measured is left empty."""
    step = arm["step_ms_p50"] / plain["step_ms_p50"]
    ratio, half = arm.get("ratio_to_plain"), arm.get("ratio_half_width")
    rate = "" if ratio is None else f"{ratio:.3f}" + ("" if half is None else f" ± {half:.3f}")
    steps = f"{plain['step_ms_p50']:.2f} | {arm['step_ms_p50']:.2f} | {step:.3f}"
    cells = (
        concurrency,
        sampling or "greedy",
        arm["label"],
        steps,
        f"{plain['tok_s']:.0f}",
        rate,
        arm["windows"],
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Every plan of the file that has a plain server."""
    for name, plan in json.loads(Path(sys.argv[1]).read_text()).items():
        lines = list(rows(plan.get("summary") or []))
        if lines:
            print(f"\n## {name}\n")
            print("| C | sampling | arm | plain ms | step ms | ratio | plain tok/s | tok/s ratio | n |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
            print("\n".join(lines))


if __name__ == "__main__":
    main()
