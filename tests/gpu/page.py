"""Fill a section of a results page from what analyse.py made:  page.py results.json page.md [SECTION]

SECTION is `figures` unless it is named.  Every figure is in the JSON, the depth over time and every window
too; what was not measured is a dash, what failed or was left out is listed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from sections import fill, table  # noqa: E402 - the path comes first

INTRODUCTION = (
    "Output tokens per second come from the servers' own step logs, ± the half width of the 95 % interval",
    "over alternated windows; the percentage is the paired ratio to the server without speculation (`plain`)",
    "in the same round.\n",
)
ORDER = ("plain", "off-cold", "depth-1", "depth-2", "depth-4", "adaptive")
"""Columns that every page begins with; the policy's come last."""
NOTES = ("acceptance", "temperature", "phase", "settling", "burst")


def page(results: dict) -> Iterator[str]:
    """The section, line by line."""
    yield from INTRODUCTION
    for name, plan in results.items():
        yield f"### {name}\n"
        yield from _servers(plan["servers"])
        for notes, rows in _by_notes(plan["summary"]).items():
            yield from _throughput(notes, rows)
        yield from _goal(plan.get("goal", []))
        yield from _traces(plan.get("traces", []))
        yield from _settling(plan["windows"])
        yield from _objects("Comparisons (paired ratios)", plan["comparisons"])
        yield from _objects("Switches", plan["toggles"])
        yield from _objects("Ranks", plan["ranks"])
        yield from _objects("Bursts", plan["bursts"])
        yield from _objects("Known tokens while switching", plan.get("known", []))
        yield from _objects("Constrained decoding while switching", plan.get("grammar", []))
        yield from _troubles(plan)


def _servers(servers: dict) -> Iterator[str]:
    rows = []
    for name, server in servers.items():
        setup = server["setup"]
        depths = ", ".join(map(str, setup["depths"])) or " ".join(setup["args"]) or "no speculation"
        gpus, hook = setup["gpus"].count(",") + 1, "yes" if setup["hook"] else "no"
        rows.append(
            (name, setup["model"], setup["attention"], hook, depths, gpus, f"{server['start_s']:.0f} s")
        )
    yield from table(("server", "model", "attention", "plugin", "depths", "GPUs", "start"), rows, left=5)


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
    labels = sorted(dict.fromkeys(row["label"] for row in rows), key=_place)
    cells = {(row["C"], row["label"]): row for row in rows}
    levels = sorted({row["C"] for row in rows})
    yield f"#### Output tokens per second{': ' + notes if notes else ''}\n"
    body = [(c, *(_cell(cells.get((c, label))) for label in labels)) for c in levels]
    yield from table(("C", *labels), body, left=0)
    yield "Median step, ms:\n"
    steps = [(c, *((cells.get((c, label)) or {}).get("step_ms_p50") for label in labels)) for c in levels]
    yield from table(
        ("C", *labels),
        [(c, *(None if ms is None else f"{ms:.2f}" for ms in row)) for c, *row in steps],
        left=0,
    )


def _place(label: str) -> tuple[int, str]:
    name = label.partition("/")[2] or label
    return (ORDER.index(name) if name in ORDER else len(ORDER), "" if label.startswith("governed") else label)


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
    yield "#### The policy against the best other arm\n"
    yield "Half width: of the 95 % interval over paired rounds; without pairs, against the best arm's mean."
    yield "Choice: the depth that the policy used (in 90 % of the steps or more), on the server `table`, as a"
    yield "share of the best arm; same depth: the policy over that arm, in the same rounds.\n"
    body = [
        (
            r["arm"],
            _depths(r["depth_shares"]),
            r["best_other"],
            r["C"],
            f"{r['best_tok_s']:.0f}",
            f"{100 * r['share']:.1f} %",
            None if r["half_width"] is None else f"{100 * r['half_width']:.1f} %",
            r["pairs"],
            *(_percent(r.get(key)) for key in ("choice", "same_depth")),
        )
        for r in sorted(rows, key=lambda r: (r["arm"], r["C"]))
    ]
    head = ("arm", "its depths", "best other arm", "C", "its tok/s", "share of it", "half width", "pairs")
    yield from table((*head, "choice", "same depth"), body, left=3)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _depths(shares: dict[str, float]) -> str:
    return ", ".join(
        depth if share > 0.985 else f"{depth}: {100 * share:.0f} %" for depth, share in shares.items()
    )


def _traces(rows: list[dict]) -> Iterator[str]:
    """One line an arm of a trace."""
    if not rows:
        return
    yield "#### The same trace under every arm\n"
    body = []
    for r in rows:
        figures = [r["tpot_ms_p50"], r["tpot_ms_p99"], r["ttft_ms_p99"]]
        text = [None if v is None else f"{v:.1f}" for v in figures]
        steady = None if r.get("steady_tok_s") is None else f"{r['steady_tok_s']:.0f}"
        body.append((r["arm"], r["phases"], r["tokens"], f"{r['tok_s']:.0f}", steady, *text, r["errors"]))
    figures = ("TPOT p50, ms", "TPOT p99, ms", "TTFT p99, ms")
    head = ("arm", "phases", "output tokens", "tok/s", "tok/s, second half of each phase", *figures, "failed")
    yield from table(head, body)


def _settling(windows: list[dict]) -> Iterator[str]:
    """Throughput by second while a policy learns."""
    shown = [w for w in windows if w.get("temperature") in ("cold", "settling") and w.get("tok_s_by_second")]
    if not shown:
        return
    yield "#### Output tokens of each second of the learning windows\n"
    body = []
    for w in sorted(shown, key=lambda w: w["C"]):
        notes = ", ".join(f"{key} {w[key]}" for key in (*NOTES, "pass_number") if w.get(key) is not None)
        body.append((w["label"], notes, w["C"], " ".join(map(str, w["tok_s_by_second"]))))
    yield from table(("server", "notes", "C", "by second"), body, left=2)


def _objects(title: str, rows: list[dict]) -> Iterator[str]:
    if not rows:
        return
    yield f"#### {title}\n"
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
        yield "#### What did not work\n"
        yield from (f"- {row}" for row in rows)
        yield ""


if __name__ == "__main__":
    section = sys.argv[3] if len(sys.argv) > 3 else "figures"
    fill(Path(sys.argv[2]), section, page(json.loads(Path(sys.argv[1]).read_text())))
