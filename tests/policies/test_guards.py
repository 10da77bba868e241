"""Each guard alone, and the stack."""

from __future__ import annotations

import dataclasses

import pytest

from policies.guards import Contained, DryRun, Dwell, Freshness, GuardParams, SwitchBudget, stack
from policies.override import Override
from policies.types import (
    Action,
    Arm,
    Decision,
    Directive,
    Gear,
    Mode,
    Observation,
    Probe,
    Reason,
    Row,
    Schedule,
)

COLD, WARM = Arm(0, Gear.COLD), Arm(0, Gear.WARM)
BUILT = (WARM, COLD, Arm(1), Arm(2), Arm(3))


class Script:
    """A policy that proposes what it is told."""

    name = "script"

    def __init__(self, depth=3):
        self.depth = depth
        self.schedule = None
        self.probe = None

    def decide(self, observation):
        if self.probe:
            arm = Arm(self.depth)
            return Decision(Action.GOVERN, Reason.FIXED, "x", Schedule.constant(arm), self.probe)
        if self.schedule:
            return Decision(Action.GOVERN, Reason.FIXED, str(self.schedule), self.schedule)
        if self.depth is None:
            return Decision(Action.HOLD, Reason.FIXED, "held")
        if isinstance(self.depth, Exception):
            raise self.depth
        arm = Arm(self.depth) if self.depth else WARM
        return Decision(Action.GOVERN, Reason.FIXED, f"depth {arm}", Schedule.constant(arm))


def at(now_s, age_s=0.0, **more):
    return Observation(now_s=now_s, built=BUILT, load_age_s=age_s, **more)


def depth(decision):
    return decision.schedule.arm_for(1).depth if decision.schedule else None


def test_fresh_input_passes():
    """Up to and including the limit."""
    guard = Freshness(Script(), max_age_s=5, lost_after_s=60)
    assert depth(guard.decide(at(0, age_s=5.0))) == 3


@pytest.mark.parametrize("age_s", [5.1, None])
def test_stale_input_holds_and_lost_input_hands_back(age_s):
    """Old or unknown: hold; for more than 60 s: release; sound again: pass."""
    guard = Freshness(Script(), max_age_s=5, lost_after_s=60)
    guard.decide(at(0))
    held = guard.decide(at(60, age_s))
    assert (held.action, held.reason) == (Action.HOLD, Reason.STALE_INPUT)
    lost = guard.decide(at(60.1, age_s))
    assert (lost.action, lost.reason) == (Action.RELEASE, Reason.LOST_INPUT)
    assert depth(guard.decide(at(61, 0.1))) == 3


def test_suspect_input_holds_and_says_why():
    """Figures that contradict each other are not acted on."""
    guard = Freshness(Script(), max_age_s=5, lost_after_s=60)
    held = guard.decide(at(0, suspect=("running_zero_with_queue",)))
    assert (held.action, held.reason) == (Action.HOLD, Reason.SUSPECT_INPUT)
    assert held.detail == "held: running_zero_with_queue"


@pytest.mark.parametrize(
    "guard_of",
    [
        lambda script: Dwell(script, down_s=100, up_s=100),
        lambda script: SwitchBudget(script, max_switches=1, window_s=100),
    ],
)
def test_a_change_that_is_held_does_not_hold_its_probe(guard_of):
    """What a probe teaches does not depend on the change; one of what is in force teaches nothing."""
    script = Script(1)
    guard = guard_of(script)
    guard.decide(at(0))
    script.depth = 2
    guard.decide(at(200, in_force=Schedule.constant(Arm(1))))
    script.depth, in_force = 3, Schedule.constant(Arm(2))
    script.probe = Probe(Arm(1), 8, 8, 1, 7, 1)
    held = guard.decide(at(201, in_force=in_force))
    assert (held.action, held.schedule, held.probe) == (Action.GOVERN, in_force, script.probe)
    assert held.detail.startswith("held")
    for probe, now in ((Probe(Arm(2), 8, 8, 1, 7, 1), in_force), (script.probe, None), (None, in_force)):
        script.probe = probe
        held = guard.decide(at(202, in_force=now))
        assert (held.action, held.schedule, held.probe) == (Action.HOLD, None, None)


