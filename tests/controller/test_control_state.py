"""Reading `GET /speculation`."""

from __future__ import annotations

import pytest

from controller.control_state import parse_control_state
from policies.types import Arm, Gear, Probe, Schedule


def test_the_example_of_the_protocol_is_read(fake_state):
    """Depths and gears become arms; the plan becomes a table."""
    probe = {
        "depth": 2,
        "every_steps": 400,
        "burst_steps": 8,
        "min_batch_size": 16,
        "max_batch_size": 31,
        "bursts": 4,
    }
    plan = {"state": "governed", "schedule": [{"min_batch_size": 1, "depth": 3}], "probe": probe}
    state = parse_control_state(fake_state | plan | {"holder": "a", "lease": {"left_s": 3.0, "expired": 2}})
    off = (Arm(0, Gear.WARM), Arm(0, Gear.COLD))
    assert state.built == (*off, Arm(1), Arm(2), Arm(3))
    assert state.plan.schedule == Schedule.constant(Arm(3))
    assert state.plan.probe == Probe(Arm(2), 400, 8, 16, 31, 4)
    assert (state.held_by("a"), state.held_by("b"), state.lease_expired) == (True, False, 2)


def test_unknown_fields_are_ignored(fake_state):
    """A later plugin may say more."""
    assert parse_control_state(fake_state | {"novel": {"x": 1}}) == parse_control_state(fake_state)


@pytest.mark.parametrize(
    "schedule",
    [[], [{"min_batch_size": 2, "depth": 1}], [{"min_batch_size": 1, "depth": -1}], [{"depth": 1}], "x", [3]],
)
def test_a_table_that_is_none_is_no_plan_and_named(fake_state, schedule):
    """Not half a table."""
    state = parse_control_state(fake_state | {"state": "governed", "schedule": schedule})
    assert state.plan is None
    assert state.problems


@pytest.mark.parametrize("name", ["steps", "tokens", "timed_seconds", "accepted", "batch_bucket", "depth"])
@pytest.mark.parametrize("value", [None, -1, "7", float("nan"), [None]])
def test_a_cell_with_one_unsound_counter_is_left_out_whole(fake_state, name, value):
    """Half of its counters would make a wrong rate."""
    cell = {
        "batch_bucket": 4,
        "depth": 1,
        "gear": "on",
        "steps": 5,
        "request_steps": 20,
        "tokens": 30,
        "accepted": [10, 10],
        "accepted_after_cold": [0, 0],
        "timed_steps": 5,
        "timed_seconds": 0.1,
        "timed_seconds_sq": 0.002,
        "timed_request_steps": 20,
        "timed_context_tokens": 400,
    }
    fake_state["telemetry"][0]["cells"] = [cell, cell | {name: value}]
    state = parse_control_state(fake_state)
    assert [c.tokens for c in state.telemetry[0].cells] == [30]
    assert len(state.problems) == 1


@pytest.mark.parametrize("body", [None, [], "x", {"detail": "Not Found"}])
def test_another_answer_is_none(body):
    """Not an empty state."""
    assert parse_control_state(body) is None


def test_depths_and_gears_that_make_no_sense_are_left_out(fake_state):
    """They can then not be asked for."""
    state = parse_control_state(fake_state | {"built_depths": [0, -1, 2, "3", 10**9, None], "gears": ["hot"]})
    assert state.built == (Arm(0, Gear.WARM), Arm(2))
