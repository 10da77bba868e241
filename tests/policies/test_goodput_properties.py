"""No observation, however broken, makes a policy raise or name what is not built."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bandit import Bandit
from policies.goodput import Goodput
from policies.guards import GuardParams, stack
from policies.types import OFF_COLD, OFF_WARM, Action, Arm, CellDelta, Observation, Row, Schedule

ARMS = (OFF_COLD, OFF_WARM, Arm(1), Arm(2), Arm(3), Arm(7))
numbers = st.one_of(
    st.integers(-5, 5000),
    st.floats(-1e3, 1e6),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 0, 2**70, None, "7", True]),
)
counts = st.lists(numbers, max_size=9).map(tuple)
cells = st.builds(CellDelta, numbers, st.sampled_from(ARMS), *[numbers] * 3, counts, counts, *[numbers] * 7)
plausible = st.builds(
    lambda batch, arm, steps, s: CellDelta(
        batch, arm, steps, steps * batch, 2 * steps * batch, (steps * batch,) + (0,) * arm.depth,
        (0,) * (arm.depth + 1), steps, steps * s, steps * s * s, steps * batch, steps * batch * 100,
    ),
    st.sampled_from([1, 2, 24, 256, 1024]), st.sampled_from(ARMS), st.integers(1, 500), st.floats(1e-6, 50.0),
)  # fmt: skip
schedules = st.one_of(st.none(), st.sampled_from(ARMS).map(Schedule.constant))
observations = st.builds(
    Observation,
    now_s=st.one_of(st.floats(-10, 1e6), st.just(math.nan), st.just(math.inf)),
    built=st.lists(st.sampled_from(ARMS), max_size=6).map(tuple),
    engine_epoch=st.integers(0, 2),
    queue_reqs=numbers,
    batch_size=numbers,
    cells=st.lists(st.one_of(cells, plausible), max_size=6).map(tuple),
    decode_steps=numbers,
    prefill_batches=numbers,
    switches=numbers,
    probe_steps=numbers,
    in_force=schedules,
    in_use=st.one_of(st.none(), st.sampled_from(ARMS)),
    suspect=st.sampled_from([(), ("running_zero_with_queue",)]),
)


def check(decision: object, observation: Observation) -> None:
    """The schedule and the probe name built arms only."""
    if decision.action is Action.GOVERN:
        assert all(row.arm in observation.built for row in decision.schedule.rows)
    if decision.probe is not None:
        assert decision.probe.burst_steps <= decision.probe.every_steps
        assert 1 <= decision.probe.min_batch_size <= decision.probe.max_batch_size


@settings(max_examples=60, deadline=None)
@given(st.lists(observations, min_size=1, max_size=12))
def test_goodput_survives_any_observations(sequence: list[Observation]) -> None:
    """NaN, huge, negative, missing, reordered: never an exception, never an arm that is not built."""
    policy = Goodput()
    for observation in sequence:
        check(policy.decide(observation), observation)


@settings(max_examples=40, deadline=None)
@given(st.lists(observations, min_size=1, max_size=12))
def test_bandit_survives_any_observations(sequence: list[Observation]) -> None:
    """The same for the second opinion."""
    policy = Bandit()
    for observation in sequence:
        check(policy.decide(observation), observation)


@settings(max_examples=40, deadline=None)
@given(st.lists(observations, min_size=1, max_size=12))
def test_goodput_never_fails_inside_its_guards(sequence: list[Observation]) -> None:
    """The whole stack, with `Contained` catching what a policy must not do: it never has to."""
    policy = stack(Goodput(), GuardParams())
    for observation in sequence:
        assert policy.decide(observation).reason != "policy_error"


@settings(max_examples=30, deadline=None)
@given(st.lists(observations, min_size=1, max_size=8))
def test_what_any_observations_have_taught_can_be_imported(sequence: list[Observation]) -> None:
    """`export_state` is always something that `import_state` takes."""
    policy = Goodput()
    for observation in sequence:
        policy.decide(observation)
    Goodput().import_state(policy.export_state())


def test_a_schedule_that_was_in_force_but_is_not_built_is_replaced() -> None:
    """After a restart with fewer depths the old table names an arm that is gone."""
    gone = Schedule((Row(1, Arm(7)), Row(32, OFF_COLD)))
    observation = Observation(now_s=0.0, built=(OFF_COLD, Arm(2)), in_force=gone)
    decision = Goodput().decide(observation)
    assert decision.schedule.arm_for(1) == Arm(2)
    assert decision.schedule.arm_for(64) in (Arm(2), OFF_COLD)
