"""What one scheduler process does with a command, and what it reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.ack_board import SLOT_BYTES, Ack, AckBoard
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.schedule import GEARS, Command, InvalidPlanError, Row, Schedule, parse_plan
from sglang_hooks.status import PlainDecodeStatus
from tests.hooks.fakes import Request, make_policy

DEEP = Schedule([Row(1, 3)])


def make_control(policy=None, *, gears=("warm",), **kwargs):
    kwargs = {"topology": Topology(), "started_unix_s": 1000.0, **kwargs}
    return RankControl(policy, PlainDecodeStatus(gears=gears), **kwargs)


def test_a_command_is_followed_and_acknowledged_with_the_step_it_came_at():
    """Two steps were launched before it: that and their digest are what ranks are compared by."""
    board = AckBoard(bytearray(4 * SLOT_BYTES))
    control = make_control(make_policy(), topology=Topology(dp_rank=1, tp_rank=1, tp_size=2), board=board)
    assert board.read(3) == Ack(0, 0, 0, 0, 0b1111, 0b0010)
    control.policy.get_steps_for_batch(1)
    control.policy.get_steps_for_batch(1)
    digest = control.policy.digest
    assert control.apply(Command(5, 42, DEEP).to_wire())
    assert board.read(3) == Ack(5, 42, 2, digest, 0b1111, 0b0010)
    assert control.policy.get_steps_for_batch(1) == 3


def test_a_command_that_comes_twice_is_applied_once_and_answered_alike():
    """Whoever sent it may have lost the first answer; steps and digest stay those of the first time."""
    board = AckBoard(bytearray(SLOT_BYTES))
    control = make_control(make_policy(), board=board)
    assert control.apply(Command(5, 42, DEEP).to_wire())
    first = board.read(0)
    control.policy.get_steps_for_batch(1)
    assert control.apply(Command(5, 42, DEEP).to_wire())
    assert board.read(0) == first


def test_gears_that_come_later_are_written_down_with_the_next_report():
    """SGLang builds the state for depth 0 after the worker, and with it what the ranks are compared by."""
    board = AckBoard(bytearray(SLOT_BYTES))
    control = make_control(make_policy(), board=board)
    control._plain_decode.gears = ("warm", "cold")
    control.report()
    assert board.read(0) == Ack(0, 0, 0, 0, 0b1111, 0b0110)


@pytest.mark.parametrize("order", [4, 5])
def test_what_is_not_newer_is_refused(order):
    """An older or repeated command changes nothing."""
    control = make_control(make_policy())
    assert control.apply(Command(5, 42, DEEP).to_wire())
    assert not control.apply(Command(order, 43, Schedule([Row(1, 1)])).to_wire())
    assert control.policy.get_steps_for_batch(1) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"specgov.row.0.depth": 9},
        {"specgov.row.0.depth": "3"},
        {"specgov.row.0.gear": 2},
        {"specgov.rows": 65},
        {"specgov.rows": 2},
        {"specgov.order": float("nan")},
        {"specgov.more": 1},
    ],
)
def test_a_bad_command_is_refused_and_changes_nothing(change):
    """Whatever the HTTP process or anybody else sends is checked again where it would do harm."""
    control = make_control(make_policy())
    assert not control.apply({**Command(5, 42, DEEP).to_wire(), **change})
    assert not control.policy.governed
    assert control.apply(Command(5, 42, DEEP).to_wire())


def test_a_gear_must_be_in_force_here():
    """`cold` is followed only where depth 0 runs as plain decoding."""
    command = Command(1, 1, Schedule([Row(1, 0, "cold")])).to_wire()
    assert not make_control(make_policy()).apply(command)
    assert make_control(make_policy(), gears=("warm", "cold")).apply(command)


def test_a_process_that_cannot_be_governed_refuses_and_says_why():
    """The reason is what `GET /speculation` shows."""
    control = make_control(None, reason="speculation is off")
    assert not control.apply(Command(1, 1, DEEP).to_wire())
    report = control.report()
    assert (report["controllable"], report["reason"]) == (False, "speculation is off")
    assert report["built_depths"] == report["gears"] == report["telemetry"]["cells"] == []
    assert report["telemetry"]["depth"] is None


def test_the_report_shows_what_was_launched_and_what_it_yielded():
    """One governed step of two requests at depth 3."""
    control = make_control(make_policy())
    control.apply(Command(1, 1, DEEP).to_wire())
    control.policy.get_steps_for_batch(2)
    launch = control.result_arriving(3)
    control.decode_result(
        5.0, launch, batch_size=2, requests=[Request(), Request()], accepted=[3, 0], context_tokens=9
    )
    telemetry = control.report()["telemetry"]
    assert {
        name: telemetry[name] for name in ("decode_steps", "switches", "depth", "gear", "batch_size")
    } == {
        "decode_steps": 1,
        "switches": 1,
        "depth": 3,
        "gear": "on",
        "batch_size": 2,
    }
    assert telemetry["cells"][0]["accepted"] == [1, 0, 0, 1]


def test_a_step_with_another_arm_launched_behind_it_is_not_timed():
    """Overlap scheduling: its result is looked at after the next launch, whose host time is another arm's."""
    control = make_control(make_policy())
    control.apply(Command(1, 1, DEEP).to_wire())
    depths = []
    for order, now_s in ((2, 5.0), (3, 5.1)):
        control.policy.get_steps_for_batch(1)
        launch = control.result_arriving(control.policy.depth)
        if order == 3:
            control.apply(Command(order, order, Schedule([Row(1, 0, "warm")])).to_wire())
            depths.append(control.policy.get_steps_for_batch(1))
        control.decode_result(
            now_s, launch, batch_size=1, requests=[Request()], accepted=[0], context_tokens=9
        )
    (cell,) = control.report()["telemetry"]["cells"]
    assert depths == [0]
    assert (cell["steps"], cell["timed_steps"], cell["skipped_switch"]) == (2, 0, 1)


