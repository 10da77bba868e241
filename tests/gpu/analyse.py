"""Turn output folders of drive.py into one JSON of figures:  analyse.py NAME=FOLDER ... > results.json

Throughput and step times come from the servers' step logs (exact time stamps, tokens of unfinished requests),
latencies from the clients.  Nothing here invents a figure: what a window does not show is null.

Per plan: `servers` (start seconds, setup), `windows` (one entry each), `summary` (per label, concurrency and
notes: mean and 95 % interval over windows, and the paired ratio to `plain` of the same round), `toggles`,
`bursts`, and whatever else the plan journalled (`grammar`, `speculation`, `preflight`, `failed`, `left_out`).
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent)]

from controller.bench.arms import parse_arm  # noqa: E402 - the path comes first
from controller.bench.statistics import estimate, quantile, ratio  # noqa: E402 - the path comes first

KEPT = (
    "speculation",
    "refused",
    "lease",
    "preflight",
    "grammar",
    "failed",
    "left_out",
    "acceptance",
    "load",
    "apply",
    "sidecar",
    "samples",
    "equal",
    "after",
    "refused_switch",
)
GROUP = ("label", "C", "acceptance", "temperature", "phase", "settling", "burst")
BIN_S = 0.25


class StepLog:
    """All step logs of one rank of a server, in order of time."""

    def __init__(self, folder: Path, server: str, rank: int = 0) -> None:
        parts = [json.loads(p.read_text()) for p in folder.glob(f"steps/{server}.r{rank}.*.json")]
        self.results = sorted(tuple(x) for part in parts for x in part["results"])
        self.launches = sorted(tuple(x) for part in parts for x in part["launches"])

    def window(self, from_s: float, to_s: float) -> dict:
        """Figures of the decode results inside a span."""
        inside = [r for r in self.results if from_s <= r[0] < to_s]
        if len(inside) < 3:
            return {"steps": len(inside), "tok_s": None}
        gaps = [(b[0] - a[0]) * 1e3 for a, b in itertools.pairwise(inside)]
        rows = sum(r[1] for r in inside)
        widths = collections.Counter(r[3] - 1 for r in inside if r[3])
        return {
            "steps": len(inside),
            # from the first result to the last, so that the edges of a short window do not count
            "tok_s": round(sum(r[2] for r in inside[1:]) / (inside[-1][0] - inside[0][0]), 1),
            "step_ms_p25": _round(quantile(gaps, 0.25)),
            "step_ms_p50": _round(quantile(gaps, 0.5)),
            "step_ms_p90": _round(quantile(gaps, 0.9)),
            "step_ms_p99": _round(quantile(gaps, 0.99)),
            "mean_batch_size": round(rows / len(inside), 2),
            "tokens_per_request_step": round(sum(r[2] for r in inside) / rows, 4),
            "depth_steps": {str(k): v for k, v in sorted(widths.items())} or None,
        }

    def depth_over_time(self, from_s: float, to_s: float) -> list:
        """[seconds, mean batch size, mean depth] in bins of a quarter second; empty without speculation."""
        bins = collections.defaultdict(list)
        for at_s, batch, _, width in self.results:
            if from_s <= at_s < to_s and width:
                bins[int((at_s - from_s) / BIN_S)].append((batch, width - 1))
        mean = lambda xs: round(sum(xs) / len(xs), 2)  # noqa: E731
        return [
            [i * BIN_S, mean([b for b, _ in x]), mean([d for _, d in x])] for i, x in sorted(bins.items())
        ]

    def tok_s_by_second(self, from_s: float, to_s: float) -> list[int]:
        """Output tokens of each whole second of a span: how long does settling take?"""
        tokens: collections.Counter[int] = collections.Counter()
        for at_s, _, count, _ in self.results:
            if from_s <= at_s < to_s:
                tokens[int(at_s - from_s)] += count
        return [tokens[i] for i in range(int(to_s - from_s))]


def _round(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def clients(requests: list[dict], from_s: float, to_s: float) -> dict:
    """Latencies of the requests that ended inside a span."""
    ended = [r for r in requests if r["ended_s"] and from_s <= r["ended_s"] < to_s and not r["cancelled"]]
    good = [r for r in ended if not r["error"] and r["events"]]
    each = [(r["ended_s"] - r["started_s"]) * 1e3 / r["events"][-1][1] for r in good]
    streams = [r for r in good if r["streamed"] and len(r["events"]) == 2]
    ttft = [(r["events"][0][0] - r["started_s"]) * 1e3 for r in streams]
    tpot = [(b[0] - a[0]) * 1e3 / (b[1] - a[1]) for a, b in (r["events"] for r in streams) if b[1] > a[1]]
    itl = [gap * 1e3 for r in requests for at_s, gap in r.get("gaps_s", ()) if from_s <= at_s < to_s]
    figures = {"ms_per_token": each, "ttft_ms": ttft, "tpot_ms": tpot, "itl_ms": itl}
    out = {f"{k}_p{q}": _round(quantile(v, q / 100)) for k, v in figures.items() for q in (50, 99)}
    return {"finished": len(good), "errors": sum(bool(r["error"]) for r in ended), **out}


def toggles(records: list[dict], folder: Path) -> list[dict]:
    """Per run of switches: PUT to acknowledgement, first launch and first result at the new depth.

    With several ranks the first launch is that of the last rank, and `first_launch_skew_ms` the time between
    the first rank's and the last one's.
    """
    out = []
    for run in (r for r in records if r["kind"] == "toggles"):
        logs = _rank_logs(folder, run["server"])
        mine = [
            r
            for r in records
            if r["kind"] == "toggle" and r["server"] == run["server"] and r["period_s"] == run["period_s"]
        ]
        until = [r["put_s"] for r in mine[1:]] + [run["to_s"] + 1]
        depths = [parse_arm(r["arm"]).fixed.depth for r in mine]
        spans = [(r["put_s"], end_s, depth) for r, end_s, depth in zip(mine, until, depths, strict=True)]
        first = [[_first(log.launches, 2, *span) for log in logs] for span in spans]
        seen = [at for at in first if None not in at]
        results = [_first(logs[0].results, 3, put_s, end_s + 1, depth + 1) for put_s, end_s, depth in spans]
        last = [
            (max(at) - put_s) * 1e3 for at, (put_s, _, _) in zip(first, spans, strict=True) if None not in at
        ]
        shown = [(at - put_s) * 1e3 for at, (put_s, _, _) in zip(results, spans, strict=True) if at]
        out.append(
            {
                "server": run["server"],
                "C": run["C"],
                "period_s": run["period_s"],
                "switches": run["switches"],
                "unseen": len(first) - len(seen),
                "put_to_acknowledged_ms": _spread([(r["acknowledged_s"] - r["put_s"]) * 1e3 for r in mine]),
                "put_to_first_launch_ms": _spread(last),
                "put_to_first_result_ms": _spread(shown),
                "first_launch_skew_ms": _spread([(max(at) - min(at)) * 1e3 for at in seen])
                if len(logs) > 1
                else None,
                "ranks_agree": (run["state"] or {}).get("ranks_agree"),
            }
        )
    return out


def _first(rows: list[tuple], column: int, after_s: float, until_s: float, value: int) -> float | None:
    """When a row of this value first appears inside a span."""
    start = bisect.bisect_right(rows, (after_s, math.inf))
    inside = itertools.takewhile(lambda row: row[0] < until_s, itertools.islice(rows, start, None))
    return next((row[0] for row in inside if row[column] == value), None)


@functools.cache
def _rank_logs(folder: Path, server: str) -> list[StepLog]:
    """The step logs of all ranks of a server."""
    ranks = {int(p.name.split(".")[-3].removeprefix("r")) for p in folder.glob(f"steps/{server}.r*.*.json")}
    return [StepLog(folder, server, rank) for rank in sorted(ranks)] or [StepLog(folder, server)]


def _spread(values: list[float]) -> dict:
    return {
        "p50": _round(quantile(values, 0.5)),
        "p99": _round(quantile(values, 0.99)),
        "max": _round(max(values, default=None)),
    }


def ranks(records: list[dict], folder: Path) -> list[dict]:
    """Whether the step logs of all TP ranks of a server hold the same sequence of (batch size, depth)."""
    out = []
    for server in dict.fromkeys(r["server"] for r in records if r["kind"] == "ranks"):
        found = [r for r in records if r["kind"] == "ranks" and r["server"] == server]
        logs = _rank_logs(folder, server)
        sequences = [[launch[1:3] for launch in log.launches] for log in logs]
        skews = [
            (max(at) - min(at)) * 1e3
            for at in zip(*([launch[0] for launch in log.launches] for log in logs), strict=False)
        ]
        out.append(
            {
                "server": server,
                "tp": found[0]["tp"],
                "switches": sum(r.get("switches", 0) for r in found),
                "launches": [len(sequence) for sequence in sequences],
                "identical_sequences": all(sequence == sequences[0] for sequence in sequences),
                "changes_of_depth": sum(a[1] != b[1] for a, b in itertools.pairwise(sequences[0])),
                "launch_skew_ms": _spread(skews),
                "hook_says_ranks_agree": [(r["state"] or {}).get("ranks_agree") for r in found],
                "refused_switches": sum(r["kind"] == "refused_switch" for r in records),
                "leases_expired": [((r["state"] or {}).get("lease") or {}).get("expired") for r in found],
            }
        )
    return out


def bursts(records: list[dict], logs: dict[str, StepLog]) -> list[dict]:
    """Launches after each burst at another depth than the schedule gives their batch size."""
    out = []
    for b in (r for r in records if r["kind"] == "burst"):
        rows, log = b["schedule"], logs[b["server"]]
        due = lambda bs, rows=rows: [r["depth"] for r in rows if r["min_batch_size"] <= bs][-1]  # noqa: E731
        after = [x for x in log.launches if b["at"] < x[0] < b["at"] + 3]
        out.append(
            {
                "server": b["server"],
                "launches": len(after),
                "largest_batch": max((x[1] for x in after), default=None),
                "launches_at_another_depth_than_the_schedule": sum(x[2] != due(x[1]) for x in after),
            }
        )
    return out


def summary(windows: list[dict]) -> list[dict]:
    """Windows of the same label, concurrency and notes, together; ratios to `plain` pair the same round."""
    groups = collections.defaultdict(list)
    for w in windows:
        if w.get("tok_s"):
            groups[tuple(w.get(k) for k in GROUP)].append(w)
    plain = {
        (
            w["C"],
            w.get("acceptance"),
            w.get("phase"),
            w.get("settling"),
            w.get("round"),
            w.get("pass_number"),
        ): w["tok_s"]
        for w in windows
        if w["label"] == "plain" and w.get("tok_s")
    }
    out = []
    for key, group in groups.items():
        pairs = [
            (
                w["tok_s"],
                plain.get(
                    (
                        w["C"],
                        w.get("acceptance"),
                        w.get("phase"),
                        w.get("settling"),
                        w.get("round"),
                        w.get("pass_number"),
                    )
                ),
            )
            for w in group
        ]
        pairs = [(a, b) for a, b in pairs if b]
        to_plain = ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None
        tok_s = estimate([w["tok_s"] for w in group])
        out.append(
            {
                **{k: v for k, v in zip(GROUP, key, strict=True) if v is not None},
                "windows": tok_s.n,
                "tok_s": round(tok_s.mean, 1),
                "tok_s_half_width": _round(tok_s.half_width, 1),
                "ratio_to_plain": _round(to_plain.mean, 4) if to_plain else None,
                "ratio_half_width": _round(to_plain.half_width, 4) if to_plain else None,
                "step_ms_p50": _round(quantile([w["step_ms_p50"] for w in group], 0.5)),
                "tokens_per_request_step": _round(
                    estimate([w["tokens_per_request_step"] for w in group]).mean
                ),
                "errors": sum(w["clients"]["errors"] for w in group),
            }
        )
    return out


def comparisons(records: list[dict], windows: list[dict]) -> list[dict]:
    """Paired ratios that a plan asked for (`compare`), by concurrency: throughput, and median step time."""
    out = []
    for wanted in (r for r in records if r["kind"] == "compare"):
        mine = {(w["C"], w.get("round")): w for w in windows if w["label"] == wanted["of"] and w.get("tok_s")}
        base = {(w["C"], w.get("round")): w for w in windows if w["label"] == wanted["to"] and w.get("tok_s")}
        for c in sorted({c for c, _ in mine.keys() & base.keys()}):
            pairs = [(mine[key], base[key]) for key in sorted(mine.keys() & base.keys()) if key[0] == c]
            found = {
                name: ratio([a[name] for a, _ in pairs], [b[name] for _, b in pairs])
                for name in ("tok_s", "step_ms_p50")
            }
            figures = {f"{name}_ratio": _round(e.mean, 4) for name, e in found.items()}
            widths = {f"{name}_half_width": _round(e.half_width, 4) for name, e in found.items()}
            out.append(
                {"of": wanted["of"], "to": wanted["to"], "C": c, "pairs": len(pairs), **figures, **widths}
            )
    return out


def goal(windows: list[dict]) -> list[dict]:
    """The sidecar's policy against the best other arm at each concurrency, by paired windows of the same round.

    The best is chosen by its mean over the rounds, so that a lucky window does not set the mark.
    """
    out = []
    fixed = [w for w in windows if w.get("tok_s") and w.get("round") is not None and not w.get("trace")]
    for c, p in dict.fromkeys((w["C"], w.get("acceptance")) for w in fixed):
        here = [w for w in fixed if (w["C"], w.get("acceptance")) == (c, p)]
        by_label: dict[str, dict[tuple, list[float]]] = {}
        for w in here:
            name = w["label"] if w["label"] != "governed" else f"governed {w.get('temperature', '')}".strip()
            rounds = by_label.setdefault(name, {})
            rounds.setdefault((w.get("round"), w.get("pass_number")), []).append(w["tok_s"])
        means = {name: {k: sum(v) / len(v) for k, v in rounds.items()} for name, rounds in by_label.items()}
        others = {n: m for n, m in means.items() if not n.startswith("governed")}
        for name, mine in ((n, m) for n, m in means.items() if n.startswith("governed") and others):
            best = max(others, key=lambda n: sum(others[n].values()) / len(others[n]))
            keys = sorted(mine.keys() & others[best].keys(), key=str)
            found = ratio([mine[k] for k in keys], [others[best][k] for k in keys]) if keys else None
            out.append(
                {
                    "C": c,
                    "acceptance": p,
                    "arm": name,
                    "best_other": best,
                    "ratio": _round(found.mean, 4) if found else None,
                    "half_width": _round(found.half_width, 4) if found else None,
                    "rounds": len(keys),
                }
            )
    return out


def traces(windows: list[dict], logs: dict[str, StepLog], requests: dict[str, list[dict]]) -> list[dict]:
    """Per arm of a trace: all output tokens of its phases, tokens per second, latency of the streams."""
    out = []
    for arm in dict.fromkeys(w["trace"] for w in windows if w.get("trace")):
        mine = [w for w in windows if w.get("trace") == arm]
        server, from_s, to_s = mine[0]["server"], mine[0]["from_s"], mine[-1]["to_s"]
        tokens = sum(r[2] for r in logs[server].results if from_s <= r[0] < to_s)
        seconds = round(to_s - from_s, 2)
        rate = round(tokens / seconds, 1)
        figures = clients(requests[server], from_s, to_s)
        out.append(
            {"arm": arm, "phases": len(mine), "seconds": seconds, "tokens": tokens, "tok_s": rate, **figures}
        )
    whole = max((t["phases"] for t in out), default=0)
    best = max((t["tok_s"] for t in out if t["arm"] != "governed" and t["phases"] == whole), default=None)
    return [t | {"to_best_other": _round(t["tok_s"] / best, 4) if best else None} for t in out]


def analyse(folder: Path) -> dict:
    """Everything that one plan found."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    names = [r["server"] for r in records if r["kind"] == "start"]
    logs = {name: StepLog(folder, name) for name in names}
    requests = {name: _lines(folder / f"{name}.requests.jsonl") for name in names}
    windows = []
    for w in (r for r in records if r["kind"] == "window"):
        span = (w["from_s"], w["to_s"])
        figures = {**logs[w["server"]].window(*span), "clients": clients(requests[w["server"]], *span)}
        over_time = logs[w["server"]].depth_over_time(*span) if w["arm"] == "as-is" else []
        by_second = logs[w["server"]].tok_s_by_second(*span) if over_time else []
        windows.append(
            {
                **{k: v for k, v in w.items() if k not in ("kind", "at")},
                **figures,
                "depth_over_time": over_time,
                "tok_s_by_second": by_second,
            }
        )
    out = {
        "plan": records[0].get("plan"),
        "servers": {
            r["server"]: {"start_s": round(r["s"], 1), "setup": r["setup"]}
            for r in records
            if r["kind"] == "start"
        },
    }
    out |= {
        "summary": summary(windows),
        "windows": windows,
        "toggles": toggles(records, folder),
        "bursts": bursts(records, logs),
        "ranks": ranks(records, folder),
        "comparisons": comparisons(records, windows),
        "traces": traces(windows, logs, requests),
        "goal": goal(windows),
    }
    for kind in KEPT:
        found = [{k: v for k, v in r.items() if k != "kind"} for r in records if r["kind"] == kind]
        out |= {kind: found} if found else {}
    return out


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    pairs = [a.split("=", 1) for a in sys.argv[1:]]
    json.dump({name: analyse(Path(folder)) for name, folder in pairs}, sys.stdout, indent=1)
