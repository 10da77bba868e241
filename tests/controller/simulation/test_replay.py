"""Replays: arms and policies on the same arrivals, through observer and control plane."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.arrivals import Arrival, Trace
from controller.simulation.controls import HookControl
from controller.simulation.cost_profile import load_profile
from controller.simulation.engine import EngineConfig, Request
from controller.simulation.replay import Scenario, engine_of, fixed_arms, replay_arm, replay_policy
from controller.simulation.replay_plot import goodput_surface, plot_replay
from controller.simulation.report import percentiles, run_to_json, scenario_to_json, tpots
from controller.simulation.virtual_sidecar import VirtualSidecar
from policies.fixed import Fixed, FixedParams
from policies.native import Native
from policies.threshold import Threshold, ThresholdParams, ThresholdRow
from policies.types import Action, Arm, Decision, Gear, Probe, Reason, Schedule

QUIET = EngineConfig(noise=0.0, switch_s=0.0)


def trace(count, gap_s, prompt=200, output=200):
    return Trace("made up", tuple(Arrival(i * gap_s, prompt, output) for i in range(count)))


@pytest.fixture(scope="module")
def scenario():
    """Twenty requests alone, then 120 at once: speculation is right for one part only."""
    alone = trace(20, 1.0).arrivals
    crowd = tuple(Arrival(25.0 + i * 0.001, 200, 200) for i in range(120))
    return Scenario(
        load_profile("h200_llama8b_triton"),
        Trace("made up", alone + crowd),
        parse_acceptance("0.745"),
        QUIET,
    )


def test_a_fixed_policy_spends_what_its_arm_spends(scenario):
    """Through observer, wire form and control plane: but for the first second, depth 2 is depth 2."""
    run = replay_policy(scenario, Fixed(FixedParams(depth=2)))
    arm = replay_arm(scenario, "depth_2", (2, "on"))
    assert run.totals.against((2, "on")) == pytest.approx(0.0, abs=0.01)
    assert arm.totals.against((2, "on")) == pytest.approx(0.0, abs=1e-12)
    assert len(run.finished) == len(arm.finished) == 140


def test_no_fixed_arm_is_best_when_the_load_changes_and_a_threshold_beats_them_all(scenario):
    """Depth 4 alone and off in the crowd is within 2 % of the oracle; no fixed arm is within 5 %."""
    rows = (ThresholdRow(1, 4), ThresholdRow(32, 0))
    policy = Threshold(ThresholdParams(rows=rows, hysteresis_reqs=0, gear=Gear.COLD))
    assert replay_policy(scenario, policy).totals.regret < 0.02
    for name, arm in fixed_arms(scenario).items():
        assert replay_arm(scenario, name, arm).totals.regret > 0.05, name


def test_a_policy_that_hands_back_leaves_sglangs_own_rule_in_charge(scenario):
    """`native` never puts a plan in force, and depth 0 in the crowd is then SGLang's slow one."""
    run = replay_policy(scenario, Native())
    assert run.samples[-1].plan_changes == 0
    assert run.schedule is None
    assert run.totals.used_s[0, "warm"] > 0
    assert run.totals.used_s[0, "cold"] == run.totals.used_s[0, "frozen"] == 0


def test_a_replay_is_the_same_every_time(scenario):
    """Same scenario, same seed: the same report to the last digit; another seed: another one."""
    noisy = dataclasses.replace(scenario, engine=EngineConfig())

    def report(case):
        return json.dumps(run_to_json(replay_policy(case, Threshold(ThresholdParams())), fixed_arms(case)))

    assert report(noisy) == report(noisy)
    assert report(noisy) != report(noisy.with_seed(2))


def test_acceptance_that_drifts_is_accounted_phase_by_phase():
    """At 0 off has no regret and at 1 much; a phase each, so its regret lies between."""
    case = Scenario(load_profile("h200_llama8b_triton"), trace(20, 1.0), parse_acceptance("0@0,1@10"), QUIET)
    totals = replay_arm(case, "off", (0, "cold")).totals
    half_s = totals.spent_s / 2
    # One request at a time: plain takes 4.807 ms a token, depth 4 all accepted 7.046 ms for five.
    assert totals.oracle_s == pytest.approx(half_s + half_s * (7.046 / 5) / 4.807, rel=0.02)


