"""What users reported of others' controllers, as cases of ours; docs/field-reports.md names the threads."""

from policies.crash_loop import CrashLoop
from policies.guards import GuardParams, stack
from policies.types import Action, Arm, CellDelta, Decision, Gear, Observation, Reason, Schedule
from policies.verification import Verified

COLD, DEEP = Arm(0, Gear.COLD), Arm(3)
BUILT = (Arm(0, Gear.WARM), COLD, DEEP)


class Proposes:
    """A policy that proposes one arm, whatever it sees."""

    name = "proposes"

    def __init__(self, arm):
        self.arm = arm

    def decide(self, _observation):
        return Decision(Action.GOVERN, Reason.FIXED, "told", Schedule.constant(self.arm))


def seen(now_s, arm, seconds_a_step, *, epoch=0):
    """A tick of 50 clean steps of 64 requests at `arm`; drafts are never accepted."""
    cell = CellDelta(
        batch_bucket=64,
        arm=arm,
        steps=50,
        request_steps=50 * 64,
        tokens=50 * 64,
        accepted=(50 * 64, *[0] * arm.depth),
        accepted_after_cold=(0,) * (arm.depth + 1),
        timed_steps=50,
        timed_seconds=50 * seconds_a_step,
        timed_seconds_sq=50 * seconds_a_step**2,
        timed_request_steps=50 * 64,
        timed_context_tokens=50 * 64 * 500,
    )
    return Observation(now_s=now_s, built=BUILT, engine_epoch=epoch, load_age_s=0.1, cells=(cell,))


def test_an_engine_that_crashes_again_and_again_is_pinned_to_off_for_an_hour():
    """Three restarts within 15 minutes: off, whatever the policy proposes; an hour later it decides again."""
    guard = CrashLoop(Proposes(DEEP))
    said = [guard.decide(seen(60.0 * n, DEEP, 0.01, epoch=n)) for n in range(4)]
    assert [decision.reason for decision in said] == [Reason.FIXED] * 3 + [Reason.CRASH_LOOP]
    assert said[-1].schedule.arm_for(1).depth == 0
    minutes = range(4, 4 + 60)
    later = [guard.decide(seen(60.0 * n, COLD, 0.01, epoch=3)).reason for n in minutes]
    assert later[:58] == [Reason.CRASH_LOOP] * 58
    assert later[-1] is Reason.FIXED


def test_a_change_that_collapses_throughput_is_taken_back_within_seconds_and_rests():
    """Off gave a tenth (640 instead of 6400 tok/s): the depth before is back, and off rests."""
    policy = Proposes(DEEP)
    guard = Verified(policy)
    for tick in range(10):
        guard.decide(seen(float(tick), DEEP, 0.01))
    policy.arm = COLD
    decisions = [guard.decide(seen(float(tick), DEEP if tick == 10 else COLD, 0.1)) for tick in range(10, 20)]
    taken_back = next(n for n, decision in enumerate(decisions) if decision.reason is Reason.ROLLED_BACK)
    assert taken_back <= 6
    assert decisions[taken_back].schedule == Schedule.constant(DEEP)
    assert decisions[taken_back + 1].schedule.arm_for(64) == DEEP


def test_a_policy_that_flaps_as_fast_as_it_can_stays_below_the_rate_that_hurt():
    """An hour of changing its mind every second: a quarter of the 1100 switches an hour that cost 14 %."""
    policy = Proposes(DEEP)
    guarded = stack(policy, GuardParams())
    switches, before = 0, None
    for second in range(3600):
        policy.arm = COLD if second % 2 else DEEP
        decision = guarded.decide(seen(float(second), policy.arm, 0.01))
        if decision.schedule is not None and decision.schedule != before:
            switches += 1
            before = decision.schedule
    assert 0 < switches <= 1100 // 4