def test_off_is_quick_and_on_is_patient():
    """1 s to draft less, 10 s to draft more; the schedule to start with is no change."""
    script = Script(3)
    guard = Dwell(script, down_s=1, up_s=10)
    guard.decide(at(0))
    script.depth = 2
    assert depth(guard.decide(at(0))) == 2
    script.depth = 0
    assert guard.decide(at(0.9)).reason is Reason.DWELL
    assert depth(guard.decide(at(1.0))) == 0
    script.depth = 3
    held = guard.decide(at(10.9))
    assert (held.action, held.reason) == (Action.HOLD, Reason.DWELL)
    assert held.evidence["left_s"] == pytest.approx(0.1)
    assert depth(guard.decide(at(11.0))) == 3


def test_only_going_back_is_waited_for():
    """A change of gear cuts nothing, and a cut at batch size 64 is no reason to wait at batch size 1."""
    script = Script(0)
    guard = Dwell(script, down_s=1, up_s=10)
    guard.decide(at(0))
    script.schedule = Schedule((Row(1, Arm(0, Gear.WARM)),))
    assert guard.decide(at(1)).reason is not Reason.DWELL
    script.schedule = Schedule((Row(1, Arm(2)),))
    assert guard.decide(at(2)).schedule == script.schedule
    script.schedule = Schedule((Row(1, Arm(2)), Row(64, COLD)))
    assert guard.decide(at(3)).schedule == script.schedule
    script.schedule = Schedule((Row(1, Arm(3)), Row(64, COLD)))
    assert guard.decide(at(4)).schedule == script.schedule
    script.schedule = Schedule((Row(1, Arm(3)), Row(64, Arm(2))))
    assert guard.decide(at(12.9)).evidence["left_s"] == pytest.approx(0.1)
    assert guard.decide(at(13)).schedule == script.schedule


def test_another_depth_less_deep_is_no_way_back():
    """4 cut to off, then 1, which a probe has found: at once; off again, and back to 1 has to wait."""
    script = Script(3)
    guard = Dwell(script, down_s=1, up_s=10)
    guard.decide(at(0))
    for now_s, wanted in ((1, 0), (2, 1), (3, 0)):
        script.depth = wanted
        assert depth(guard.decide(at(now_s))) == wanted
    script.depth = 1
    assert guard.decide(at(12.9)).reason is Reason.DWELL
    assert depth(guard.decide(at(13))) == 1


def test_the_first_schedule_and_one_after_a_restart_or_release_are_no_changes():
    """Nothing is in force then, so there is nothing to dwell on."""
    script = Script(1)
    guard = Dwell(script, down_s=100, up_s=100)
    assert depth(guard.decide(at(0))) == 1
    script.depth = 3
    assert depth(guard.decide(at(1, engine_epoch=1))) == 3


def test_the_switch_budget_stops_a_flapping_policy_at_the_shallow_end():
    """2 changes in 100 s; then only shallower ones pass, until the window has moved on."""
    script = Script(1)
    guard = SwitchBudget(script, max_switches=2, window_s=100)
    passed = []
    for now_s, wanted in ((0, 1), (1, 2), (2, 1), (3, 2), (4, 0), (5, 2)):
        script.depth = wanted
        passed.append(depth(guard.decide(at(now_s))))
    assert passed == [1, 2, 1, None, 0, None]
    assert guard.decide(at(6)).reason is Reason.SWITCH_BUDGET
    assert depth(guard.decide(at(102))) == 2


def test_a_policy_that_raises_holds_and_then_falls_back():
    """Twice held, the third time handed back; one sound decision and the count starts over."""
    script = Script(ZeroDivisionError("oops"))
    guard = Contained(script, fallback_after=3, fallback="native")
    actions = [guard.decide(at(t)).action for t in range(3)]
    assert actions == [Action.HOLD, Action.HOLD, Action.RELEASE]
    assert "policy script failed 4 times in a row: ZeroDivisionError: oops" in guard.decide(at(3)).detail
    script.depth = 2
    assert depth(guard.decide(at(4))) == 2
    script.depth = ZeroDivisionError("oops")
    assert guard.decide(at(5)).action is Action.HOLD


