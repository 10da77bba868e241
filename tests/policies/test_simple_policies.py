"""fixed, native, threshold: what an operator writes down by hand."""

from __future__ import annotations

import pytest

from policies import registry
from policies.fixed import Fixed, FixedParams
from policies.native import Native
from policies.threshold import Threshold, ThresholdParams, ThresholdRow
from policies.types import Action, Arm, Gear, Observation, Reason

COLD, WARM = Arm(0, Gear.COLD), Arm(0, Gear.WARM)
BUILT = (WARM, COLD, Arm(1), Arm(2), Arm(3))
TABLE = (ThresholdRow(1, 3), ThresholdRow(24, 1), ThresholdRow(64, 0))


def seen(batch_size=None, queue_reqs=None, built=BUILT):
    return Observation(now_s=0.0, built=built, batch_size=batch_size, queue_reqs=queue_reqs, load_age_s=0.0)


def boundaries(decision):
    return [(row.min_batch_size, row.arm.depth) for row in decision.schedule.rows]


@pytest.mark.parametrize(
    ("depth", "built", "arm"),
    [
        (2, BUILT, Arm(2)),
        (None, BUILT, Arm(3)),
        (0, BUILT, COLD),
        (0, (WARM, Arm(3)), WARM),
        (2, (WARM, Arm(1), Arm(4)), Arm(1)),
        (9, BUILT, Arm(3)),
    ],
)
def test_fixed_takes_its_depth_or_the_next_shallower_that_is_built(depth, built, arm):
    """Never an arm that is not built, and never deeper than asked."""
    decision = Fixed(FixedParams(depth)).decide(seen(built=built))
    assert decision.schedule.arm_for(999) == decision.schedule.arm_for(1) == arm


@pytest.mark.parametrize(("built", "reason"), [((), Reason.NOT_CONTROLLED), ((Arm(3),), Reason.NOT_BUILT)])
def test_fixed_holds_when_nothing_shallow_enough_is_built(built, reason):
    """Depth 2 where only 3 is built: said.  Nothing is known to be built: that is no fault of the depths."""
    decision = Fixed(FixedParams(2)).decide(seen(built=built))
    assert (decision.action, decision.reason) == (Action.HOLD, reason)


def test_native_releases():
    """Whatever is seen."""
    assert Native().decide(seen()).action is Action.RELEASE


def test_threshold_hands_the_whole_table_to_the_engine():
    """So that a burst is answered in the next step, not at the next tick."""
    decision = Threshold(ThresholdParams(TABLE)).decide(seen(batch_size=3))
    assert boundaries(decision) == [(1, 3), (24, 1), (64, 0)]
    assert decision.schedule.arm_for(64) == WARM


def test_threshold_lowers_a_boundary_once_it_is_crossed_and_raises_it_again():
    """24 with a hysteresis of 4: crossed at 24, lowered to 20, back only below 20."""
    policy = Threshold(ThresholdParams(TABLE, hysteresis_reqs=4))
    steps = [(23, 24), (24, 20), (21, 20), (20, 20), (19, 24), (23, 24)]
    assert [boundaries(policy.decide(seen(n)))[1][0] for n, _ in steps] == [b for _, b in steps]


def test_threshold_never_lowers_a_boundary_onto_the_row_before():
    """Rows at 1, 2, 3 with a hysteresis of 4 stay strictly ascending."""
    rows = (ThresholdRow(1, 3), ThresholdRow(2, 1), ThresholdRow(3, 0))
    policy = Threshold(ThresholdParams(rows, hysteresis_reqs=4))
    assert boundaries(policy.decide(seen(9))) == [(1, 3), (2, 1), (3, 0)]


def test_threshold_says_which_way_it_went():
    """Down when the batch grows, up when it shrinks, stay in between."""
    policy = Threshold(ThresholdParams(TABLE))
    reasons = [policy.decide(seen(n)).reason for n in (1, 30, 30, 70, 1)]
    assert reasons == [
        Reason.THRESHOLD_STAY,
        Reason.THRESHOLD_DOWN,
        Reason.THRESHOLD_STAY,
        Reason.THRESHOLD_DOWN,
        Reason.THRESHOLD_UP,
    ]


def test_threshold_turns_off_while_the_queue_is_long_with_hysteresis_in_requests():
    """Off from 10 waiting, the table again below 4."""
    policy = Threshold(ThresholdParams(TABLE, off_at_queue_reqs=10, on_below_queue_reqs=4))
    depths = [policy.decide(seen(2, queue)).schedule.arm_for(2).depth for queue in (9, 10, 4, 3, 9)]
    assert depths == [3, 0, 0, 3, 3]


def test_threshold_keeps_its_state_while_the_load_is_unknown():
    """Unknown is not zero: the lowered boundary and the long queue stay."""
    policy = Threshold(ThresholdParams(TABLE, off_at_queue_reqs=10))
    policy.decide(seen(30, 12))
    decision = policy.decide(seen(None, None))
    assert boundaries(decision) == [(1, 0)]
    assert boundaries(policy.decide(seen(None, 0)))[1] == (20, 1)


def test_threshold_default_uses_the_deepest_depth_and_turns_off():
    """No depth of one server is a default."""
    decision = Threshold().decide(seen(1, built=(WARM, Arm(2), Arm(5))))
    assert boundaries(decision) == [(1, 5), (32, 0)]


def test_threshold_merges_rows_that_come_to_the_same_arm():
    """Depths 3 and 2 where only 1 is built: one row."""
    params = ThresholdParams((ThresholdRow(1, 3), ThresholdRow(8, 2)))
    assert boundaries(Threshold(params).decide(seen(1, built=(WARM, Arm(1))))) == [(1, 1)]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"rows": ()}, "rows must start at min_batch_size 1"),
        ({"rows": (ThresholdRow(2, 1),)}, "rows must start at min_batch_size 1"),
        ({"rows": (ThresholdRow(1, 1), ThresholdRow(1, 0))}, "ascend strictly"),
        ({"rows": (ThresholdRow(1, -1),)}, "depth must be >= 0"),
        ({"hysteresis_reqs": -1}, "hysteresis_reqs must be >= 0, got -1"),
        ({"off_at_queue_reqs": 0}, "off_at_queue_reqs must be >= 1"),
        ({"on_below_queue_reqs": 3}, "on_below_queue_reqs must be at most off_at_queue_reqs"),
        ({"gear": Gear.ON}, "gear must be warm, cold or frozen"),
    ],
)
def test_threshold_parameters_out_of_range_are_named(params, says):
    """Field, rule and value."""
    with pytest.raises(ValueError, match=says):
        ThresholdParams(**params)


def test_the_registry_lists_what_it_knows():
    """An unknown name is answered with the known ones."""
    with pytest.raises(registry.UnknownPolicyError, match=r"fixed, threshold, native.*got 'clever'"):
        registry.find("clever")


def test_a_third_party_adds_a_policy_through_an_entry_point(monkeypatch):
    """The entry point's name is the policy's name, its value a `PolicySpec`."""
    spec = registry.PolicySpec(FixedParams, Fixed)

    class Entry:
        name, value = "theirs", "their.package:spec"

        def load(self):
            return spec

    monkeypatch.setattr(
        registry, "entry_points", lambda group, name="theirs": [Entry()] if name == "theirs" else []
    )
    assert registry.find("theirs") is spec
    assert "theirs" in registry.names()
