"""The step logs that the recorder in the servers wrote (plugin/simulate_acceptance.py), one per rank."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import json
import math
from pathlib import Path

from controller.bench.statistics import quantile

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
            "step_ms_p25": rounded(quantile(gaps, 0.25)),
            "step_ms_p50": rounded(quantile(gaps, 0.5)),
            "step_ms_p90": rounded(quantile(gaps, 0.9)),
            "step_ms_p99": rounded(quantile(gaps, 0.99)),
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


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A figure for the JSON."""
    return None if value is None else round(value, digits)


def spread(values: list[float]) -> dict:
    """Median, 99th percentile and the largest."""
    return {
        "p50": rounded(quantile(values, 0.5)),
        "p99": rounded(quantile(values, 0.99)),
        "max": rounded(max(values, default=None)),
    }


def first_of(rows: list[tuple], column: int, after_s: float, until_s: float, value: int) -> float | None:
    """When a row of this value first appears inside a span."""
    start = bisect.bisect_right(rows, (after_s, math.inf))
    inside = itertools.takewhile(lambda row: row[0] < until_s, itertools.islice(rows, start, None))
    return next((row[0] for row in inside if row[column] == value), None)


@functools.cache
def rank_logs(folder: Path, server: str) -> list[StepLog]:
    """The step logs of all ranks of a server."""
    ranks = {int(p.name.split(".")[-3].removeprefix("r")) for p in folder.glob(f"steps/{server}.r*.*.json")}
    return [StepLog(folder, server, rank) for rank in sorted(ranks)] or [StepLog(folder, server)]
