"""The schedule, its JSON form and its wire form."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.schedule import Command, InvalidPlanError, Plan, Probe, Row, Schedule, parse_plan

BUILT = (0, 1, 2, 3)
GEARS = ("warm", "cold")


def plan_body(**changes):
    body = {
        "schedule": [{"min_batch_size": 1, "depth": 3}, {"min_batch_size": 24, "depth": 1}],
        "lease_s": 15,
        "sequence": 42,
        "holder": "specgov/pod",
    }
    body.update(changes)
    return body


def row(start=1, depth=3, **more):
    return {"min_batch_size": start, "depth": depth, **more}


def probe(**changes):
    return {"depth": 2, "every_steps": 400, "burst_steps": 8, **changes}


def test_a_whole_plan_is_read():
    """Every field of the protocol's example arrives, defaults filled in."""
    body = plan_body(
        schedule=[row(1, 3), row(24, 1), row(64, 0, gear="cold")],
        probe=probe(min_batch_size=16, max_batch_size=31, bursts=4),
    )
    assert parse_plan(body, BUILT, GEARS) == Plan(
        schedule=Schedule([Row(1, 3), Row(24, 1), Row(64, 0, "cold")]),
        probe=Probe(2, 400, 8, "on", 16, 31, 4),
        lease_s=15.0,
        sequence=42,
        holder="specgov/pod",
    )


def test_off_is_warm_unless_said_otherwise():
    """A row at depth 0 without a gear keeps the draft KV cache in step."""
    assert parse_plan(plan_body(schedule=[row(1, 0)]), BUILT, GEARS).schedule.rows == (Row(1, 0, "warm"),)


@pytest.mark.parametrize(
    ("batch_size", "depth"), [(0, 3), (1, 3), (23, 3), (24, 1), (63, 1), (64, 0), (100_000, 0)]
)
def test_the_row_in_force_is_the_last_that_starts_at_or_below(batch_size, depth):
    """Rows hold from their own start up to the next one's."""
    schedule = Schedule([Row(1, 3), Row(24, 1), Row(64, 0, "warm")])
    assert schedule.row_for(batch_size).depth == depth


HOSTILE = [
    ("body", [1, 2]),
    ("body", None),
    ("schedule", plan_body(schedule=[])),
    ("schedule", plan_body(schedule="1:3")),
    ("schedule", plan_body(schedule=[row(i + 1) for i in range(65)])),
    ("schedule[0]", plan_body(schedule=["x"])),
    ("schedule[0].min_batch_size", plan_body(schedule=[row(2)])),
    ("schedule[0].min_batch_size", plan_body(schedule=[row(0)])),
    ("schedule[0].min_batch_size", plan_body(schedule=[row(-5)])),
    ("schedule[0].min_batch_size", plan_body(schedule=[row(True)])),
    ("schedule[0].min_batch_size", plan_body(schedule=[row(1.0)])),
    ("schedule[1].min_batch_size", plan_body(schedule=[row(1), row(1)])),
    ("schedule[1].min_batch_size", plan_body(schedule=[row(1), row(10**400)])),
    ("schedule[0].depth", plan_body(schedule=[row(depth=9)])),
    ("schedule[0].depth", plan_body(schedule=[row(depth=-1)])),
    ("schedule[0].depth", plan_body(schedule=[row(depth="3")])),
    ("schedule[0].depth", plan_body(schedule=[row(depth=True)])),
    ("schedule[0].depth", plan_body(schedule=[row(depth=None)])),
    ("schedule[0].depth", plan_body(schedule=[{"min_batch_size": 1}])),
    ("schedule[0].gear", plan_body(schedule=[row(depth=0, gear="frozen")])),
    ("schedule[0].gear", plan_body(schedule=[row(depth=0, gear="on")])),
    ("schedule[0].gear", plan_body(schedule=[row(depth=0, gear=0)])),
    ("schedule[0].gear", plan_body(schedule=[row(depth=2, gear="warm")])),
    ("schedule[0].steps", plan_body(schedule=[row(steps=1)])),
    ("probe", plan_body(probe=[])),
    ("probe.depth", plan_body(probe=probe(depth=7))),
    ("probe.every_steps", plan_body(probe=probe(every_steps=0))),
    ("probe.burst_steps", plan_body(probe=probe(burst_steps=0))),
    ("probe.burst_steps", plan_body(probe=probe(burst_steps=401))),
    ("probe.max_batch_size", plan_body(probe=probe(min_batch_size=9, max_batch_size=8))),
    ("probe.bursts", plan_body(probe=probe(bursts=0))),
    ("probe.bursts", plan_body(probe=probe(bursts=1.5))),
    ("probe.gear", plan_body(probe=probe(depth=0, gear="frozen"))),
    ("probe.speed", plan_body(probe=probe(speed=1))),
    ("lease_s", plan_body(lease_s=0.5)),
    ("lease_s", plan_body(lease_s=3601)),
    ("lease_s", plan_body(lease_s=float("nan"))),
    ("lease_s", plan_body(lease_s=float("inf"))),
    ("lease_s", plan_body(lease_s="15")),
    ("lease_s", plan_body(lease_s=True)),
    ("sequence", plan_body(sequence=0)),
    ("sequence", plan_body(sequence=2**53)),
    ("sequence", plan_body(sequence=1.0)),
    ("sequence", plan_body(sequence="1")),
    ("holder", plan_body(holder="")),
    ("holder", plan_body(holder="x" * 129)),
    ("holder", plan_body(holder="a\nb")),
    ("holder", plan_body(holder=7)),
    ("extra", plan_body(extra=1)),
    ("lease_s", {"schedule": [], "sequence": 1, "holder": "x"}),
]


