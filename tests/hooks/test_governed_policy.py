"""The step policy: what it answers, what it feeds to SGLang's own, and that it never depends on chance."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.schedule import Probe, Row, Schedule
from tests.hooks.fakes import make_policy

THREE_THEN_OFF = Schedule([Row(1, 3), Row(4, 0, "warm")])


def test_sglang_rules_until_a_schedule_is_followed():
    """Without a schedule every call is SGLang's own."""
    policy = make_policy(depth=2)
    assert policy.get_steps_for_batch(5) == 2
    policy.result_of(2)
    assert policy.on_verify_complete([1, 0], 2) == 1  # what native answers
    assert policy.native.fed == [([1, 0], 2)]
    assert not policy.governed


def test_the_schedule_is_looked_up_by_batch_size():
    """A burst is answered in the very step that it arrives in."""
    policy = make_policy()
    policy.follow(THREE_THEN_OFF, None)
    assert [(policy.get_steps_for_batch(b), policy.gear) for b in (1, 3, 4, 200, 2)] == [
        (3, "on"),
        (3, "on"),
        (0, "warm"),
        (0, "warm"),
        (3, "on"),
    ]
    assert policy.switches == 3  # 2 -> 3 at the first step, 3 -> 0, 0 -> 3
    assert policy.decode_steps == 5


def test_a_depth_that_was_not_built_cannot_be_followed():
    """SGLang's scheduler dies on such a step, so it never gets that far."""
    policy = make_policy()
    with pytest.raises(ValueError, match="depth must be one of"):
        policy.follow(Schedule([Row(1, 5)]), None)
    with pytest.raises(ValueError, match="depth must be one of"):
        policy.follow(THREE_THEN_OFF, Probe(5, 10, 1))
    assert policy.get_steps_for_batch(1) == 2


def test_results_never_switch_while_governed():
    """A result that arrives a step late must not undo what the schedule decided."""
    policy = make_policy()
    policy.follow(THREE_THEN_OFF, None)
    policy.get_steps_for_batch(1)
    policy.result_of(3)
    assert policy.on_verify_complete([2], 1) is None
    assert policy.native.fed == []


def test_sglang_is_not_fed_with_results_of_foreign_steps():
    """After handing back, the governed step still in flight says nothing about SGLang's own depth."""
    policy = make_policy()
    policy.follow(THREE_THEN_OFF, None)
    policy.get_steps_for_batch(1)
    policy.follow(None, None)
    policy.get_steps_for_batch(1)  # SGLang's own step is launched before the governed one's result
    policy.result_of(3)
    assert policy.on_verify_complete([3], 1) is None
    policy.result_of(2)
    policy.on_verify_complete([1], 1)
    assert policy.native.fed == [([1], 1)]


def test_every_depth_gets_graphs_for_every_batch_size():
    """SGLang prunes graphs by its own rule; a schedule may ask for any depth at any batch size."""
    policy = make_policy()
    policy.set_cuda_graph_bs([8, 1, 4])
    assert policy.cuda_graph_bs_for_step(3) == [1, 4, 8]
    assert policy.native.graph_sizes == [8, 1, 4]
    policy.set_cuda_graph_bs(None)
    assert policy.cuda_graph_bs_for_step(3) is None


def depths(policy, batch_sizes):
    return [policy.get_steps_for_batch(b) for b in batch_sizes]


def test_probe_bursts_end_each_cycle():
    """5 steps a cycle, 2 a burst: three of the schedule, two of the probe; after two bursts no more."""
    policy = make_policy()
    policy.follow(Schedule([Row(1, 3)]), Probe(depth=1, every_steps=5, burst_steps=2, bursts=2))
    assert depths(policy, [1] * 14) == [3, 3, 3, 1, 1, 3, 3, 3, 1, 1, 3, 3, 3, 3]
    assert (policy.probe_steps, policy.probe_bursts) == (4, 2)


def test_steps_outside_the_probe_range_are_not_counted_and_end_a_burst():
    """Range 4..8: the two steps at batch size 1 leave the count alone; the one within the burst ends it."""
    policy = make_policy()
    policy.follow(Schedule([Row(1, 3)]), Probe(1, 4, 2, min_batch_size=4, max_batch_size=8))
    sizes = [4, 1, 1, 8, 5, 1, 5, 5, 5, 5]
    assert depths(policy, sizes) == [3, 3, 3, 3, 1, 3, 3, 3, 1, 1]


def test_renewing_the_same_plan_keeps_the_probe_running():
    """A holder renews every few seconds; a probe every 400 steps would otherwise never come."""
    policy = make_policy()
    for _ in range(2):
        policy.follow(Schedule([Row(1, 3)]), Probe(1, 4, 1))
        depths(policy, [1])
    policy.follow(Schedule([Row(1, 3)]), Probe(1, 4, 1))
    assert depths(policy, [1, 1]) == [3, 1]