_ROWS = st.lists(
    st.sampled_from([(1, "on"), (3, "on"), (9, "on"), (0, "warm"), (0, "cold"), (0, "frozen")]), max_size=3
)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), _ROWS), max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_ranks_with_the_same_depths_and_gears_answer_alike_whatever_is_sent(commands, decodes):
    """TP rank 0 alone is heard: the rest of what a rank is and has done must not change its answer.

    Bad, late and repeated commands too; rank 1 decodes other steps, lost its shortcuts, has no board.
    """
    board, steps = AckBoard(bytearray(SLOT_BYTES)), iter(decodes)
    first = make_control(make_policy(), gears=("warm", "cold"), board=board)
    other = make_control(make_policy(), gears=("warm", "cold"), topology=Topology(tp_rank=1, tp_size=2))
    other._plain_decode.in_force, other._plain_decode.reason = False, "switched off after a failure"
    for order, sequence, rows in commands:
        if next(steps):
            other.policy.get_steps_for_batch(1)
        flat = {"specgov.order": order, "specgov.sequence": sequence, "specgov.rows": len(rows)}
        for i, (depth, gear) in enumerate(rows):
            row = {"min_batch_size": i + 1, "depth": depth, "gear": GEARS.index(gear)}
            flat |= {f"specgov.row.{i}.{name}": value for name, value in row.items()}
        assert first.apply(flat) is other.apply(flat)


@given(st.lists(_ROWS.filter(bool), min_size=1, max_size=4))
def test_what_the_http_process_takes_no_such_rank_refuses(plans):
    """What passes there, numbered upwards, is applied by a rank with the depths and gears known there."""
    rank = make_control(make_policy(), gears=("warm", "cold"))
    for order, rows in enumerate(plans, start=1):
        table = [{"min_batch_size": i + 1, "depth": d, "gear": g} for i, (d, g) in enumerate(rows)]
        body = {"schedule": table, "lease_s": 15, "sequence": order, "holder": "a"}
        try:
            plan = parse_plan(body, rank.policy.built_depths, ("warm", "cold"))
        except InvalidPlanError:
            continue
        assert rank.apply(Command(order, order, plan.schedule, plan.probe).to_wire())
