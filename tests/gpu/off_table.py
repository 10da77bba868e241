"""What plain_decode.py measured:  off_table.py OUT.json page.md NAME[=FOLDER] ...

Written as JSON and as the section `gears` of a page.  A FOLDER is what one run left: records.jsonl, steps/;
a NAME without one is taken from OUT.json as it stands there.
From the servers' own step logs come the times between the results of two decode steps that both had a full
batch (90 % of C or more): the median, the mean, and the output tokens per second of these steps.  Of a batch
whose requests all end in one step that step does not count, nor the empty one behind it: in it the host hands
out C answers; how long it takes is `end`.  `whole batch` is from the arrival of C requests to the end of the
last, so with all prefills.  Ratios are to the plain server in the same round, with their range over rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from sections import fill, runs, table  # noqa: E402 - the path comes first

FULL = 0.9
SLOWEST_STEP_S = 0.1
"""A longer gap is a prefill or a stop, not a step, unless most are as long."""
SLOWEST_STEP = 3.0
"""How many times the median gap a step may take where that is longer than `SLOWEST_STEP_S`."""

WHOLE = "whole_batch_tok_s"

Step = tuple[float, int, int]


def read_jsonl(path: Path) -> list[dict]:
    """Its records."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(folder: Path, server: str) -> list[Step]:
    """Time, batch size and tokens of every decode result of rank 0."""
    found: list[Step] = []
    for path in folder.glob(f"steps/{server}.r0.*.json"):
        found += [(r[0], r[1], r[2]) for r in json.loads(path.read_text())["results"]]
    return sorted(found)


def window_of(record: dict, steps: list[Step]) -> dict | None:
    """Its steps with full batches; None when there were none."""
    inside = [s for s in steps if record["from_s"] <= s[0] < record["to_s"]]
    least = FULL * record["C"]
    # a result of no tokens is the empty step behind the end of all requests, the one before it holds that end
    triples = [t for t in zip(inside, inside[1:], inside[2:], strict=False) if min(t[0][1:3]) >= least]
    gaps = [(b[0] - a[0], b[2]) for a, b, after in triples if min(*b[1:3], after[2]) >= least]
    if not gaps:
        return None
    ends = [b[0] - a[0] for a, b, after in triples if min(b[1:3]) >= least and after[2] == 0]
    slowest_s = max(SLOWEST_STEP_S, SLOWEST_STEP * statistics.median(s for s, _ in gaps))
    full = [gap for gap in gaps if gap[0] < slowest_s]
    seconds = [s for s, _ in full]
    return {
        "round": record["round"],
        "steps": len(full),
        "step_ms_median": round(statistics.median(seconds) * 1e3, 3),
        "step_ms_mean": round(statistics.mean(seconds) * 1e3, 3),
        "tok_s": round(sum(tokens for _, tokens in full) / sum(seconds), 1),
        "end_ms": round(ends[-1] * 1e3, 1) if ends else None,
        # absent where a plan timed steps alone
        "whole_batch_tok_s": round(record["batch_tokens"] / record["whole_batch_s"], 1)
        if record.get("batch_tokens")
        else None,
    }


def measured(folder: Path) -> dict:
    """One run: setups, what was in force, equal tokens, and the windows by concurrency and arm."""
    records = read_jsonl(folder / "records.jsonl")
    logs: dict[str, list[Step]] = {}
    windows: dict[str, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["kind"] == "window" and "round" in record:
            name = record["server"]
            logs.setdefault(name, steps_of(folder, name))
            window = window_of(record, logs[name])
            if window is not None:
                windows[str(record["C"])][record["label"]].append(window)
    return {
        "servers": {r["server"]: r["setup"] for r in records if r["kind"] == "start"},
        "in_force": _plain_decode(records),
        "hook_errors": {r["server"]: r.get("hook_errors") for r in records if r["kind"] == "after"},
        "equal": [
            {"how": r["how"], "same": r["same"], "of": r["of"]} for r in records if r["kind"] == "equal"
        ],
        "windows": windows,
    }


def _plain_decode(records: list[dict]) -> dict[str, dict | None]:
    """What each hooked server said, at its start and, where it was asked again, at the end."""
    said = {r["server"]: (r["body"] or {}).get("plain_decode") for r in records if r["kind"] == "speculation"}
    return said | {r["server"]: r["plain_decode"] for r in records if r["kind"] == "after"}


def ratios(mine: list[dict], plain: list[dict], key: str) -> list[float]:
    """To the plain server's window of the same round."""
    by_round = {w["round"]: w[key] for w in plain}
    return [w[key] / by_round[w["round"]] for w in mine if w["round"] in by_round]


def spread(values: list[float]) -> str:
    """Mean and range of ratios, as a change in percent."""
    if not values:
        return ""
    changes = [100 * (v - 1) for v in values]
    text = f"{statistics.mean(changes):+.1f} %"
    return text if len(changes) == 1 else f"{text} ({min(changes):+.1f} to {max(changes):+.1f})"


def page(found: dict[str, dict]) -> Iterator[str]:
    """Lines of Markdown."""
    for name, run in found.items():
        yield f"### {name}\n"
        for server, status in run["in_force"].items():
            errors = run["hook_errors"].get(server, "not asked")
            yield f"- `{server}`: {json.dumps(status)}, hook errors {errors}"
        for equal in run["equal"]:
            same = f"{equal['same']} of {equal['of']}"
            yield f"- greedy tokens equal to the plain server's, prompts {equal['how']}: {same}"
        yield ""
        yield from speed(run["windows"])


def speed(windows: dict[str, dict[str, list[dict]]]) -> Iterator[str]:
    """Of every arm by concurrency: its own times, then its changes against the plain server."""
    rows = [
        cells(concurrency, label, found, plain_of(arms))
        for concurrency, arms in sorted(windows.items(), key=lambda item: int(item[0]))
        for label, found in sorted(arms.items(), key=lambda item: (not item[0].startswith("plain"), item[0]))
    ]
    steps = ("step ms, median", "mean", "step, mean", "tok/s")
    head = ("arm", "C", "rounds", *steps, "end, ms", "whole batch, tok/s")
    yield from table(head, rows)


def plain_of(arms: dict[str, list[dict]]) -> list[dict]:
    """The windows of the server without speculation."""
    return next((found for label, found in arms.items() if label.startswith("plain")), [])


def cells(concurrency: str, label: str, windows: list[dict], plain: list[dict]) -> list[object]:
    """One row."""
    mean: Callable[[str], float] = lambda key: statistics.mean(w[key] for w in windows)  # noqa: E731
    found: list[object] = [label, concurrency, len(windows)]
    found += [f"{mean('step_ms_median'):.2f}", f"{mean('step_ms_mean'):.2f}"]
    ends = [w["end_ms"] for w in windows if w.get("end_ms") is not None]
    end = f"{statistics.mean(ends):.1f}" if ends else None
    timed = windows[0][WHOLE] is not None
    if label.startswith("plain"):
        return [*found, "", f"{mean('tok_s'):.0f}", end, f"{mean(WHOLE):.0f}" if timed else None]
    keys = ("step_ms_mean", "tok_s", *((WHOLE,) if timed else ()))
    step, tok_s, *whole = [spread(ratios(windows, plain, key)) for key in keys]
    return [*found, step, tok_s, end, *(whole or [None])]


def main() -> None:
    """Every folder."""
    fill(Path(sys.argv[2]), "gears", page(runs(Path(sys.argv[1]), sys.argv[3:], measured)))


if __name__ == "__main__":
    main()