def test_another_plan_starts_the_probe_anew():
    """Counters of one plan say nothing about another."""
    policy = make_policy()
    policy.follow(Schedule([Row(1, 3)]), Probe(1, 3, 1))
    depths(policy, [1, 1])
    policy.follow(Schedule([Row(1, 2)]), Probe(1, 3, 1))
    assert depths(policy, [1, 1, 1]) == [2, 2, 1]


probes = st.builds(
    lambda depth, every, burst, low, span, bursts: Probe(
        depth, every, min(burst, every), "on" if depth else "warm", low, low + span, bursts
    ),
    st.integers(0, 3), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 5), st.integers(0, 5), st.integers(1, 4),
)  # fmt: skip
schedules = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(
    lambda ds: Schedule(Row(i * 2 + 1, d, "on" if d else "warm") for i, d in enumerate(ds))
)
events = st.lists(
    st.integers(1, 12) | st.tuples(schedules, st.none() | probes) | st.just((None, None)), max_size=80
)


def run(events_):
    policy = make_policy()
    launched = []
    for event in events_:
        if isinstance(event, tuple):
            policy.follow(*event)
        else:
            launched.append((event, policy.get_steps_for_batch(event), policy.gear))
    return policy, launched


@given(events)
def test_the_same_events_give_the_same_steps_on_every_rank(events_):
    """Two ranks that see the same batches and commands launch the same steps and say so by one digest."""
    (first, launched), (second, launched_too) = run(events_), run(events_)
    assert launched == launched_too
    assert (first.digest, first.decode_steps) == (second.digest, second.decode_steps)
    assert all(depth in first.built_depths for _, depth, _ in launched)
    changes = [key for key, _ in groupby([(2, "on")] + [(d, g) for _, d, g in launched])]
    assert first.switches == len(changes) - 1


@given(events, probes)
def test_probe_steps_stay_within_the_plan(events_, probe):
    """Under one plan there are at most `bursts` bursts, of at most `burst_steps` steps each."""
    policy = make_policy()
    policy.follow(Schedule([Row(1, 3)]), probe)
    depths(policy, [e for e in events_ if isinstance(e, int)])
    assert policy.probe_bursts <= probe.bursts
    assert policy.probe_steps <= policy.probe_bursts * probe.burst_steps


@pytest.mark.parametrize("other", [(1, 3, "on"), (2, 2, "on"), (2, 0, "warm")])
def test_the_digest_tells_sequences_apart(other):
    """Another batch size, depth or gear in one step changes the digest for good."""
    digests = set()
    for batch_size, depth, gear in ((2, 3, "on"), other):
        policy = make_policy()
        policy.follow(Schedule([Row(1, depth, gear)]), None)
        policy.get_steps_for_batch(batch_size)
        policy.follow(Schedule([Row(1, 1)]), None)
        depths(policy, [1] * 50)
        digests.add(policy.digest)
    assert len(digests) == 2


def test_results_find_their_launch_though_they_arrive_late():
    """Overlap scheduling: two launches in flight; each result gets the gear of its own launch."""
    policy = make_policy()
    policy.follow(Schedule([Row(1, 0, "cold")]), None)
    policy.get_steps_for_batch(1)
    policy.follow(Schedule([Row(1, 2)]), None)
    policy.get_steps_for_batch(1)
    assert policy.result_of(0)[:2] == (0, "cold")
    policy.get_steps_for_batch(1)
    assert policy.result_of(2)[:2] == (2, "on")


def test_a_lost_launch_does_not_shift_the_rest():
    """A launch without a result is skipped; a result without a launch is taken for SGLang's own gear."""
    policy = make_policy()
    for depth in (1, 3):
        policy.follow(Schedule([Row(1, depth)]), None)
        policy.get_steps_for_batch(1)
    assert policy.result_of(3)[:2] == (3, "on")
    assert policy.result_of(0)[:2] == (0, "warm")


def test_launches_in_flight_are_bounded():
    """A host that never delivers results costs no memory."""
    policy = make_policy()
    depths(policy, [1] * 10_000)
    assert len(policy._in_flight) == 16


def test_a_failing_lookup_hands_back_to_sglang():
    """Our own exception in the decode path: counted, and SGLang's own depth comes out, now and later."""
    failures = []
    policy = make_policy(failed=failures.append)
    policy.follow(Schedule([Row(1, 3)]), None)
    policy._schedule.rows = None  # no code of ours does this
    policy._schedule._starts = None
    assert depths(policy, [1, 1]) == [2, 2]
    assert failures == ["looking up the schedule"]
    assert not policy.governed


def test_the_gear_ahead_can_be_asked_without_counting():
    """Plain decoding asks before a prefill which gear its requests will decode in."""
    policy = make_policy()
    assert policy.gear_at(8) == "on"
    policy.follow(Schedule([Row(1, 3), Row(8, 0, "cold")]), Probe(1, 1, 1))
    assert (policy.gear_at(7), policy.gear_at(8)) == ("on", "cold")
    assert policy.decode_steps == policy.probe_steps == 0
