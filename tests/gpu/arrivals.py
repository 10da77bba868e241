"""What new requests cost at depth 0:  arrivals.py OUT.json page.md NAME=FOLDER ...

Written as JSON and as the section `arrivals` of a page.  Each NAME gets a table over all windows of its
folders (NAME may be given several times); `figures/arrivals.py` says what is counted.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent)]

from figures.arrivals import arrivals, by_gear  # noqa: E402 - the path comes first
from figures.steplog import StepLog  # noqa: E402
from sections import fill, table  # noqa: E402


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
        body = [
            (r["C"], r["gear"], r["spans"], r["new_requests"], r["step_ms"], r["rest_ms"], _range(r))
            for r in by_gear(rows)
        ]
        head = (
            "C",
            "gear",
            "windows",
            "new requests",
            "decode step, ms",
            "rest per new request, ms",
            "range",
        )
        yield from table(head, body, left=2)


def _range(row: dict) -> str:
    low, high = row["rest_ms_range"]
    return f"{low:.1f} to {high:.1f}"


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Every folder."""
    found: dict[str, list[dict]] = collections.defaultdict(list)
    for name, folder in (argument.split("=", 1) for argument in sys.argv[3:]):
        found[name] += spans(Path(folder))
    Path(sys.argv[1]).write_text(json.dumps(found, separators=(",", ":")) + "\n")
    fill(Path(sys.argv[2]), "arrivals", page(found))


if __name__ == "__main__":
    main()
