"""Figures from records by hand: shares of the best arm, switches on every rank, the totals of a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from figures.steplog import StepLog  # noqa: E402 - the path comes first
from figures.switches import ranks, toggles  # noqa: E402
from figures.windows import goal, traces  # noqa: E402


def window(label: str, tok_s: float, number: int | None = 0, **notes: object) -> dict:
    """A measured window at C=8."""
    place = {} if number is None else {"round": number}
    return {"label": label, "C": 8, "acceptance": 0.7, "tok_s": tok_s, **place, **notes}


def write_log(folder: Path, rank: int, launches: list[list[float]]) -> None:
    """A step log of one rank; each launch has its result 5 ms later."""
    results = [[at + 0.005, batch, batch, depth + 1] for at, batch, depth in launches]
    folder.joinpath("steps").mkdir(exist_ok=True)
    text = json.dumps({"launches": launches, "results": results})
    folder.joinpath(f"steps/table.r{rank}.1.json").write_text(text)


def test_the_policy_is_held_against_the_arm_that_is_best_over_all_rounds():
    """One lucky window of `plain` does not make it the best; the share is that of paired rounds."""
    windows = [window("plain", 100, 0), window("plain", 61, 1)]
    windows += [window("table/depth-2", 90, 0), window("table/depth-2", 80, 1)]
    windows += [window("governed", 90, 0, temperature="warm"), window("governed", 80, 1, temperature="warm")]
    (row,) = goal(windows)
    assert (row["best_other"], row["best_tok_s"], row["pairs"]) == ("table/depth-2", 85.0, 2)
    assert row["share"] == 1.0


def test_a_cold_window_has_no_partner_and_stands_against_the_mean():
    """The learning window was measured once, before the rounds."""
    windows = [window("plain", 100, 0), window("plain", 60, 1)]
    windows += [window("governed", 40, None, temperature="cold")]
    (row,) = goal(windows)
    assert (row["arm"], row["pairs"], row["share"], row["half_width"]) == ("governed cold", 0, 0.5, None)


def test_a_switch_is_counted_at_the_last_rank_that_took_it(tmp_path):
    """Put at 1.0: rank 0 launches at the new depth at 1.010, rank 1 at 1.012."""
    write_log(tmp_path, 0, [[0.9, 8, 4], [1.01, 8, 0], [1.02, 8, 0]])
    write_log(tmp_path, 1, [[0.9, 8, 4], [1.012, 8, 0], [1.02, 8, 0]])
    toggle = {"kind": "toggle", "server": "table", "arm": "off-cold", "put_s": 1.0, "acknowledged_s": 1.004}
    run = {"kind": "toggles", "server": "table", "C": 8, "switches": 1, "to_s": 1.1, "state": None}
    (found,) = toggles([toggle | {"period_s": 0.1}, run | {"period_s": 0.1}], tmp_path)
    assert found["put_to_first_launch_ms"]["p50"] == 12.0
    assert found["first_launch_skew_ms"]["max"] == 2.0
    assert found["put_to_first_result_ms"]["p50"] == 15.0
    assert found["unseen"] == 0


def test_a_rank_that_took_a_switch_one_launch_late_is_found(tmp_path):
    """Equal counts are not enough: the sequences of (batch size, depth) must be the same."""
    write_log(tmp_path, 0, [[1.0, 8, 4], [1.1, 8, 0], [1.2, 8, 0]])
    write_log(tmp_path, 1, [[1.0, 8, 4], [1.1, 8, 4], [1.2, 8, 0]])
    (found,) = ranks([{"kind": "ranks", "server": "table", "tp": 2, "switches": 1, "state": None}], tmp_path)
    assert found["launches"] == [3, 3]
    assert found["identical_sequences"] is False


def test_a_trace_counts_every_token_from_its_first_phase_to_its_last(tmp_path):
    """Two phases of a second each, 8 tokens a step; the policy's rate is a share of the best other arm's."""
    write_log(tmp_path, 0, [[i / 10, 8, 0] for i in range(40)])
    logs = {"table": StepLog(tmp_path, "table")}
    phases = [("plain", 0, 1), ("plain", 1, 2), ("governed", 2, 3), ("governed", 3, 4)]
    spans = [{"trace": arm, "server": "table", "from_s": a, "to_s": b} for arm, a, b in phases]
    first, second = traces(spans, logs, {"table": []})
    assert (first["arm"], first["tokens"], first["tok_s"]) == ("plain", 160, 80.0)
    assert (second["arm"], second["to_best_other"]) == ("governed", 1.0)
