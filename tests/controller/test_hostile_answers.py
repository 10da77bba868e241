"""Whatever an engine says, the parsers and the observer do not raise, and unsound is never a number."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.control_state import parse_control_state
from controller.exposition import parse_loads, parse_metrics, parse_server_info
from controller.observer import EngineSample, Observer
from policies.guards import GuardParams, stack
from policies.threshold import Threshold, ThresholdParams
from tests.controller.fake_engine import FakeEngine
from tests.controller.test_exposition import load, metrics

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["on", "warm", "governed", "NaN", "2026-11-29T13:41:11+00:00"]),
)
JSON = st.recursive(
    LEAVES,
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=8), x, max_size=4),
    max_leaves=12,
)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def paths(value, at=()):
    """Every place in a JSON value."""
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(inner, (*at, key))


def replaced(value, at, by):
    """`value` with another thing at one place."""
    if not at:
        return by
    made = copy.deepcopy(value)
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = by
    return made


def busy_state():
    fake = FakeEngine(lambda: 0.0)
    fake.decode(4, steps=10)
    fake._put(
        {
            "schedule": [{"min_batch_size": 1, "depth": 2}],
            "probe": None,
            "lease_s": 15,
            "sequence": 1,
            "holder": "a",
        }
    )
    return fake.state()


STATE, LOADS, INFO = busy_state(), load("loads_dp2_busy"), load("server_info_overlap")


@given(st.sampled_from(list(paths(STATE))), JSON)
@QUICK
def test_a_control_state_with_anything_at_any_place(at, by):
    """Parsed or refused; then observed twice, and decided on."""
    observer, policy = Observer(), stack(Threshold(ThresholdParams()), GuardParams())
    sound = parse_control_state(STATE)
    for now_s, control in ((0.0, sound), (1.0, parse_control_state(replaced(STATE, at, by))), (2.0, sound)):
        seen = observer.observe(EngineSample(now_s, parse_loads(LOADS), control=control), now_s)
        decision = policy.decide(seen)
        if decision.schedule is not None:
            assert {row.arm for row in decision.schedule.rows} <= set(seen.built)


@given(st.sampled_from(list(paths(LOADS))), JSON)
@QUICK
def test_loads_with_anything_at_any_place(at, by):
    """Running requests are a count or unknown."""
    sample = parse_loads(replaced(LOADS, at, by))
    seen = Observer().observe(EngineSample(0.0, sample), 0.0)
    assert seen.running_reqs is None or seen.running_reqs >= 0
    assert seen.load_age_s is None or seen.load_age_s >= 0


@given(st.sampled_from(list(paths(INFO))), JSON)
@QUICK
def test_server_info_with_anything_at_any_place(at, by):
    """Parsed or refused."""
    parse_server_info(replaced(INFO, at, by))


@given(JSON)
@QUICK
def test_any_json(body):
    """None of the parsers minds."""
    assert parse_control_state(body) is None or body.get("controllable") is not None
    parse_loads(body)
    parse_server_info(body)


@given(st.data())
@QUICK
def test_an_exposition_with_anything_in_any_line(data):
    """Cut, doubled, overwritten."""
    lines = metrics("overlap_busy").splitlines()
    i = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[i])))
    lines[i] = lines[i][:cut] + data.draw(st.text(max_size=20))
    sample = parse_metrics("\n".join(lines))
    for rank in sample.ranks if sample else ():
        assert rank.running_reqs is None or rank.running_reqs >= 0


@given(st.text(max_size=200).map(lambda text: "sglang:num_running_reqs" + text))
@QUICK
def test_a_line_that_begins_like_a_gauge(text):
    """Labels without end, quotes, braces, control characters."""
    parse_metrics(text)
