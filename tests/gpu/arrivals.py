"""What new requests cost at depth 0:  arrivals.py OUT.json page.md NAME[=FOLDER] ...

Written as JSON and as the section `arrivals` of a page.  Each NAME gets a table over all windows of its
folders (NAME may be given several times; without a folder it is taken from OUT.json as it stands there);
`figures/arrivals.py` says what is counted.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent)]

from figures.arrivals import arrivals, beside_plain, by_gear  # noqa: E402 - the path comes first
from figures.steplog import StepLog  # noqa: E402
from sections import fill, table  # noqa: E402

HEAD = (
    "C",
    "gear",
    "windows",
    "new requests",
    "decode step, ms",
    "rest per new request, ms",
    "least, middle, most",
    "interval with a prefill, ms",
    "host, ms",
)
PAIRED = ("C", "gear", "pairs", "ms per new request beside no speculation in the same round", "half width")


def spans(folder: Path) -> list[dict]:
    """Of one run, each with the folder that it is from."""
    records = _lines(folder / "records.jsonl")
    names = [r["server"] for r in records if r["kind"] == "start"]
    logs = {name: StepLog(folder, name) for name in names}
    requests = {name: _lines(folder / f"{name}.requests.jsonl") for name in names}
    return [{"run": folder.name} | row for row in arrivals(records, logs, requests)]


def page(found: dict[str, list[dict]]) -> Iterator[str]:
    """A table for each name."""
    for name, rows in found.items():
        yield f"#### {name}\n"
        yield from table(HEAD, [_cells(row) for row in by_gear(rows)], left=2)
        pairs = beside_plain(rows)
        body = [(r["C"], r["gear"], r["pairs"], f"{r['more_ms']:+.1f}", r["half_width"]) for r in pairs]
        yield from table(PAIRED, body, left=2)


def _cells(row: dict) -> list[object]:
    figures = [f"{row['step_ms']:.2f}", f"{row['rest_ms']:.1f}"]
    ranges = [_range(row[key]) for key in ("rest_ms_range", "prefill_ms_range", "host_ms_range")]
    return [row["C"], row["gear"], row["spans"], row["new_requests"], *figures, *ranges]


def _range(found: list[float] | None) -> str | None:
    return None if found is None else ", ".join(f"{v:.1f}" for v in dict.fromkeys(found))


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Every folder."""
    out = Path(sys.argv[1])
    before = json.loads(out.read_text()) if out.exists() else {}
    found: dict[str, list[dict]] = collections.defaultdict(list)
    for name, _, folder in (argument.partition("=") for argument in sys.argv[3:]):
        found[name] += spans(Path(folder)) if folder else before[name]
    out.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    fill(Path(sys.argv[2]), "arrivals", page(found))


if __name__ == "__main__":
    main()
