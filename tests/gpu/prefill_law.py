"""What prefills cost in closed loops:  prefill_law.py results.json page.md

From what analyse.py made of `governed`: per window the time of a decode step with everything beside it, T,
the time of a step alone, t, and the requests that ended per step, n.  Fits F and v of

    T = t + F * (1 - exp(-n)) + v * n

(a prefill batch costs F, each request in it v; arrivals are Poisson) to the windows of the concurrencies in
`FITTED`, and writes the section `prefills` of the page: what T makes of each arm's tokens per second, and how
far that is from what was measured.  t is the median gap between results where few gaps hold a prefill
(n < 0.3), else the lower quartile.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from sections import fill, table  # noqa: E402 - the path comes first

FITTED = range(8, 129)
"""With more requests nearly every gap holds a prefill: t does not show."""
RARE = 0.3
ARMS = ("plain", "off-cold", "depth-1", "depth-2", "depth-4")


def windows(results: dict) -> Iterator[dict]:
    """Of arms that hold one depth, in their steady state."""
    for name, plan in results.items():
        for w in plan["windows"]:
            arm = w["label"].rpartition("/")[2]
            if arm in ARMS and w.get("steps") and not w.get("arriving") and w["C"] in FITTED:
                ms = (w["to_s"] - w["from_s"]) * 1e3 / w["steps"]
                n = w["clients"]["finished"] / w["steps"]
                step_ms = w["step_ms_p50"] if n < RARE else w["step_ms_p25"]
                backend = plan["servers"][w["server"]]["setup"]["attention"]
                key = (backend, w["acceptance"], w["C"], arm)
                yield {"key": key, "name": name, "ms": ms, "n": n, "step_ms": step_ms, "tok_s": w["tok_s"]}


def fit(found: list[dict]) -> tuple[float, float]:
    """F and v, ms."""
    n = np.array([w["n"] for w in found])
    beside = np.array([w["ms"] - w["step_ms"] for w in found])
    per_batch, per_request = np.linalg.lstsq(np.column_stack([1 - np.exp(-n), n]), beside, rcond=None)[0]
    return float(per_batch), float(per_request)


def lines(results: dict) -> Iterator[str]:
    """The section, line by line."""
    found = list(windows(results))
    per_batch, per_request = fit(found)
    cells = collections.defaultdict(list)
    for w in found:
        expected = w["step_ms"] + per_batch * -np.expm1(-w["n"]) + per_request * w["n"]
        cells[w["key"]].append((w["tok_s"], w["tok_s"] * w["ms"] / expected))
    means = {key: tuple(map(fmean, zip(*pairs, strict=True))) for key, pairs in cells.items()}
    errors = sorted(abs(model / measured - 1) for measured, model in means.values())
    within = sum(error <= 0.05 for error in errors)
    yield f"{len(found)} windows: F = {per_batch:.1f} ms a prefill batch, v = {per_request:.1f} ms a request."
    worst = 100 * errors[-1]
    yield f"{within} of {len(errors)} arms are within 5 % of what was measured, {worst:.0f} % at worst.\n"
    rows = []
    for backend, acceptance, c in sorted({key[:3] for key in means}):
        row = [f"{backend}, {acceptance}", c]
        for arm in ARMS:
            pair = means.get((backend, acceptance, c, arm))
            row.append(None if pair is None else f"{pair[1]:.0f} ({100 * (pair[1] / pair[0] - 1):+.0f} %)")
        rows.append(row)
    head = ("", "C", *(f"{arm.replace('plain', 'no speculation')}, tok/s" for arm in ARMS))
    yield from table(head, rows)


if __name__ == "__main__":
    fill(Path(sys.argv[2]), "prefills", lines(json.loads(Path(sys.argv[1]).read_text())))
