"""Switches of depth in the step logs: how late, on every rank alike, at which launch."""

from __future__ import annotations

import itertools
from pathlib import Path

from controller.bench.arms import parse_arm
from figures.steplog import StepLog, first_of, rank_logs, spread


def toggles(records: list[dict], folder: Path) -> list[dict]:
    """Per run of switches: PUT to acknowledgement, first launch and first result at the new depth.

    With several ranks the first launch is that of the last rank, and `first_launch_skew_ms` the time between
    the first rank's and the last one's.
    """
    out = []
    for run in (r for r in records if r["kind"] == "toggles"):
        logs = rank_logs(folder, run["server"])
        mine = [
            r
            for r in records
            if r["kind"] == "toggle" and r["server"] == run["server"] and r["period_s"] == run["period_s"]
        ]
        until = [r["put_s"] for r in mine[1:]] + [run["to_s"] + 1]
        depths = [parse_arm(r["arm"]).fixed.depth for r in mine]
        spans = [(r["put_s"], end_s, depth) for r, end_s, depth in zip(mine, until, depths, strict=True)]
        first = [[first_of(log.launches, 2, *span) for log in logs] for span in spans]
        seen = [at for at in first if None not in at]
        results = [first_of(logs[0].results, 3, put_s, end_s + 1, depth + 1) for put_s, end_s, depth in spans]
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
                "put_to_acknowledged_ms": spread([(r["acknowledged_s"] - r["put_s"]) * 1e3 for r in mine]),
                "put_to_first_launch_ms": spread(last),
                "put_to_first_result_ms": spread(shown),
                "first_launch_skew_ms": spread([(max(at) - min(at)) * 1e3 for at in seen])
                if len(logs) > 1
                else None,
                "ranks_agree": (run["state"] or {}).get("ranks_agree"),
            }
        )
    return out


def ranks(records: list[dict], folder: Path) -> list[dict]:
    """Whether the step logs of all TP ranks of a server hold the same sequence of (batch size, depth)."""
    out = []
    for server in dict.fromkeys(r["server"] for r in records if r["kind"] == "ranks"):
        found = [r for r in records if r["kind"] == "ranks" and r["server"] == server]
        logs = rank_logs(folder, server)
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
                "launch_skew_ms": spread(skews),
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
