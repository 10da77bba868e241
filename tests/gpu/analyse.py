"""Turn output folders of drive.py into one JSON of figures:  analyse.py NAME=FOLDER ... > results.json

With a file first, analyse.py results.json NAME[=FOLDER] ..., a NAME alone stays as that file has it.
Of a run that held both, FOLDER#traces is its traces, FOLDER#levels its other windows.

Throughput and step times come from the servers' step logs (exact time stamps, tokens of unfinished requests),
latencies from the clients.  Nothing here invents a figure: what a window does not show is null.

Per plan: `servers` (start seconds, setup), `windows` (one entry each), `summary` (per label, concurrency and
notes: mean and 95 % interval over windows, and the paired ratio to `plain` of the same round), `toggles`,
`bursts`, `kernels` (kernels.jsonl as it is), and whatever else the plan journalled (`grammar`,
`speculation`, `preflight`, `failed`, `left_out`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent)]

from figures.steplog import StepLog  # noqa: E402 - the path comes first
from figures.switches import bursts, ranks, toggles  # noqa: E402
from figures.windows import clients, comparisons, goal, summary, traces  # noqa: E402
from sections import runs  # noqa: E402

KEPT = (
    "speculation",
    "refused",
    "lease",
    "preflight",
    "grammar",
    "known",
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


def analyse(folder: Path) -> dict:
    """Everything that one plan found, or the part of it that is named behind a #."""
    name, _, part = str(folder).partition("#")
    folder = Path(name)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    if part:
        wanted = {"traces": True, "levels": False}[part]
        records = [r for r in records if r["kind"] != "window" or (r.get("trace") is not None) == wanted]
    names = [r["server"] for r in records if r["kind"] == "start"]
    logs = {name: StepLog(folder, name) for name in names}
    requests = {name: _lines(folder / f"{name}.requests.jsonl") for name in names}
    windows = []
    for w in (r for r in records if r["kind"] == "window"):
        span = (w["from_s"], w["to_s"])
        figures = {**logs[w["server"]].window(*span), "clients": clients(requests[w["server"]], *span)}
        over_time = logs[w["server"]].depth_over_time(*span) if w["arm"] == "as-is" else []
        by_second = logs[w["server"]].tok_s_by_second(*span) if over_time or w.get("trace") else []
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
    shapes = _lines(folder / "kernels.jsonl")
    return out | ({"kernels": shapes} if shapes else {})


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].endswith(".json"):
        runs(Path(sys.argv[1]), sys.argv[2:], analyse)
        sys.exit()
    pairs = [a.split("=", 1) for a in sys.argv[1:]]
    json.dump({name: analyse(Path(folder)) for name, folder in pairs}, sys.stdout, separators=(",", ":"))
