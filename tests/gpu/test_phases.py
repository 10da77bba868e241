"""A trace by phase, from windows by hand: who is best, and when the policy had adapted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from figures.phases import adapting, by_phase, settled, windows_of  # noqa: E402 - the path comes first
from phases import page  # noqa: E402


def phase(
    arm: str, number: int, tok_s: float, *, seconds: float = 80.0, depths: tuple[int, ...] = ()
) -> dict:
    """One window of a trace; the policy's depth by bins of 0.25 s."""
    over_time = [[0.25 * i, 4.0, float(depth)] for i, depth in enumerate(depths)]
    return {
        "trace": arm, "phase": number, "C": 4, "acceptance": 0.7, "from_s": 0.0, "to_s": seconds,
        "tok_s": tok_s, "depth_over_time": over_time, "depth_steps": {"0": 3, "4": 997},
    }  # fmt: skip


def total(arm: str, tok_s: float) -> dict:
    """A whole trace."""
    latency = {"tpot_ms_p50": 8.0, "tpot_ms_p99": 13.72, "ttft_ms_p99": None}
    return {
        "arm": arm,
        "seconds": 160.2,
        "tokens": 12345,
        "tok_s": tok_s,
        "steady_tok_s": 90.0,
        "errors": 0,
    } | latency


RESULTS = {
    "pair": {
        "windows": [phase("governed", 0, 90.0, depths=(4,) * 8),
                    phase("governed", 1, 110.0, depths=(4, 1, 1, 1)),
                    phase("depth-4", 0, 100.0), phase("depth-4", 1, 100.0)],
        "traces": [total("governed", 100.0), total("depth-4", 80.0)],
    },
    "rule": {
        "windows": [phase("adaptive", 0, 50.0), phase("adaptive", 1, 55.0), {"label": "plain"}],
        "traces": [total("adaptive", 40.0)],
    },
}  # fmt: skip


def test_arms_of_two_runs_stand_side_by_side_by_phase():
    """90 to the best other's 100, then 110 to 100."""
    first, second = by_phase(windows_of(RESULTS, ["pair", "rule"]))
    assert first["tok_s"] == {"governed": 90.0, "depth-4": 100.0, "adaptive": 50.0}
    assert (first["best"], first["to_best_other"]) == ("depth-4", 0.9)
    assert (second["best"], second["to_best_other"]) == ("governed", 1.1)


def test_without_the_policy_nothing_is_beside_it():
    """SGLang's rule alone."""
    assert [row["to_best_other"] for row in by_phase(windows_of(RESULTS, ["rule"]))] == [None, None]


def test_runs_that_share_an_arm_or_differ_in_phases_do_not_stand_side_by_side():
    """The same arm would be drawn twice; 16 s are not 80."""
    with pytest.raises(ValueError, match="'governed' is in two"):
        windows_of({"a": RESULTS["pair"], "b": RESULTS["pair"]}, ["a", "b"])
    short = {"windows": [phase("adaptive", 0, 50.0, seconds=16.0), phase("adaptive", 1, 55.0, seconds=16.0)]}
    with pytest.raises(ValueError, match="the same phases, 'adaptive'"):
        windows_of(RESULTS | {"short": short}, ["pair", "short"])


def test_the_policy_has_adapted_when_the_phase_keeps_its_depth():
    """From 4 to 1 in the second bin; a phase that never left its depth took no time."""
    first, second = adapting(RESULTS["pair"]["windows"][:2])
    assert first == {"phase": 0, "from": None, "to": 4, "seconds": 0.0}
    assert second == {"phase": 1, "from": 4, "to": 1, "seconds": 0.25}


def test_a_probe_is_no_change_of_depth_and_a_depth_that_came_back_is():
    """One bin of a hundred is a probe; five of twenty are a depth that was in force."""
    probed = [[0.25 * i, 4.0, 4.0 if i == 50 else 1.0] for i in range(100)]
    assert settled(probed) == (1, 0.0)
    returned = [[0.25 * i, 4.0, 4.0 if 3 <= i < 8 else 1.0] for i in range(20)]
    assert settled(returned) == (1, 2.0)
    assert settled([]) == (None, None)


def test_the_page_has_totals_phases_and_what_the_policy_took_to_adapt():
    """Literal rows of each table."""
    text = "\n".join(page(RESULTS, ["pair", "rule"]))
    assert "| specgov | 160 | 12,345 | 100 | - | 90 | 8.0 | 13.7 | - | 0 |" in text
    assert "| SGLang's rule | 160 | 12,345 | 40 | 2.500 | 90 | 8.0 | 13.7 | - | 0 |" in text
    assert "| 0 | 4 | 0.7 | 90 | **100** | 50 | 90 % |" in text
    assert "| 1 | 4 | 1 | 0.25 | 4: 100 % |" in text
