from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from policies.drift import ChangeRate, Cusum, DriftParams, Watch
from policies.goodput import Goodput
from policies.probing import Pending, ProbeParams, Prober, Prospect, Ran, gain_above, normal_cdf
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
        pretend(prober)
        prober.progress(Ran(8, 7, 1.0), now_s, OFF_COLD, cap_s=1000.0)
        rests.append(prober._rests[3, Arm(2)].until_s - now_s)
    assert rests == [5.0, 10.0, 20.0]
    prober.reset()
    assert not prober._rests


def test_a_probe_that_changed_the_choice_ends_the_rests_of_its_bucket() -> None:
    """The bucket looks different now: everything may be asked again."""
    prober = Prober()
    pretend(prober)
    prober.progress(Ran(8, 7, 1.0), 0.0, OFF_COLD, cap_s=1000.0)
    pretend(prober)
    prober.progress(Ran(8, 7, 1.0), 10.0, Arm(2), cap_s=1000.0)
    assert not prober._rests


def test_the_rest_of_an_arm_that_promises_more_and_is_not_sure_yet_does_not_grow() -> None:
    """5 s each time, also after longer ones: its next burst may settle it."""
    prober, rests = Prober(), []
    for now_s, ahead in ((0.0, False), (100.0, False), (200.0, True), (300.0, True)):
        pretend(prober)
        prober.progress(Ran(8, 7, 1.0), now_s, OFF_COLD, cap_s=1000.0, ahead=ahead)
        rests.append(prober._rests[3, Arm(2)].until_s - now_s)
    assert rests == [5.0, 10.0, 5.0, 5.0]


def test_a_probe_without_a_timed_step_is_no_answer() -> None:
    """Prefills came between all its steps: it may be repeated at once."""
    prober = Prober()
    pretend(prober)
    prober.progress(Ran(8, 0, 1.0), 0.0, OFF_COLD, cap_s=1000.0)
    assert not prober._rests


def test_a_probe_whose_batch_sizes_do_not_come_up_is_dropped() -> None:
    """2 s of other steps, and it is given up without a rest; while nothing is decoded it waits."""
    prober = Prober()
    pretend(prober)
    for now_s, busy_s in ((0.0, 1.0), (1.0, 0.0), (100.0, 0.9)):
        prober.progress(Ran(0, 0, busy_s), now_s, OFF_COLD, cap_s=1000.0)
        assert prober.pending is not None
    prober.progress(Ran(0, 0, 0.1), 101.0, OFF_COLD, cap_s=1000.0)
    assert prober.pending is None
    assert not prober._rests


def test_the_emptier_the_purse_the_more_a_probe_must_bring() -> None:
    """64 s of horizon and bursts of 4 steps of 4 ms: U = 4000; price 1/e when full, 4000/e when spent.

    A purse of 0.616 s now and 0.6 % of 64 s to come make 1 s.
    """
    prober = Prober()
    prospect = cast("Prospect", SimpleNamespace(cost_horizon_s=64.0, step_s=np.array([0.004, 0.1])))
    prices = []
    for spent_s in (0.0, 0.5, 1.0):
        prober.spent_s = spent_s
        prices.append(prober._price(prospect, 0.616))
    assert prices == pytest.approx([1 / math.e, math.sqrt(4000) / math.e, 4000 / math.e])


def test_all_probes_of_an_hour_take_one_percent_of_it_at_most() -> None:
    """0.6 % of what was decoded, and 0.4 % of the hour to come: 21.6 + 14.4 = 36 s of a busy hour."""
    prober = Prober()
    prober.account(0.0, 3600.0, 3600.0)
    assert prober._purse_s(1.0) == pytest.approx(36.0)


def test_a_burst_after_a_quiet_hour_lends_for_an_hour_of_bursts_to_what_must_be_tried_only() -> None:
    """36 s of 3600 were decoded: 0.216 s, and 0.4 % of another such hour, 0.144 s; to off, 14.4 s."""
    prober = Prober()
    prober.account(0.0, 36.0, 3600.0)
    assert prober._purse_s(prober._activity_so_far) == pytest.approx(0.216 + 0.144)
    assert prober._purse_s(1.0) == pytest.approx(0.216 + 14.4)


def pretend(prober: Prober) -> None:
    """Depth 2 was asked for 8 steps in bucket 3, while off was chosen there."""
    prober.pending = Pending(Probe(Arm(2), 8, 8, 4, 7, 1), 3, OFF_COLD)


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
    Bench(policy, batch=lambda _t: 24).run(2)
    assert policy.prober.pending is not None
    policy.decide(Observation(now_s=5.0, built=BUILT, engine_epoch=1, in_use=Arm(4)))
    assert policy.prober.pending is None


def test_times_that_wander_raise_no_alarm_and_a_jump_out_of_them_does() -> None:
    """8 % up for four ticks, 8 % down for four, by errors of 1 %: a bare CUSUM has an alarm in each swing.

    A jump of 40 % is found within ten ticks.
    """
    bare, watch = Cusum(DriftParams()), Watch(DriftParams())
    swings = [0.08 * (1 if tick // 4 % 2 else -1) for tick in range(240)]
    alarms = [(bare.update(residual / 0.01), watch.update(residual, 0.01)) for residual in swings]
    assert sum(by_error for by_error, _ in alarms) > 50
    assert not any(by_scatter for _, by_scatter in alarms[60:])
    assert any(watch.update(0.4, 0.01) for _ in range(10))


def test_a_small_change_that_lasts_is_found_where_times_are_quiet() -> None:
    """3 % up by errors of 1 %, where ticks scatter by 0.5 %: within ten ticks; a bare CUSUM takes five."""
    watch = Watch(DriftParams())
    assert not any(watch.update(0.005 * (-1) ** tick, 0.01) for tick in range(60))
    assert any(watch.update(0.03, 0.01) for _ in range(10))


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


def test_off_that_must_be_tried_is_saved_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 steps of off cost 0.16 s: of 0.15 s nothing is spent, on the cheaper depth 1 (0.12 s) neither."""
    monkeypatch.setattr(Prober, "_net_value", lambda *_: np.array([1.0, 5.0]))
    monkeypatch.setattr(Prober, "_may_probe", lambda *_: True)
    prospect = cast(
        "Prospect",
        SimpleNamespace(
            arms=(OFF_COLD, Arm(1)), first=np.array([True, False]), step_s=np.array([0.04, 0.03]),
            activity=0.0, clean_steps=1.0, cost_horizon_s=1800.0, chosen=np.array([1]), here=0,
        ),
    )  # fmt: skip
    prober = Prober()
    prober.account(0.0, 50.0, 50.0)
    prober._purse_s = lambda _activity: 0.15  # type: ignore[method-assign]
    assert prober.propose(prospect, 0.0, 3) is None
    prober._purse_s = lambda _activity: 0.2  # type: ignore[method-assign]
    proposed = prober.propose(prospect, 1.0, 3)
    assert proposed is not None
    assert proposed.arm == OFF_COLD
