"""Outcome, cost profile, report: from windows of known figures."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from controller.bench import report
from controller.bench.campaign import DepthSample, Failure, Window
from controller.bench.cells import CellCount, difference
from controller.bench.cost_profile import cost_profile
from controller.bench.outcome import Outcome, from_json, to_json
from controller.bench.plots import write_plots
from controller.bench.records import WindowStats
from controller.simulation.cost_profile import parse_profile

STATS = WindowStats(2.0, 100.0, 5, 0, 0.01, 0.02, 0.005, 0.006, 0.005, 0.009, 1.0, 1.5, 0.005, 0.006, None)


def window(label, concurrency, tok_s, *, number=0, cells=(), itl_s=0.005, phase=None, lag_s=0.0):
    """One window."""
    stats = replace(STATS, output_tok_s=tok_s, itl_p50_s=itl_s)
    arm = label if label != "plain" else "as-is"
    return Window(
        label, "engine", arm, concurrency, number, phase, 0.0, 2.0, stats, None, tuple(cells), lag_s
    )


def cell(batch, depth, gear, *, ms=10.0, steps=100):
    """100 steps of `ms` at this batch size."""
    return CellCount(
        batch,
        depth,
        gear,
        steps,
        steps * batch,
        steps * batch,
        steps,
        steps * ms / 1e3,
        steps * batch,
        steps * batch * 300,
    )


WINDOWS = [
    window("depth-2", 1, 340, cells=[cell(1, 2, "on", ms=6.5)]),
    window("depth-2", 1, 346, number=1, cells=[cell(1, 2, "on", ms=6.7)]),
    window("depth-2", 64, 5600, cells=[cell(48, 2, "on", ms=22.0)]),
    window("off-cold", 1, 200, cells=[cell(1, 0, "cold", ms=4.9)]),
    window("off-cold", 64, 7800, cells=[cell(48, 0, "cold", ms=6.4)]),
    window("plain", 1, 206, itl_s=0.0048),
    window("plain", 64, 7843, itl_s=0.0063),
]
OUTCOME = Outcome({"sglang_version": "0.5.17", "model": "m"}, WINDOWS, plain=("plain",))


def test_json_gives_the_outcome_back():
    """Everything that the figures need survives the file."""
    full = replace(
        OUTCOME, depths=[DepthSample(1.0, "depth-2", 2, "on", 3)], failures=[Failure("native", 4, "no")]
    )
    back = from_json(json.loads(json.dumps(to_json(full))))
    assert back.throughput() == full.throughput()
    assert back.depths == full.depths
    assert back.failures == full.failures
    assert back.advice() == full.advice()


def test_another_schema_is_refused():
    """A file of another format is not guessed at."""
    with pytest.raises(ValueError, match="schema must be 1, got 9"):
        from_json({"schema": 9})


def test_windows_of_one_arm_and_concurrency_are_one_estimate():
    """340 and 346: mean 343 of two windows."""
    found = OUTCOME.throughput()["depth-2"][1]
    assert (found.mean, found.n) == (343, 2)


def test_held_depths_are_those_of_fixed_arms_and_of_plain_servers():
    """A governed or unknown server holds none."""
    assert OUTCOME.held_depths() == {"plain": 0, "depth-2": 2, "off-cold": 0}


def test_the_profile_is_one_that_the_simulator_reads():
    """Depth 2 at batch size 1: (6.5 + 6.7) / 2 ms; off-cold is plain decoding; plain from its streams."""
    profile = cost_profile(OUTCOME, "mine")
    assert profile["step_ms"]["depth_2"] == {"1": 6.6, "48": 22.0}
    assert profile["step_ms"]["depth_0_plain_decode"] == {"1": 4.9, "48": 6.4}
    assert profile["step_ms"]["plain"] == {"1": 4.8, "64": 6.3}
    assert profile["context"] == {"per_request_tokens": 300.0}
    assert parse_profile(profile).depths == (2,)


def test_a_profile_without_step_times_is_none():
    """Unknown is not a profile."""
    assert cost_profile(Outcome({}, [window("native", 1, 100)]), "x") is None


def test_counters_that_went_back_are_an_error():
    """The engine restarted inside the window: the difference means nothing."""
    cell_json = {
        "batch_bucket": 1,
        "depth": 2,
        "gear": "on",
        "request_steps": 1,
        "tokens": 1,
        "timed_steps": 1,
        "timed_seconds": 0.1,
        "timed_request_steps": 1,
        "timed_context_tokens": 1,
    }
    states = [{"telemetry": [{"cells": [{**cell_json, "steps": n}]}]} for n in (5, 2)]
    with pytest.raises(ValueError, match="engine restarted"):
        difference(*states)


def test_the_report_says_crossover_schedule_and_worth():
    """ln(343/206) = 0.510, ln(5600/7843) = -0.337: 64^(0.510/0.847) = 12.2."""
    text = list(report.sentences(OUTCOME.advice()))
    assert text[0] == "Speculation stops paying at about 12 requests at once."
    assert text[1].startswith("Schedule by batch size: 1+: depth-2, ")
    assert any(line.startswith("Against depth-2 alone it is worth +18.0 %") for line in text)


def test_doubtful_figures_are_called_doubtful():
    """A late load generator, windows without a token, failed requests, failed arms: each is said."""
    bad = replace(window("depth-2", 1, 0.0, lag_s=0.2), stats=replace(STATS, output_tok_s=0.0, errors=3))
    text = "\n".join(report.warnings(Outcome({}, [bad], failures=[Failure("native", 4, "refused")])))
    assert "200 ms late in 1 of 1 windows" in text
    assert "3 requests failed" in text
    assert "1 windows saw no token" in text
    assert "native at C=4: refused" in text


def test_tables_hold_every_arm_and_an_unknown_is_a_dash():
    """The plain server has no window at 1 here."""
    console = Console(width=160, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(report.throughput_table(replace(OUTCOME, windows=WINDOWS[:5] + WINDOWS[6:])))
        console.print(report.latency_table(OUTCOME))
        console.print(report.phase_table(Outcome({}, [window("depth-2", 4, 100, phase="calm")])))
    shown = capture.get()
    assert "7843" in shown
    assert " - " in shown
    assert "343 ±38" in shown
    assert "10.0 / 20.0" in shown


@pytest.mark.slow
def test_plots_are_written(tmp_path):
    """Both pictures, as PNG."""
    full = replace(
        OUTCOME, depths=[DepthSample(1.0, "depth-2", 2, "on", 3), DepthSample(2.0, "off-cold", 0, "cold", 3)]
    )
    written = write_plots(full, tmp_path)
    assert [path.name for path in written] == ["throughput.png", "depth.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