def test_the_fixed_arms_are_those_of_the_profile():
    """always_off is a server without speculation, nor a draft prefill; FA3 was measured at 1, 2 and 4."""
    case = Scenario(load_profile("h200_llama8b_fa3"), trace(1, 1.0), parse_acceptance("0.5"))
    assert fixed_arms(case) == {
        "always_off": (0, "frozen"),
        "depth_1": (1, "on"),
        "depth_2": (2, "on"),
        "depth_4": (4, "on"),
    }
    without = dataclasses.replace(case, engine=EngineConfig(plain_decode=False))
    assert fixed_arms(without)["always_off"] == (0, "cold")


class Probing:
    """Depth 4, and a burst of 8 steps of depth 1 in every 100."""

    name = "probing"

    def decide(self, observation):
        probe = Probe(
            Arm(1), every_steps=100, burst_steps=8, min_batch_size=1, max_batch_size=64, bursts=10**6
        )
        return Decision(Action.GOVERN, Reason.FIXED, "probing", Schedule.constant(Arm(4)), probe)


def test_probe_share_is_the_share_of_decode_seconds_in_probes():
    """8 of 100 steps at 6.241 ms and 92 at 7.046: 49.9 of 698.2 ms, about 7.2 %."""
    case = Scenario(load_profile("h200_llama8b_triton"), trace(30, 1.0), parse_acceptance("0.745"), QUIET)
    run = replay_policy(case, Probing())
    assert run.totals.probe_share == pytest.approx(8 * 6.241 / (8 * 6.241 + 92 * 7.046), rel=0.1)
    assert run.totals.switches == pytest.approx(2 * run.totals.steps / 100, abs=4)


def test_the_sidecar_sees_the_engine_through_its_own_observer():
    """Two turns: the second observation has the differences since the first, in force what was put."""
    case = Scenario(load_profile("h200_llama8b_triton"), trace(1, 1.0, output=2000), parse_acceptance("1"))
    control = HookControl([(0, "warm"), (0, "cold"), *((d, "on") for d in (1, 2, 3, 4))])
    engine = engine_of(case, control)
    with VirtualSidecar(engine, control, Fixed(FixedParams(depth=1))) as sidecar:
        for _ in range(2):
            engine.run_until(engine.now_s + 0.5)
            sidecar.apply(sidecar.decide())
        engine.run_until(engine.now_s + 0.5)
        seen = sidecar.observe()
    assert seen.running_reqs == 1
    assert seen.in_force == Schedule.constant(Arm(1))
    assert seen.in_use == Arm(1)
    assert seen.suspect == ()
    assert [cell.arm for cell in seen.cells] == [Arm(1)]
    assert seen.decode_steps == pytest.approx(0.5 / 0.00624, abs=3)


def test_a_report_has_every_figure_and_none_that_is_not_known(scenario):
    """The keys that docs/simulator.md describes; JSON without NaN; unknown is null."""
    run = replay_arm(scenario, "always_off", (0, "cold"))
    report = run_to_json(run, fixed_arms(scenario))
    json.dumps(report, allow_nan=False)
    assert report["against"]["always_off"] == pytest.approx(0.0, abs=1e-12)
    assert report["against_best_fixed"] == max(report["against"].values())
    assert report["requests"] == {"finished": 140, "unfinished": 0, "rejected": 0}
    assert report["probe_share"] == 0.0
    assert report["schedule"] is None
    empty = run_to_json(dataclasses.replace(run, totals=type(run.totals)(), finished=[]), {})
    assert (empty["regret"], empty["probe_share"], empty["ttft_s"]["p50"]) == (None, None, None)
    assert scenario_to_json(scenario, "0.745")["arrivals"]["requests"] == 140


def test_tpot_leaves_the_first_token_out():
    """(end - first) / (tokens - 1); one token has none."""
    five = Request(0, 0.0, 1, 5, first_token_s=1.0, finish_s=3.0)
    one = Request(1, 0.0, 1, 1, first_token_s=1.0, finish_s=1.0)
    assert tpots([five, one]) == [0.5]
    assert percentiles([]) == {"p50": None, "p99": None}


@pytest.mark.slow
def test_the_picture_is_drawn(scenario, tmp_path):
    """Depth over load, cumulative regret, goodput surface with the schedule: one PNG."""
    run = replay_policy(scenario, Threshold(ThresholdParams()))
    plot_replay(tmp_path / "replay.png", scenario, [run])
    assert (tmp_path / "replay.png").read_bytes()[:4] == b"\x89PNG"
    arms, goodput = goodput_surface(scenario, 0.0)
    best = [arms[i] for i in goodput.argmax(axis=0)]
    assert best[0] == (4, "on")
    assert best[-1] == (0, "cold")
    assert all(a <= b for a, b in itertools.pairwise(goodput[arms.index((0, "cold"))][:128]))
