"""A trace by phase, arms of several plans side by side:  phases.py results.json page.md SECTION PLAN ...

From what analyse.py made of `mixed` (or `gears_and_trace`) into a section of a page: totals of every arm, its
tokens per second in each phase, and how long the policy took to adapt (`figures/phases.py` says how that is
counted).  Plans that stand side by side have no arm in common.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from figures.phases import POLICY, adapting, by_phase, windows_of  # noqa: E402 - the path comes first
from sections import fill, table  # noqa: E402

NAMES = {"plain": "no speculation", "adaptive": "SGLang's rule", POLICY: "specgov", "off-cold": "off (cold)"}


def page(results: dict, plans: Sequence[str]) -> Iterator[str]:
    """The section, line by line."""
    arms = windows_of(results, plans)
    yield from totals([trace for plan in plans for trace in results[plan]["traces"]])
    rows = by_phase(arms)
    yield "Tokens per second of the whole phase, the best in bold; specgov beside the best of the others:\n"
    head = ("phase", "C", "acceptance", *map(name, arms), "specgov to the best other")
    yield from table(head, map(cells, rows), left=0)
    if POLICY in arms:
        yield "Until the depth of a phase is in force for good, by quarters of a second:\n"
        found = adapting(arms[POLICY])
        body = [(r["phase"], depth(r["from"]), depth(r["to"]), r["seconds"], shares(w)) for r, w in
                zip(found, arms[POLICY], strict=True)]  # fmt: skip
        yield from table(("phase", "from", "to", "seconds", "depths, share of steps"), body)


def totals(traces: list[dict]) -> Iterator[str]:
    """One row an arm: the whole trace."""
    mine = next((t for t in traces if t["arm"] == POLICY), None)
    body = []
    for t in traces:
        figures = [t["tpot_ms_p50"], t["tpot_ms_p99"], t["ttft_ms_p99"]]
        text = [None if v is None else f"{v:.1f}" for v in figures]
        ratio = f"{mine['tok_s'] / t['tok_s']:.3f}" if mine is not None and t is not mine else None
        steady = None if t.get("steady_tok_s") is None else f"{t['steady_tok_s']:.0f}"
        tokens, rate, seconds = f"{t['tokens']:,}", f"{t['tok_s']:.0f}", f"{t['seconds']:.0f}"
        body.append((name(t["arm"]), seconds, tokens, rate, ratio, steady, *text, t["errors"]))
    figures = ("TPOT p50, ms", "TPOT p99, ms", "TTFT p99, ms", "failed")
    head = ("arm", "seconds", "output tokens", "tok/s", "specgov to it", "tok/s, second halves", *figures)
    yield from table(head, body)


def cells(row: dict) -> tuple:
    """One phase."""
    rates = [f"**{rate:.0f}**" if arm == row["best"] else f"{rate:.0f}" for arm, rate in row["tok_s"].items()]
    share = None if row["to_best_other"] is None else f"{100 * row['to_best_other']:.0f} %"
    return (row["phase"], row["C"], row["acceptance"], *rates, share)


def name(arm: str) -> str:
    """As a reader knows it."""
    return NAMES.get(arm, arm.replace("-", " "))


def depth(found: int | None) -> str | None:
    """Depth 0 is off."""
    return None if found is None else str(found) if found else "off"


def shares(window: dict) -> str | None:
    """Of depths that had one step in a hundred or more."""
    steps = window.get("depth_steps") or {}
    total = sum(steps.values())
    most = sorted(steps.items(), key=lambda item: -item[1])
    found = [f"{depth(int(d))}: {100 * n / total:.0f} %" for d, n in most if n >= 0.01 * total]
    return ", ".join(found) or None


if __name__ == "__main__":
    fill(Path(sys.argv[2]), sys.argv[3], page(json.loads(Path(sys.argv[1]).read_text()), sys.argv[4:]))
