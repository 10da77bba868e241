"""No observation, however broken, makes a policy raise or name what is not built; what is better is found."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bandit import Bandit
from policies.goodput import Goodput
from policies.guards import GuardParams, stack
from policies.types import (
    OFF_COLD,
    OFF_WARM,
    Action,
    Arm,
    CellDelta,
    Gear,
    Observation,
    Row,
    Schedule,
)
from tests.policies.bench import Bench

ARMS = (Arm(0, Gear.FROZEN), OFF_COLD, OFF_WARM, Arm(1), Arm(2), Arm(3), Arm(7))
numbers = st.one_of(
    st.integers(-5, 5000),
    st.floats(-1e3, 1e6),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 0, 2**70, None, "7", True]),
)
counts = st.lists(numbers, max_size=9).map(tuple)
cells = st.builds(CellDelta, numbers, st.sampled_from(ARMS), *[numbers] * 3, counts, counts, *[numbers] * 12)
plausible = st.builds(
    lambda batch, arm, steps, s, prefills, tokens: CellDelta(
        batch, arm, steps, steps * batch, 2 * steps * batch, (steps * batch,) + (0,) * arm.depth,
        (0,) * (arm.depth + 1), steps, steps * s, steps * s * s, steps * batch, steps * batch * 100,
        prefills, prefills * s, prefills, prefills * 3 * s, prefills, prefills * 2, tokens,
    ),
    st.sampled_from([1, 2, 24, 256, 1024]), st.sampled_from(ARMS), st.integers(1, 500), st.floats(1e-6, 50.0),
    st.integers(0, 500), st.integers(0, 10**9),
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


CHOICE = (OFF_WARM, Arm(1), Arm(2), Arm(4))
engines = st.tuples(
    st.sampled_from(CHOICE),  # the best arm
    st.sampled_from(CHOICE),  # the arm that the engine starts with
    st.integers(1, 300),  # requests
    st.floats(0.05, 0.95),  # acceptance of every draft
    st.floats(0.0005, 0.2),  # seconds a token takes with the best arm
    st.integers(0, 1000),
)


def tokens(arm: Arm, p: float) -> float:
    """Expected tokens per request and step."""
    return sum(p**j for j in range(arm.depth + 1))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(engines)
def test_an_arm_that_is_strictly_better_is_found(engine: tuple[Arm, Arm, int, float, float, int]) -> None:
    """One of four arms takes a fifth less time per token: in force within a minute, on any machine."""
    best, start, batch, p, token_s, seed = engine

    def seconds(_batch: int, arm: Arm) -> float:
        return token_s * tokens(arm, p) * (1.0 if arm == best else 1.25)

    bench = Bench(
        Goodput(), lambda _t: batch, p=lambda _t: p, seconds=seconds, built=CHOICE, seed=seed,
        schedule=Schedule.constant(start),
    ).run(60)  # fmt: skip
    assert bench.schedule.arm_for(batch) == best


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(engines, st.floats(0.01, 0.15))
def test_noise_alone_does_not_make_it_flap(
    engine: tuple[Arm, Arm, int, float, float, int], noise: float
) -> None:
    """Four arms of equal goodput under any noise: at most three changes of what is in use in two minutes.

    One in eight such runs changes once (60 runs by hand), which between equals costs nothing.
    """
    _, start, batch, p, token_s, seed = engine
    bench = Bench(
        Goodput(), lambda _t: batch, p=lambda _t: p, seconds=lambda _b, arm: token_s * tokens(arm, p),
        built=CHOICE, seed=seed, noise=noise, schedule=Schedule.constant(start),
    )  # fmt: skip
    in_use = [bench.run(1).schedule.arm_for(batch) for _ in range(120)]
    assert sum(a != b for a, b in itertools.pairwise(in_use)) <= 3
