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
        yield from _goal(plan.get("goal", []))
        yield from _traces(plan.get("traces", []))
        yield from _settling(plan["windows"])
        yield from _timelines(plan["windows"])
        yield from _objects("Comparisons (paired ratios)", plan["comparisons"])
        yield from _objects("Switches", plan["toggles"])
        yield from _objects("Ranks", plan["ranks"])
        yield from _objects("Bursts", plan["bursts"])
        yield from _objects("Constrained decoding while switching", plan.get("grammar", []))
        yield from _troubles(plan)


def _servers(servers: dict) -> Iterator[str]:
    yield "| server | started in | model | GPUs | attention | plugin | depths |"
    yield "| --- | --- | --- | ---: | --- | --- | --- |"
    for name, server in servers.items():
        setup = server["setup"]
        depths = ", ".join(map(str, setup["depths"])) or " ".join(setup["args"]) or "no speculation"
        hook = "yes" if setup["hook"] else "no"
        on = f"{setup['model']} | {setup['gpus'].count(',') + 1} | {setup['attention']}"
        yield f"| {name} | {server['start_s']} s | {on} | {hook} | {depths} |"
    yield ""


def _by_notes(summary: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for row in summary:
        # how well a sidecar knows the server is a column of its own, not a table
        temperature = row.get("temperature") if row["label"] == "governed" else None
        label = f"{row['label']} ({temperature})" if temperature else row["label"]
        rest = [key for key in NOTES if key != "temperature" and row.get(key) is not None]
        groups.setdefault(", ".join(f"{key} {row[key]}" for key in rest), []).append(row | {"label": label})
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


def _goal(rows: list[dict]) -> Iterator[str]:
    """The policy as a share of the best other arm."""
    if not rows:
        return
    yield "### The policy against the best other arm\n"
    yield "Half width: of the 95 % interval over paired rounds; without pairs, against the best arm's mean.\n"
    yield "| acceptance | C | arm | best other arm | its tok/s | share of it | half width | pairs |"
    yield "| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |"
    for r in sorted(rows, key=lambda r: (-(r["acceptance"] or 0), r["C"], r["arm"])):
        half = "-" if r["half_width"] is None else f"{100 * r['half_width']:.1f} %"
        share = f"{100 * r['share']:.1f} % | {half} | {r['pairs']} |"
        best = f"{r['best_other']} | {r['best_tok_s']:.0f}"
        yield f"| {r['acceptance']} | {r['C']} | {r['arm']} | {best} | {share}"
    yield ""


def _traces(rows: list[dict]) -> Iterator[str]:
    """One line an arm of a trace."""
    if not rows:
        return
    yield "### The same trace under every arm\n"
    yield "| arm | phases | output tokens | tok/s | TPOT p50, ms | TPOT p99, ms | TTFT p99, ms | failed |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in rows:
        figures = [r["tpot_ms_p50"], r["tpot_ms_p99"], r["ttft_ms_p99"]]
        text = " | ".join("-" if v is None else f"{v:.1f}" for v in figures)
        yield f"| {r['arm']} | {r['phases']} | {r['tokens']} | {r['tok_s']:.0f} | {text} | {r['errors']} |"
    yield ""


def _settling(windows: list[dict]) -> Iterator[str]:
    """Throughput by second while a policy learns."""
    shown = [w for w in windows if w.get("temperature") in ("cold", "settling") and w.get("tok_s_by_second")]
    if not shown:
        return
    yield "### Output tokens of each second of the learning windows\n"
    yield "| server | C | notes | by second |"
    yield "| --- | ---: | --- | --- |"
    for w in shown:
        notes = ", ".join(f"{key} {w[key]}" for key in (*NOTES, "pass_number") if w.get(key) is not None)
        yield f"| {w['label']} | {w['C']} | {notes} | {' '.join(map(str, w['tok_s_by_second']))} |"
    yield ""


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