def test_a_policy_that_names_an_arm_that_is_not_built_is_contained():
    """The engine would refuse it, or worse."""
    decision = Contained(Script(9), fallback_after=3, fallback="hold").decide(at(0))
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.POLICY_ERROR)


@pytest.mark.parametrize(
    ("directive", "action", "wanted"),
    [
        (Directive(Mode.OFF), Action.GOVERN, COLD),
        (Directive(Mode.ON), Action.GOVERN, Arm(3)),
        (Directive(Mode.ON, depth=1), Action.GOVERN, Arm(1)),
        (Directive(Mode.NATIVE), Action.RELEASE, None),
        (Directive(Mode.ON, depth=7), Action.HOLD, None),
        (Directive(Mode.AUTO), Action.GOVERN, Arm(2)),
    ],
)
def test_an_override_is_obeyed(directive, action, wanted):
    """Off is depth 0 everywhere, cold where that is built; a depth that is not built holds."""
    decision = Override(Script(2)).decide(at(0, directive=directive))
    assert decision.action is action
    assert (decision.schedule and decision.schedule.arm_for(500)) == wanted


def test_the_end_of_an_override_restores_what_the_policy_wanted_though_it_holds_now():
    """A hold would keep the operator's schedule for as long as the input is stale."""
    script = Script(2)
    policy = Override(script)
    policy.decide(at(0))
    policy.decide(at(1, directive=Directive(Mode.OFF)))
    script.depth = None
    restored = policy.decide(at(2))
    assert (restored.action, depth(restored)) == (Action.GOVERN, 2)
    assert policy.decide(at(3)).action is Action.HOLD


def test_the_end_of_an_override_with_nothing_to_restore_releases():
    """The policy never spoke: SGLang's own choice."""
    policy = Override(Script(None))
    policy.decide(at(0, directive=Directive(Mode.OFF)))
    assert policy.decide(at(1)).action is Action.RELEASE


def test_dry_run_holds_and_says_what_it_would_do():
    """The reason of the proposal stays, nothing is in force."""
    decision = DryRun(Script(2)).decide(at(0))
    assert (decision.action, decision.reason, decision.schedule) == (Action.HOLD, Reason.FIXED, None)
    assert decision.evidence["would_schedule"] == "1+: 2"


def test_the_stack_obeys_an_operator_whatever_its_guards_say():
    """Stale input, a dwell that has not passed: the override goes through in the same turn."""
    policy = stack(Script(3), GuardParams())
    policy.decide(at(0))
    decision = policy.decide(at(0.1, age_s=None, directive=Directive(Mode.OFF)))
    assert decision.schedule == Schedule.constant(COLD)


def test_the_stack_replays_to_the_same_decisions():
    """Decisions depend on the observations alone."""
    script = [at(t * 0.7, age_s=None if t % 7 == 3 else 0.1, batch_size=t % 90) for t in range(200)]

    def run():
        policy = stack(Script(2), GuardParams())
        return [dataclasses.asdict(policy.decide(o)) for o in script]

    assert run() == run()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_age_s": 0.0}, "max_age_s must be > 0, got 0.0"),
        ({"max_age_s": float("nan")}, "max_age_s must be > 0, got nan"),
        ({"dwell_up_s": -1.0}, "dwell_up_s must be >= 0, got -1.0"),
        ({"lost_after_s": 5.0}, "lost_after_s must be above max_age_s"),
        ({"max_switches": 0}, "max_switches must be >= 1, got 0"),
        ({"fallback": "off"}, "fallback must be native or hold, got 'off'"),
    ],
)
def test_guard_parameters_out_of_range_are_named(params, says):
    """Field, rule and value."""
    with pytest.raises(ValueError, match=says):
        GuardParams(**params)
