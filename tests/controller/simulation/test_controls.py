"""The hook's own code in the simulated engine: commands in, depths and telemetry out."""

from __future__ import annotations

import pytest

from controller.simulation.acceptance import AfterOff
from controller.simulation.controls import HookControl
from controller.simulation.engine import Request
from sglang_hooks.schedule import Command, Probe, Row, Schedule

ARMS = [(0, "warm"), (0, "cold"), (1, "on"), (2, "on")]


def governed(*rows, probe=None):
    control = HookControl(ARMS)
    assert control.rank.apply(Command(1, 1, Schedule([Row(*row) for row in rows]), probe).to_wire())
    return control


def cells(control):
    report = control.rank.report()["telemetry"]["cells"]
    return {(c["batch_bucket"], c["depth"], c["gear"]): c for c in report}


def test_the_schedule_gives_the_depth_of_each_step_by_its_batch_size(make_engine):
    """Depth 2 alone, off from two on: both kinds of steps appear in the telemetry, nothing else."""
    control = governed((1, 2, "on"), (2, 0, "cold"))
    engine = make_engine(control)
    engine.submit(Request(0, 0.0, 10, 30))
    engine.submit(Request(1, 0.05, 10, 4))
    engine.run_until(10)
    assert set(cells(control)) == {(1, 2, "on"), (2, 0, "cold")}


def test_telemetry_has_the_engines_own_times(make_engine):
    """9 tokens at depth 2, three a step: the first step follows a prefill, two are timed at 16 ms each."""
    control = governed((1, 2, "on"))
    engine = make_engine(control)
    engine.submit(Request(0, 0.0, 10, 10))
    engine.run_until(1)
    cell = cells(control)[1, 2, "on"]
    assert (cell["steps"], cell["tokens"], cell["accepted"]) == (3, 9, [0, 0, 3])
    assert cell["timed_steps"] == 2
    assert cell["timed_seconds"] == pytest.approx(0.032)


def test_requests_that_lived_through_cold_are_counted_apart(make_engine):
    """Off and cold at two requests; when the first is alone again its drafts are `accepted_after_cold`."""
    control = governed((1, 1, "on"), (2, 0, "cold"))
    engine = make_engine(control, after_off=AfterOff(cold=0.0, frozen=0.0))
    engine.submit(Request(0, 0.0, 10, 30))
    engine.submit(Request(1, 0.0, 10, 4))
    engine.run_until(10)
    cell = cells(control)[1, 1, "on"]
    assert sum(cell["accepted"]) == 0
    assert cell["accepted_after_cold"] == [26, 0]


def test_probe_steps_are_marked_in_the_log(make_engine):
    """Every 10 steps a burst of 2 at depth 1: of 40 steps 8 are probes, and the log says which."""
    control = governed((1, 0, "warm"), probe=Probe(1, 10, 2))
    engine = make_engine(control, acceptance="0")
    engine.submit(Request(0, 0.0, 10, 41))
    engine.run_until(10)
    probes = [step.arm for step in engine.log.steps if step.probing]
    assert len(engine.log.steps) == 40
    assert probes == [(1, "on")] * 8


def test_without_a_plan_sglangs_rule_decides(make_engine):
    """Nothing was sent: the deepest candidate of a lone request, as at the start of a real server."""
    control = HookControl(ARMS)
    engine = make_engine(control)
    engine.submit(Request(0, 0.0, 10, 10))
    engine.run_until(1)
    assert {key[1] for key in cells(control)} == {2}


def test_an_engine_without_a_row_for_sglangs_off_never_runs_it():
    """Its native rule then has depths above 0 only; off is there for a plan, cold."""
    control = HookControl([(0, "cold"), (2, "on")])
    assert control.policy.native.candidate_steps == [2]
    assert control.rank.report()["gears"] == ["cold"]
    assert control.rank.report()["built_depths"] == [0, 2]