@pytest.mark.parametrize(("field", "body"), HOSTILE, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_refused_by_name(field, body):
    """The error names the JSON path of the offending value and stays short."""
    with pytest.raises(InvalidPlanError) as caught:
        parse_plan(body, BUILT, GEARS)
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_refused_or_read(body):
    """No JSON value raises anything but InvalidPlanError."""
    with pytest.raises(InvalidPlanError):
        parse_plan(body, BUILT, GEARS)


@given(st.dictionaries(st.sampled_from(sorted(plan_body(probe=None))), json_values))
def test_any_field_of_a_good_plan_may_be_garbage(changes):
    """Replacing fields of a good plan by anything gives a plan or a named error."""
    try:
        assert isinstance(parse_plan(plan_body(**changes), BUILT, GEARS), Plan)
    except InvalidPlanError as error:
        assert error.field.split(".")[0].split("[")[0] in {*plan_body(), "probe"}  # noqa: PT017


COMMAND = Command(
    order=7,
    sequence=42,
    schedule=Schedule([Row(1, 3), Row(64, 0, "cold")]),
    probe=Probe(2, 400, 8, "on", 16, 31, 4),
)


def test_a_command_survives_the_wire():
    """What the HTTP process sends is what a rank reads, through JSON as well."""
    flat = COMMAND.to_wire()
    assert all(type(value) is int for value in flat.values())
    assert Command.from_wire(json.loads(json.dumps(flat)), BUILT, GEARS) == COMMAND


def test_handing_back_survives_the_wire():
    """No rows mean: SGLang's own policy."""
    command = Command(order=8, sequence=42, schedule=None)
    assert Command.from_wire(command.to_wire(), BUILT, GEARS) == command


@pytest.mark.parametrize("value", [-1, 9, 3.0, "3", True, float("nan"), None])
def test_a_rank_trusts_no_depth_on_the_wire(value):
    """SGLang coerces "3" and true to numbers before a rank sees them; each is checked again there."""
    with pytest.raises(InvalidPlanError) as caught:
        Command.from_wire({**COMMAND.to_wire(), "specgov.row.0.depth": value}, BUILT, GEARS)
    assert caught.value.field in ("specgov.row.0.depth", "schedule[0].depth")


@pytest.mark.parametrize("key", sorted(COMMAND.to_wire()))
def test_no_key_may_be_left_out_on_the_wire(key):
    """A lost key is an error, never a default."""
    flat = COMMAND.to_wire()
    del flat[key]
    with pytest.raises(InvalidPlanError):
        Command.from_wire(flat, BUILT, GEARS)


def test_no_unknown_key_is_taken_from_the_wire():
    """A key from another version is an error."""
    with pytest.raises(InvalidPlanError) as caught:
        Command.from_wire({**COMMAND.to_wire(), "specgov.speed": 1}, BUILT, GEARS)
    assert caught.value.field == "specgov.speed"
