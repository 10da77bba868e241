"""What new requests cost while nothing is drafted: time of a span that is not decode steps, and whose it is.

A decode step without a prefill beside it takes about as long as the fastest ones; `step_ms` is the mean of
the intervals between results below 1.3 times their first quartile.  What the span holds beyond so many
milliseconds an interval, divided by the requests that arrived in it, is `rest_ms_per_new_request`.

SGLang's overlap scheduler launches a batch, then takes the result of the one before.  A prefill that is
launched between two decode results lengthens the interval between them: `prefill_ms` is the median of the
first long interval of each run of them.  It cannot be shorter than the host needs to launch the prefill.
`host_ms` is the median time from a decode result to the launch of the next decode step: work of the host
alone, whatever the GPU does, so it tells how fast the host was then (not recorded without speculation).
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Sequence
from statistics import fmean, median, quantiles

from controller.bench.statistics import estimate
from figures.steplog import StepLog, rounded

PURE = 1.3
"""Intervals up to so many times the first quartile hold a decode step and nothing else."""
SHORTEST_S = 1.5
LEAST_CONCURRENCY = 32
RAMP_S = 2.0
"""Left out of each phase of a trace: many requests arrive, or leave, at once."""

Span = tuple[float, float]


def arrivals(records: list[dict], logs: dict[str, StepLog], requests: dict[str, list[dict]]) -> list[dict]:
    """One entry per window and gear in which all was decoded at depth 0, or without speculation."""
    started = {name: sorted(r["started_s"] for r in found) for name, found in requests.items()}
    out = []
    for w in (r for r in records if r["kind"] == "window" and r["C"] >= LEAST_CONCURRENCY):
        for gear, span in _spans(w, records):
            log = logs[w["server"]]
            found = rest(log.results, started[w["server"]], span)
            if found is not None:
                found["host_ms"] = host_ms(log, span)
                notes = {k: w[k] for k in ("label", "C", "round", "pass_number", "phase") if k in w}
                out.append(notes | {"gear": gear} | found)
    return out


def rest(results: Sequence[tuple], started_s: Sequence[float], span: Span) -> dict | None:
    """Of one span; `None` when it holds a draft, or too little."""
    inside = [r for r in results if span[0] <= r[0] < span[1]]
    if len(inside) < 20 or any(r[3] > 1 for r in inside):
        return None
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(inside)]
    usual = quantiles(gaps, n=4)[0]
    step = fmean(g for g in gaps if g < PURE * usual)
    from_s, to_s = inside[0][0], inside[-1][0]
    new = bisect.bisect(started_s, to_s) - bisect.bisect(started_s, from_s)
    if not new:
        return None
    return {
        "seconds": rounded(to_s - from_s, 2),
        "new_requests": new,
        "step_ms": rounded(step * 1e3, 2),
        "prefill_ms": rounded(_first_long(gaps, PURE * usual) * 1e3, 2),
        "rest_ms_per_new_request": rounded((to_s - from_s - len(gaps) * step) * 1e3 / new, 2),
        "tok_s": rounded(sum(r[2] for r in inside[1:]) / (to_s - from_s), 0),
    }


def _first_long(gaps: Sequence[float], long_s: float) -> float:
    first = [b for a, b in itertools.pairwise([0.0, *gaps]) if b >= long_s > a]
    return median(first) if first else 0.0


def host_ms(log: StepLog, span: Span) -> float | None:
    """From a decode result to the launch of the next decode step, where nothing else was launched."""
    launches = [x[0] for x in log.launches]
    inside = [r[0] for r in log.results if span[0] <= r[0] < span[1]]
    after = [(a, b, bisect.bisect(launches, a)) for a, b in itertools.pairwise(inside)]
    found = [launches[i] - a for a, b, i in after if i < len(launches) and launches[i] < b]
    return rounded(median(found) * 1e3, 2) if found else None


def _spans(window: dict, records: list[dict]) -> list[tuple[str, Span]]:
    ramp_s = RAMP_S if window.get("trace") else 0.0
    span = (window["from_s"] + ramp_s, window["to_s"])
    if window["label"] == "plain":
        return [("no speculation", span)]
    if "/off-" in window["label"]:
        return [(window["label"].partition("/off-")[2], span)]
    return _by_gear(span, records) if window["label"] == "governed" else []


def _by_gear(span: Span, records: list[dict]) -> list[tuple[str, Span]]:
    """Stretches in which the sidecar saw one gear of off in use."""
    seen = [
        (r["at"], (r["body"]["depth"].get("in_use") or {}).get("gear"))
        for r in records
        if r["kind"] == "status" and span[0] <= r["at"] < span[1]
    ]
    runs = [(gear, [at for at, _ in run]) for gear, run in itertools.groupby(seen, key=lambda x: x[1])]
    return [
        (gear, (times[0], times[-1]))
        for gear, times in runs
        if gear in ("warm", "cold", "frozen") and times[-1] - times[0] >= SHORTEST_S
    ]


def by_gear(rows: list[dict]) -> list[dict]:
    """Spans of one concurrency and gear together: means by arrivals; the least, the middle and the most."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["C"], row["gear"]].append(row)
    order = ("no speculation", "frozen", "cold", "warm")
    out = []
    for (c, gear), group in sorted(groups.items(), key=lambda g: (g[0][0], order.index(g[0][1]))):
        new = sum(r["new_requests"] for r in group)
        weighted = sum(r["rest_ms_per_new_request"] * r["new_requests"] for r in group) / new
        out.append(
            {
                "C": c,
                "gear": gear,
                "spans": len(group),
                "new_requests": new,
                "step_ms": rounded(fmean(r["step_ms"] for r in group), 2),
                "rest_ms": rounded(weighted, 2),
                **{f"{key}_range": _range([r[key] for r in group]) for key in ("prefill_ms", "host_ms")},
                "rest_ms_range": _range([r["rest_ms_per_new_request"] for r in group]),
            }
        )
    return out


def beside_plain(rows: list[dict]) -> list[dict]:
    """How much more a new request cost than without speculation in the same round of the same run."""
    where = lambda r: (r["run"], r["C"], r.get("pass_number"), r["round"])  # noqa: E731
    paired = [r for r in rows if "round" in r]
    plain = {where(r): r["rest_ms_per_new_request"] for r in paired if r["gear"] == "no speculation"}
    groups = collections.defaultdict(list)
    for r in paired:
        if r["gear"] != "no speculation" and where(r) in plain:
            groups[r["C"], r["gear"]].append(r["rest_ms_per_new_request"] - plain[where(r)])
    found = [(key, estimate(group)) for key, group in sorted(groups.items())]
    return [
        {
            "C": c,
            "gear": gear,
            "pairs": e.n,
            "more_ms": rounded(e.mean, 2),
            "half_width": rounded(e.half_width, 2),
        }
        for (c, gear), e in found
    ]


def _range(values: list[float | None]) -> list[float] | None:
    known = sorted(v for v in values if v is not None)
    return [known[0], known[len(known) // 2], known[-1]] if known else None
