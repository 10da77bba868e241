"""The demo: its load suits the profile, all arms get the same arrivals, its figures are counted."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile, shipped_profiles
from controller.simulation.demo.load import Phase, draw_arrivals, plan_phases
from controller.simulation.demo.outcome import Trajectory, compare, held_arm, off_arm
from controller.simulation.engine import EngineConfig, Request

PHASES = (Phase("first", 0.0, 2.0, 2, 1.0), Phase("second", 2.0, 3.0, 64, 1.0))


def test_rates_rise_and_fall_and_stay_below_what_the_best_arm_can_do():
    """Quiet, busy, crowded, quiet: on Triton off serves about 10 700 tok/s at 128, so 0.95 of that / 256."""
    phases = plan_phases(load_profile("h200_llama8b_triton"), parse_acceptance("0.745"), EngineConfig(), 60.0)
    rates = [phase.rate_rps for phase in phases]
    assert rates[0] == rates[3] < rates[1] < rates[2]
    assert rates[2] == pytest.approx(0.95 * 10_700 / 256, rel=0.05)
    assert (phases[0].start_s, phases[-1].end_s) == (0.0, pytest.approx(60.0))


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_can_be_demonstrated(name):
    """Phases with arrivals in each, whatever the profile measures."""
    phases = plan_phases(load_profile(name), parse_acceptance("0.6"), EngineConfig(), 20.0)
    arrivals = draw_arrivals(phases, np.random.default_rng(1))
    assert all(phase.rate_rps > 0 for phase in phases)
    assert [a.arrival_s for a in arrivals] == sorted(a.arrival_s for a in arrivals)
    assert arrivals[-1].arrival_s < 20.0


def test_a_held_arm_gets_the_very_same_arrivals(profile):
    """Times, prompts and outputs are those handed in; the originals are left alone."""
    requests = [Request(i, 0.1 * i, 100, 20, generated=20, finish_s=9.0) for i in range(5)]
    config = EngineConfig(noise=0.0)
    run = held_arm(profile, parse_acceptance("1"), config, (0, "cold"), requests, seed=1, end_s=3.0)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in run.requests] == [
        (r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests
    ]
    assert run.tokens_at(3.0) == 100
    assert all(r.finish_s == 9.0 for r in requests)


def test_figures_are_counted_per_phase():
    """300 tokens by 2 s and 500 by 3 s: 150, 200 and, over all, 166.7 a second; TPOT by arrival."""
    requests = [
        Request(0, 0.5, 10, 11, first_token_s=1.0, finish_s=2.0),
        Request(1, 2.5, 10, 11, first_token_s=2.6, finish_s=2.8),
        Request(2, 2.9, 10, 11),
    ]
    rows = compare(PHASES, {"governed": Trajectory(requests, [0.0, 2.0, 3.0], [0, 300, 500])})
    figures = [row["arms"]["governed"] for row in rows]
    assert [round(f["output_tok_s"], 1) for f in figures] == [150.0, 200.0, 166.7]
    assert [f["tpot_ms"]["p50"] for f in figures] == pytest.approx([100.0, 20.0, 60.0])
    assert [f["requests"] for f in figures] == [1, 2, 3]


def test_off_is_the_server_without_speculation_where_the_profile_has_one():
    """Else it is SGLang's own off."""
    assert off_arm([(0, "warm"), (0, "cold"), (2, "on")]) == (0, "cold")
    assert off_arm([(0, "warm"), (2, "on")]) == (0, "warm")


@pytest.mark.slow
def test_the_demo_runs_from_the_command_line_and_ends_by_itself():
    """Real HTTP between clients, engine and sidecar: no request fails, and three arms are reported."""
    code = "from controller.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--seconds", "8", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=110, check=True)
    report = json.loads(done.stdout)
    assert report["simulated"] is True
    assert report["failed_requests"] == 0
    assert report["requests"] > 50
    assert [row["phase"] for row in report["phases"]][-1] == "whole run"
    for row in report["phases"]:
        assert set(row["arms"]) == {"always_on", "always_off", "governed"}
        assert len({arm["requests"] for arm in row["arms"].values()}) == 1
    assert report["decisions"], "the sidecar decided nothing"
