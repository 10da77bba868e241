"""What a decode step consists of, from one trace of SGLang's profiler.  Pure but for the reading of the file.

A step is the time from one launch of the target's CUDA graph to the next.  `graph_us`: that graph, first
kernel to last; in it `graph_busy_us` (any kernel) and `graph_idle_us` (none).  `gap_us`: from there to the
next one; in it `other_graphs_us` (the draft's), `busy_us` (any kernel or copy), `idle_us` (none).  All are
medians, microseconds.  `operations` and `graph_operations`: what runs in the gap and in the graph, by name,
how often and for how long a step.
"""

from __future__ import annotations

import collections
import gzip
import itertools
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
TARGET_SHARE = 0.6
"""The target's graph has the most kernels; one with fewer than this share of them is the draft's."""
LONG_GAP = 3.0
"""A step whose gap is this many times the median one holds more than a step: see `summarize`."""
KEYS = (
    "step_us",
    "graph_us",
    "graph_busy_us",
    "graph_idle_us",
    "gap_us",
    "other_graphs_us",
    "busy_us",
    "idle_us",
)
FEWEST_GRAPHS = 3
NAME_LENGTH = 90


def summarize(path: Path) -> dict:
    """Medians of one trace, and its operations.

    `steps` are those with the usual gap.  Those with a gap of `LONG_GAP` times the median and more are under
    `longer`, with the same figures: gear warm's, which hold the draft's pass, and any with a prefill.
    """
    name = f"{path.parent.name}/{path.name}"
    with gzip.open(path) as file:
        graphs, outside = spans(json.load(file)["traceEvents"])
    if len(graphs) < FEWEST_GRAPHS:
        return {"trace": name, "steps": 0}
    every = steps(graphs, outside)
    usual_us = statistics.median(s["gap_us"] for s in every)
    usual = [s for s in every if s["gap_us"] <= LONG_GAP * usual_us]
    longer = [s for s in every if s["gap_us"] > LONG_GAP * usual_us]
    return {"trace": name, **medians(usual), "longer": medians(longer) if longer else None}


def medians(found: list[dict]) -> dict:
    """Of some steps."""
    operations = operations_of(found, lambda step: step["work"])
    return {
        "steps": len(found),
        **{key: round(statistics.median(s[key] for s in found), 1) for key in KEYS},
        "operations_per_step": round(sum(o["per_step"] for o in operations), 1),
        "operations": operations,
        "graph_operations": operations_of(found, lambda step: step["graph_work"]),
    }


def operations_of(found: list[dict], work: Callable[[dict], Iterable[dict]]) -> list[dict]:
    """By name, longest first; names that share their first `NAME_LENGTH` letters are one."""
    lasted_us: dict[str, list[float]] = collections.defaultdict(list)
    for step in found:
        for e in work(step):
            lasted_us[e["name"][:NAME_LENGTH]].append(e["dur"])
    operations = [
        {
            "name": name,
            "per_step": round(len(us) / len(found), 2),
            "us_per_step": round(sum(us) / len(found), 2),
        }
        for name, us in lasted_us.items()
    ]
    return sorted(operations, key=lambda o: -o["us_per_step"])


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
            "work": work,
        }
        for work in inside.values()
    ]
    return sorted(graphs, key=lambda g: g["from"]), sorted(outside, key=lambda e: e["ts"])


def steps(graphs: list[dict], outside: list[dict]) -> list[dict]:
    """One record per pair of consecutive launches of the target's graph."""
    most = max(len(g["work"]) for g in graphs)
    target = [g for g in graphs if len(g["work"]) > TARGET_SHARE * most]
    others = [g for g in graphs if len(g["work"]) <= TARGET_SHARE * most]
    return [step(a, b, others, outside) for a, b in itertools.pairwise(target)]


def step(a: dict, b: dict, others: list[dict], outside: list[dict]) -> dict:
    """From the target's graph `a` to `b`, the next one."""
    work = [e for e in outside if a["to"] <= e["ts"] < b["from"]]
    drafts = [(g["from"], g["to"]) for g in others if a["to"] <= g["from"] < b["from"]]
    busy_us = covered_us([*drafts, *map(interval, work)])
    graph_us, gap_us = a["to"] - a["from"], b["from"] - a["to"]
    graph_busy_us = covered_us(map(interval, a["work"]))
    return {
        "step_us": graph_us + gap_us,
        "graph_us": graph_us,
        "graph_busy_us": graph_busy_us,
        "graph_idle_us": graph_us - graph_busy_us,
        "gap_us": gap_us,
        "other_graphs_us": covered_us(drafts),
        "busy_us": busy_us,
        "idle_us": gap_us - busy_us,
        "work": work,
        "graph_work": a["work"],
    }


def interval(event: dict) -> tuple[float, float]:
    """From, to."""
    return event["ts"], event["ts"] + event["dur"]


def covered_us(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(intervals):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
