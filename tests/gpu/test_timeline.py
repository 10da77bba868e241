"""Steps out of a profiler's trace that was made by hand, and where they differ from the plain server's."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from kit.profiles import summarize  # noqa: E402 - the path comes first
from timeline import differences, measured, page  # noqa: E402


def trace(folder: Path, steps: int, *, matmul_us: float = 4.0, draft_every: int = 0) -> Path:
    """Steps of 20 us: a graph of three kernels with 1 us idle, a copy of 2; the draft's graph in some."""
    events: list[dict] = []
    at_us = 0.0

    def run(name: str, from_us: float, lasts_us: float, launch: int, cat: str = "kernel") -> None:
        place = {"ts": from_us, "dur": lasts_us, "args": {"correlation": launch}}
        events.append({"name": name, "cat": cat, "ph": "X", **place})

    def graph(launch: int) -> None:
        launched = {"name": "cudaGraphLaunch", "cat": "cuda_runtime", "ph": "X"}
        events.append({**launched, "ts": at_us, "dur": 1.0, "args": {"correlation": launch}})

    for number in range(steps):
        graph(10 * number)
        run("norm", at_us, 2.0, 10 * number)
        run("matmul", at_us + 2, matmul_us, 10 * number)
        run("matmul", at_us + 3 + matmul_us, matmul_us, 10 * number)
        end_us = at_us + 3 + 2 * matmul_us
        run("copy", end_us + 1, 2.0, 10 * number + 1, "gpu_memcpy")
        at_us += 20
        if draft_every and number % draft_every == 0:
            graph(10 * number + 2)
            run("draft", end_us + 4, 50.0, 10 * number + 2)
            at_us += 100
    path = folder / "1-TP-0.trace.json.gz"
    folder.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def test_a_step_is_its_graph_and_the_gap_behind_it_each_busy_and_idle(tmp_path):
    """Graph 2 + 4 + (1) + 4 = 11 us, 1 of it idle; gap 20 - 11 = 9, 2 of it a copy; six launches."""
    found = summarize(trace(tmp_path / "plain-C1", 6))
    assert (found["trace"], found["steps"], found["longer"]) == ("plain-C1/1-TP-0.trace.json.gz", 5, None)
    assert (found["step_us"], found["graph_us"], found["gap_us"]) == (20.0, 11.0, 9.0)
    assert (found["graph_busy_us"], found["graph_idle_us"]) == (10.0, 1.0)
    assert (found["busy_us"], found["idle_us"], found["other_graphs_us"]) == (2.0, 7.0, 0.0)
    assert found["operations"] == [{"name": "copy", "per_step": 1.0, "us_per_step": 2.0}]
    assert found["graph_operations"][0] == {"name": "matmul", "per_step": 2.0, "us_per_step": 8.0}


def test_steps_that_hold_a_pass_of_the_draft_stand_apart(tmp_path):
    """Of ten steps the 1st, 5th and 9th have 100 us more, 50 of them the draft's graph."""
    found = summarize(trace(tmp_path / "ours-off-warm-C1", 11, draft_every=4))
    assert (found["steps"], found["step_us"]) == (7, 20.0)
    longer = found["longer"]
    assert (longer["steps"], longer["step_us"], longer["other_graphs_us"]) == (3, 120.0, 50.0)


def test_a_trace_without_steps_says_so(tmp_path):
    """Two launches are no step whose gap could be told from a pause."""
    assert summarize(trace(tmp_path / "plain-C1", 2))["steps"] == 0


def test_the_page_names_the_operations_that_take_longer_than_on_the_plain_server(tmp_path):
    """Two matmuls of 5 us for two of 4: 2 us a step in the graph; the copies are alike."""
    trace(tmp_path / "trace" / "plain-C128", 6)
    trace(tmp_path / "trace" / "ours-off-cold-C128", 6, matmul_us=5.0)
    ours, plain = measured(tmp_path)
    assert differences(ours, plain) == [
        ("ours-off-cold", 128, "graph", "`matmul`", 2.0, 2.0, 10.0, 8.0, "+2.0")
    ]
    assert differences(plain, plain) == []
    text = "\n".join(page({"run": [ours, plain]}))
    assert "| plain | 128 | 5 | 20 | 11 | 10 | 1 | 9 | 2 | 7 | 1 | 0 | - |" in text
    assert text.index("| plain | 128") < text.index("| ours-off-cold | 128")


def test_what_the_plan_made_of_a_trace_is_read_where_the_trace_stayed_behind(tmp_path):
    """Only its journal came back."""
    summary = summarize(trace(tmp_path / "x" / "plain-C1", 6))
    run = tmp_path / "run"
    run.mkdir()
    records = ({"kind": "plan"}, {"kind": "timeline", "summary": summary})
    run.joinpath("records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    assert measured(run) == [summary]
