"""Write a results page from what analyse.py made:  page.py TITLE results.json > page.md

Every figure is in the JSON; what was not measured is a dash, what failed or was left out is listed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

INTRODUCTION = (
    "Real SGLang, dummy weights, acceptance simulated per request and position; made by `tests/gpu`, whose",
    "README says how. Output tokens per second come from the servers' own step logs, ± the half width of the",
    "95 % interval over alternated windows; the percentage is the paired ratio to the server without",
    "speculation (`plain`) in the same round.\n",
)
NOTES = ("acceptance", "temperature", "phase", "settling", "burst")


def page(title: str, results: dict) -> Iterator[str]:
    """The page, line by line."""
    yield f"# {title}\n"
    yield from INTRODUCTION
    for name, plan in results.items():
        yield f"## {name}\n"
        yield from _servers(plan["servers"])
        for notes, rows in _by_notes(plan["summary"]).items():
            yield from _throughput(notes, rows)
        yield from _timelines(plan["windows"])
        yield from _objects("Comparisons (paired ratios)", plan["comparisons"])
        yield from _objects("Switches", plan["toggles"])
        yield from _objects("Ranks", plan["ranks"])
        yield from _objects("Bursts", plan["bursts"])
        yield from _objects("Constrained decoding while switching", plan.get("grammar", []))
        yield from _troubles(plan)


def _servers(servers: dict) -> Iterator[str]:
    yield "| server | started in | attention | plugin | depths |"
    yield "| --- | --- | --- | --- | --- |"
    for name, server in servers.items():
        setup = server["setup"]
        depths = ", ".join(map(str, setup["depths"])) or " ".join(setup["args"]) or "no speculation"
        hook = "yes" if setup["hook"] else "no"
        yield f"| {name} | {server['start_s']} s | {setup['attention']} | {hook} | {depths} |"
    yield ""


def _by_notes(summary: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for row in summary:
        notes = ", ".join(f"{key} {row[key]}" for key in NOTES if row.get(key) is not None)
        groups.setdefault(notes, []).append(row)
    return groups


def _throughput(notes: str, rows: list[dict]) -> Iterator[str]:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    cells = {(row["C"], row["label"]): row for row in rows}
    yield f"### Output tokens per second{': ' + notes if notes else ''}\n"
    yield "| C | " + " | ".join(labels) + " |"
    yield "| ---: |" + " ---: |" * len(labels)
    for c in sorted({row["C"] for row in rows}):
        yield f"| {c} | " + " | ".join(_cell(cells.get((c, label))) for label in labels) + " |"
    yield "\nMedian step, ms:\n"
    yield "| C | " + " | ".join(labels) + " |"
    yield "| ---: |" + " ---: |" * len(labels)
    for c in sorted({row["C"] for row in rows}):
        steps = ((cells.get((c, label)) or {}).get("step_ms_p50") for label in labels)
        yield f"| {c} | " + " | ".join("-" if ms is None else f"{ms:.2f}" for ms in steps) + " |"
    yield ""


def _cell(row: dict | None) -> str:
    if row is None:
        return "-"
    half = "" if row["tok_s_half_width"] is None else f" ± {row['tok_s_half_width']:.0f}"
    share = (
        ""
        if row["ratio_to_plain"] is None or row["label"] == "plain"
        else f" ({100 * row['ratio_to_plain']:.1f} %)"
    )
    errors = f", {row['errors']} failed" if row["errors"] else ""
    return f"{row['tok_s']:.0f}{half}{share}{errors}"


def _timelines(windows: list[dict]) -> Iterator[str]:
    """Depth in use over time, for servers that decide themselves: where it changed."""
    shown = [w for w in windows if w["depth_over_time"]]
    if not shown:
        return
    yield "### Depth in use over time\n"
    yield "| server | C | notes | seconds into the window: mean depth (mean batch size) |"
    yield "| --- | ---: | --- | --- |"
    for w in shown:
        notes = ", ".join(f"{key} {w[key]}" for key in (*NOTES, "round") if w.get(key) is not None)
        points = [
            p for i, p in enumerate(w["depth_over_time"]) if i == 0 or p[2] != w["depth_over_time"][i - 1][2]
        ]
        text = "; ".join(f"{at:g}: {depth:g} ({batch:g})" for at, batch, depth in points[:12])
        more = f"; and {len(points) - 12} more changes" if len(points) > 12 else ""
        yield f"| {w['label']} | {w['C']} | {notes} | {text}{more} |"
    yield ""


def _objects(title: str, rows: list[dict]) -> Iterator[str]:
    if not rows:
        return
    yield f"### {title}\n"
    for row in rows:
        yield "- " + ", ".join(f"{key} {_plain(value)}" for key, value in row.items() if key != "at")
    yield ""


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) + ")"
    return "-" if value is None else str(value)


def _troubles(plan: dict) -> Iterator[str]:
    rows = [f"{f.get('part') or f.get('server')}: {f['error'][:300]}" for f in plan.get("failed", [])]
    rows += [f"left out for lack of time: {x['what']}" for x in plan.get("left_out", [])]
    failed = sum(load["errors"] for load in plan.get("load", []))
    total = sum(load["requests"] for load in plan.get("load", []))
    yield f"Requests: {total}, failed: {failed}.\n"
    if rows:
        yield "### What did not work\n"
        yield from (f"- {row}" for row in rows)
        yield ""


if __name__ == "__main__":
    sys.stdout.writelines(
        f"{line}\n" for line in page(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
    )
