"""Step logs to a cost profile that `specgov replay` reads:  cost_profile.py NAME FOLDER[:SERVER,...] ...

Printed as JSON.  A row for every arm of the windows that plans journalled (`plain`, `depth_K`, `off_warm`),
at every C: the median gap between two decode results that had one and the same depth and batch size, 90 % of
C or more; over all windows of all folders.  So mostly without prefills, which a batch that loses and gets a
request at once still hides.  SERVER: only windows of these.  What else a profile says is added by hand.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent)]

from figures.steplog import StepLog, rounded  # noqa: E402

from controller.bench.statistics import quantile  # noqa: E402 - the path comes first

FULL = 0.9
ROWS = {"plain": "plain", "off-warm": "off_warm"}
Gaps = dict[str, dict[int, list[float]]]


def row_of(label: str) -> str | None:
    """The row of a window's label (`SERVER/ARM`, or `plain`); `None` for an arm that is none."""
    arm = label.rpartition("/")[2]
    return f"depth_{arm[6:]}" if arm.startswith("depth-") else ROWS.get(arm)


def gaps_ms(results: Iterable[tuple], concurrency: int) -> Iterator[float]:
    """Milliseconds between consecutive results of one batch size and depth, the batch being full."""
    for before, after in itertools.pairwise(results):
        if before[1] == after[1] >= FULL * concurrency and before[3] == after[3]:
            yield (after[0] - before[0]) * 1e3


def collect(folder: Path, servers: set[str], into: Gaps) -> None:
    """The gaps of every window of one plan's folder."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    logs: dict[str, StepLog] = {}
    for w in (r for r in records if r["kind"] == "window"):
        row = row_of(w["label"])
        if row is None or (servers and w["server"] not in servers):
            continue
        log = logs.setdefault(w["server"], StepLog(folder, w["server"]))
        inside = [r for r in log.results if w["from_s"] <= r[0] < w["to_s"]]
        into[row][w["C"]].extend(gaps_ms(inside, w["C"]))


def profile(name: str, found: Gaps) -> dict:
    """The profile; a cell of fewer than 20 gaps is left out."""
    rows = {
        row: {str(c): rounded(quantile(gaps, 0.5)) for c, gaps in sorted(by_c.items()) if len(gaps) >= 20}
        for row, by_c in sorted(found.items())
    }
    return {"schema": 1, "name": name, "step_ms": {row: cells for row, cells in rows.items() if cells}}


def main() -> None:
    """Every folder."""
    found: Gaps = collections.defaultdict(lambda: collections.defaultdict(list))
    for argument in sys.argv[2:]:
        folder, _, servers = argument.partition(":")
        collect(Path(folder), set(filter(None, servers.split(","))), found)
    json.dump(profile(sys.argv[1], found), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
