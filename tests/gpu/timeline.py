"""What a decode step consists of, from traces of SGLang's profiler:  timeline.py FOLDER ... > timeline.json

A step is the time from one launch of the target's CUDA graph to the next (steps with a prefill between them
are left out).  `graph_us`: that graph, first kernel to last.  `gap_us`: from there to the next one; in it
`other_graphs_us` (the draft's), `busy_us` (any kernel or copy), `idle_us` (none).  `operations`: what runs in
the gap, per step.
"""

from __future__ import annotations

import collections
import gzip
import itertools
import json
import statistics
import sys
from pathlib import Path

GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
LONG_GAP_US = 3.0
"""A step whose gap is this many times the median one holds a prefill or a pause."""


def spans(events: list[dict]) -> tuple[list[dict], list[dict]]:
    """GPU work by graph launch (in order of time), and GPU work outside of graphs."""
    launches = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in {"cuda_runtime", "cuda_driver"}
        and e["name"].startswith(("cudaGraphLaunch", "cuGraphLaunch"))
    }
    inside = collections.defaultdict(list)
    outside = []
    for e in events:
        if e.get("cat") in GPU and e.get("ph") == "X":
            correlation = e["args"].get("correlation")
            (inside[correlation] if correlation in launches else outside).append(e)
    graphs = [
        {
            "from": min(e["ts"] for e in work),
            "to": max(e["ts"] + e["dur"] for e in work),
            "kernels": len(work),
        }
        for work in inside.values()
    ]
    return sorted(graphs, key=lambda g: g["from"]), sorted(outside, key=lambda e: e["ts"])


def covered_us(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(intervals):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def steps(graphs: list[dict], outside: list[dict]) -> list[dict]:
    """One record per pair of consecutive launches of the target's graph (the one with the most kernels)."""
    most = max(g["kernels"] for g in graphs)
    target = [g for g in graphs if g["kernels"] > 0.6 * most]
    others = [g for g in graphs if g["kernels"] <= 0.6 * most]
    found = []
    for a, b in itertools.pairwise(target):
        work = [e for e in outside if a["to"] <= e["ts"] < b["from"]]
        drafts = [(g["from"], g["to"]) for g in others if a["to"] <= g["from"] < b["from"]]
        busy = covered_us([*drafts, *((e["ts"], e["ts"] + e["dur"]) for e in work)])
        gap = b["from"] - a["to"]
        found.append(
            {
                "step_us": b["from"] - a["from"],
                "graph_us": a["to"] - a["from"],
                "gap_us": gap,
                "other_graphs_us": covered_us(drafts),
                "busy_us": busy,
                "idle_us": gap - busy,
                "work": work,
            }
        )
    return found


def summarize(path: Path) -> dict:
    """Medians of one trace, and the operations of its gaps."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    graphs, outside = spans(events)
    if len(graphs) < 3:
        return {"trace": str(path), "steps": 0}
    every = steps(graphs, outside)
    usual = statistics.median(s["gap_us"] for s in every)
    kept = [s for s in every if s["gap_us"] <= LONG_GAP_US * usual]
    keys = ("step_us", "graph_us", "gap_us", "other_graphs_us", "busy_us", "idle_us")
    names: dict[str, list[float]] = collections.defaultdict(list)
    for step in kept:
        for e in step["work"]:
            names[e["name"][:90]].append(e["dur"])
    operations = [
        {
            "name": name,
            "per_step": round(len(us) / len(kept), 2),
            "us_per_step": round(sum(us) / len(kept), 2),
        }
        for name, us in names.items()
    ]
    return {
        "trace": f"{path.parent.name}/{path.name}",
        "steps": len(kept),
        **{key: round(statistics.median(s[key] for s in kept), 1) for key in keys},
        "operations_per_step": round(sum(o["per_step"] for o in operations), 1),
        "operations": sorted(operations, key=lambda o: -o["us_per_step"]),
    }


def main() -> None:
    """Every trace under the folders given."""
    traces = [path for folder in sys.argv[1:] for path in sorted(Path(folder).rglob("*.trace.json.gz"))]
    out = [summarize(path) for path in traces]
    json.dump(out, sys.stdout, indent=1)
    for one in out:
        short = {k: v for k, v in one.items() if k != "operations"}
        print(short, file=sys.stderr)


if __name__ == "__main__":
    main()
