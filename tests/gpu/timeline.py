"""What a decode step consists of:  timeline.py OUT.json page.md NAME[=FOLDER] ...

Written as JSON and as the section `timeline` of a page; a NAME without a folder is taken from OUT.json as it
stands there.  FOLDER is what `plain_decode` left with PARTS=timeline: the traces of SGLang's profiler under
it where they came back, else what the plan made of them there (`kit/profiles.py` says what is counted).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from kit.profiles import summarize  # noqa: E402 - the path comes first
from sections import fill, runs, table  # noqa: E402

LEAST_US = 1.0
"""An operation that takes less than this more or less than on the plain server is not listed."""
SHOWN_NAME = 60
HEAD = (
    "server",
    "C",
    "steps",
    "step",
    "graph",
    "busy in it",
    "idle in it",
    "between graphs",
    "busy",
    "idle",
    "operations between",
    "longer steps",
    "step of these",
)
FIGURES = ("step_us", "graph_us", "graph_busy_us", "graph_idle_us", "gap_us", "busy_us", "idle_us")


def measured(folder: Path) -> list[dict]:
    """One summary a trace."""
    traces = sorted(folder.rglob("*.trace.json.gz"))
    if traces:
        return [summarize(path) for path in traces]
    records = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [r["summary"] for r in records if r["kind"] == "timeline"]


def page(found: dict[str, list[dict]]) -> Iterator[str]:
    """A table of steps for each run, then where they differ from the plain server's."""
    for name, summaries in found.items():
        yield f"### {name}\n"
        shown = sorted((s for s in summaries if s["steps"]), key=_place)
        yield from table(HEAD, map(_cells, shown))
        rows = [row for s in shown for row in differences(s, _plain_of(s, shown))]
        if rows:
            head = (
                "server",
                "C",
                "where",
                "operation",
                "times a step",
                "plain",
                "us a step",
                "plain",
                "more",
            )
            yield from table(head, rows, left=4)


def differences(mine: dict, plain: dict | None) -> list[tuple]:
    """Operations whose time a step differs from the plain server's, in the graph and between graphs."""
    if plain is None or mine is plain:
        return []
    rows = []
    for where, key in (("graph", "graph_operations"), ("between", "operations")):
        a, b = ({o["name"]: o for o in s.get(key, ())} for s in (mine, plain))
        none = {"per_step": 0.0, "us_per_step": 0.0}
        for name in dict.fromkeys([*a, *b]) if a and b else ():
            m, p = a.get(name, none), b.get(name, none)
            more = m["us_per_step"] - p["us_per_step"]
            if abs(more) >= LEAST_US:
                times = (m["per_step"], p["per_step"])
                us = (m["us_per_step"], p["us_per_step"])
                rows.append((*_name(mine), where, f"`{name[:SHOWN_NAME]}`", *times, *us, f"{more:+.1f}"))
    return sorted(rows, key=lambda row: (row[2] != "graph", -abs(float(row[-1]))))


def _cells(summary: dict) -> tuple:
    longer = summary.get("longer") or {"steps": 0, "step_us": None}
    figures = [summary.get(key) for key in FIGURES]
    text = [None if us is None else f"{us:.0f}" for us in [*figures, longer["step_us"]]]
    counts = (f"{summary['operations_per_step']:.0f}", longer["steps"] if "longer" in summary else None)
    return (*_name(summary), summary["steps"], *text[:-1], *counts, text[-1])


def _name(summary: dict) -> tuple[str, int]:
    server, _, concurrency = summary["trace"].partition("/")[0].rpartition("-C")
    return server, int(concurrency)


def _place(summary: dict) -> tuple[int, bool, str]:
    server, concurrency = _name(summary)
    return concurrency, not server.startswith("plain"), server


def _plain_of(summary: dict, shown: list[dict]) -> dict | None:
    wanted = _name(summary)[1]
    return next((s for s in shown if _name(s)[0].startswith("plain") and _name(s)[1] == wanted), None)


def main() -> None:
    """Every run."""
    fill(Path(sys.argv[2]), "timeline", page(runs(Path(sys.argv[1]), sys.argv[3:], measured)))


if __name__ == "__main__":
    main()
