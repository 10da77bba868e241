from __future__ import annotations

import numpy as np
import pytest

from policies.drift import ChangeRate, Cusum, DriftParams
from policies.goodput import Goodput
from policies.probing import Pending, ProbeParams, Prober, gain_above, normal_cdf
from policies.types import OFF_COLD, Arm, Observation, Probe
from tests.policies.bench import BUILT, Bench


def test_the_gain_of_a_coin_toss() -> None:
    """X ~ N(0, 1): E[X; X > 0] = 1 / sqrt(2 pi) = 0.3989; above 1 it is phi(1) = 0.2420."""
    gain = gain_above(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([0.0, 1.0]))
    assert gain == pytest.approx([0.3989, 0.2420], abs=1e-3)


def test_the_normal_distribution_is_close_enough() -> None:
    """Phi(-1.96), Phi(0), Phi(1) = 0.0250, 0.5, 0.8413."""
    assert normal_cdf(np.array([-1.96, 0.0, 1.0])) == pytest.approx([0.0250, 0.5, 0.8413], abs=4e-4)


def test_an_arm_that_cannot_win_is_not_probed() -> None:
    """At 256 requests depth 4 takes 53 ms, off 10: once that is known, no acceptance could make it win."""
    policy = Bench(Goodput(), batch=lambda _t: 256).run(60).policy
    before = policy.prober.probes
    bench = Bench(policy, batch=lambda _t: 256, schedule=policy._current).run(120)
    later = [d.probe.arm for d in bench.decisions if d.probe]
    assert Arm(4) not in later
    assert policy.prober.probes - before <= 12


def test_a_rest_doubles_while_the_answer_stays_the_same() -> None:
    """5, 10, 20 s after probes that changed nothing; a drift alarm ends it."""
    prober, rests = Prober(ProbeParams()), []
    for now_s in (0.0, 100.0, 200.0):
        pretend(prober, now_s)
        prober.progress(8, 7, now_s, OFF_COLD, cap_s=1000.0)
        rests.append(prober._rests[3, Arm(2)].until_s - now_s)
    assert rests == [5.0, 10.0, 20.0]
    prober.reset()
    assert not prober._rests


def test_a_probe_that_changed_the_choice_ends_the_rests_of_its_bucket() -> None:
    """The bucket looks different now: everything may be asked again."""
    prober = Prober()
    pretend(prober, 0.0)
    prober.progress(8, 7, 0.0, OFF_COLD, cap_s=1000.0)
    pretend(prober, 10.0)
    prober.progress(8, 7, 10.0, Arm(2), cap_s=1000.0)
    assert not prober._rests


def test_a_probe_without_a_timed_step_is_no_answer() -> None:
    """Prefills came between all its steps: it may be repeated at once."""
    prober = Prober()
    pretend(prober, 0.0)
    prober.progress(8, 0, 0.0, OFF_COLD, cap_s=1000.0)
    assert not prober._rests


def test_a_probe_whose_batch_sizes_do_not_come_up_is_dropped() -> None:
    """30 s without a step of it, and it is given up; with steps it goes on."""
    prober = Prober()
    pretend(prober, 0.0)
    prober.progress(0, 0, 29.0, OFF_COLD, cap_s=1000.0)
    assert prober.pending is not None
    prober.progress(0, 0, 30.0, OFF_COLD, cap_s=1000.0)
    assert prober.pending is None


def pretend(prober: Prober, now_s: float) -> None:
    """Depth 2 was asked for 8 steps in bucket 3, while off was chosen there."""
    prober.pending = Pending(Probe(Arm(2), 8, 8, 4, 7, 1), 3, OFF_COLD, now_s)


def test_two_equal_plans_in_a_row_leave_a_tick_between() -> None:
    """The engine takes an identical plan as a renewal: its burst would not run again."""
    bench = Bench(Goodput(), batch=lambda _t: 24).run(120)
    probes = [d.probe for d in bench.decisions]
    done = [
        (a, b)
        for a, b, o in zip(probes, probes[1:], bench.observations[1:], strict=False)
        if a is not None and a == b and o.probe_steps
    ]
    assert done == []


def test_a_restart_of_the_engine_drops_the_probe() -> None:
    """What the old process was asked is gone."""
    policy = Goodput()
    Bench(policy, batch=lambda _t: 24).run(1)
    assert policy.prober.pending is not None
    policy.decide(Observation(now_s=5.0, built=BUILT, engine_epoch=1, in_use=Arm(4)))
    assert policy.prober.pending is None


def test_cusum_ignores_noise_and_one_absurd_tick_and_catches_a_shift() -> None:
    """Zeros, one reading of 1e9, then a lasting shift of 2 deviations: alarm at 12 / (2 - 0.5) = 9 ticks."""
    cusum = Cusum(DriftParams())
    assert not any(cusum.update(0.0) for _ in range(100))
    assert not cusum.update(1e9)
    for _ in range(20):
        cusum.update(0.0)
    ticks = next(i for i in range(1, 50) if cusum.update(-2.0))
    assert ticks == 9


def test_the_rate_of_change_is_learned() -> None:
    """Nothing known: one in 1800 s.  Twelve in an hour: 13 / 5400 s."""
    rate = ChangeRate()
    assert rate.per_s == pytest.approx(1 / 1800)
    rate.watch(3600.0)
    for _ in range(12):
        rate.alarm()
    assert rate.per_s == pytest.approx(13 / 5400)


@pytest.mark.parametrize(
    "params", [{"share": 1.5}, {"bursts": ()}, {"bursts": (2,)}, {"rest_s": 0.0}, {"max_rest_s": 1.0}]
)
def test_parameters_out_of_range_are_refused(params: dict[str, object]) -> None:
    """The error names the parameter."""
    with pytest.raises(ValueError, match=next(iter(params))):
        ProbeParams(**params)
