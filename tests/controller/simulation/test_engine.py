"""The virtual-time engine: every time below can be added up by hand.

Tiny profile: plain 10 / 12 / 16 ms at batch size 1 / 2 / 4, depth 1 15 / 24, depth 2 16 / 28 ms;
a prefill costs 5 ms and 10 ms per 1000 tokens.  No noise; acceptance 0 or 1 leaves nothing to chance.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.simulation.acceptance import AfterOff, parse_acceptance
from controller.simulation.controls import FixedControl
from controller.simulation.engine import EngineConfig, Request, VirtualEngine


def run(engine, *requests, until_s=100.0):
    for request in requests:
        engine.submit(request)
    engine.run_until(until_s)
    return engine.finished


def test_a_request_alone_takes_its_prefill_and_a_step_per_token(make_engine):
    """1000 tokens in: 5 + 10 = 15 ms to the first of 5 tokens; 4 steps of 10 ms to the last."""
    (request,) = run(make_engine(), Request(0, 0.0, 1000, 5))
    assert request.first_token_s == pytest.approx(0.015)
    assert request.finish_s == pytest.approx(0.055)


def test_accepted_drafts_save_steps(make_engine):
    """At depth 1 with every draft accepted, 4 tokens take 2 steps of 15 ms: 15 + 30 = 45 ms."""
    (request,) = run(make_engine(FixedControl((1, "on"))), Request(0, 0.0, 1000, 5))
    assert request.finish_s == pytest.approx(0.045)


def test_tokens_beyond_the_last_one_are_not_counted(make_engine):
    """At depth 2 the second step yields 3 tokens of which 1 is wanted: 5 in all, and the KV pool is empty."""
    engine = make_engine(FixedControl((2, "on")))
    run(engine, Request(0, 0.0, 1000, 5))
    assert engine.emitted_tokens == 5
    assert engine.context_tokens == 0


def test_a_prefill_stops_the_decoding_of_others(make_engine):
    """The second request comes at 20 ms, within the first's step that ends at 25; its prefill lasts to 40.

    Then both decode at 12 ms: the first's tokens come at 15, 25, 52, 64, the second's at 40, 52.
    """
    first, second = Request(0, 0.0, 1000, 4), Request(1, 0.020, 1000, 2)
    run(make_engine(), first, second)
    assert second.first_token_s == pytest.approx(0.040)
    assert second.finish_s == pytest.approx(0.052)
    assert first.finish_s == pytest.approx(0.052 + 0.010)


def test_a_long_prompt_is_prefilled_in_chunks(make_engine):
    """2500 tokens in chunks of 1000: three prefills, 3 * 5 + 25 = 40 ms."""
    engine = make_engine(chunked_prefill_tokens=1000)
    (request,) = run(engine, Request(0, 0.0, 2500, 1))
    assert engine.prefill_batches == 3
    assert request.finish_s == pytest.approx(0.040)


def test_no_more_than_the_limit_run_at_once(make_engine):
    """The second waits until the first is done at 55 ms, and its own prefill takes 15 more."""
    engine = make_engine(max_running_requests=1)
    _, second = run(engine, Request(0, 0.0, 1000, 5), Request(1, 0.0, 1000, 2))
    assert second.first_token_s == pytest.approx(0.070)


def test_a_request_waits_until_the_kv_pool_has_room(make_engine):
    """Two of 1000 + 5 tokens do not fit into 1500: they run one after the other."""
    engine = make_engine(kv_tokens=1500)
    _, second = run(engine, Request(0, 0.0, 1000, 5), Request(1, 0.0, 1000, 2))
    assert second.first_token_s == pytest.approx(0.070)


def test_a_full_pool_sends_the_last_request_back_to_the_queue(make_engine):
    """Nothing is reserved, so both are admitted; 2 * (10 + 20) tokens do not fit into 50."""
    engine = make_engine(kv_tokens=50, new_token_ratio=0.0)
    first, second = run(engine, Request(0, 0.0, 10, 20), Request(1, 0.0, 10, 20))
    assert (first.retractions, second.retractions) == (0, 1)
    assert engine.emitted_tokens == 40
    assert engine.context_tokens == 0


def test_a_request_that_can_never_fit_is_refused(make_engine):
    """It must not block the queue for ever."""
    engine = make_engine(kv_tokens=100)
    run(engine, Request(0, 0.0, 95, 10), Request(1, 0.0, 10, 10))
    assert [r.index for r in engine.rejected] == [0]
    assert [r.index for r in engine.finished] == [1]


def test_a_change_of_arm_costs_once(make_engine):
    """Two steps of depth 1 (15 ms), then off (10 ms and 2 ms for the change), then off (10 ms)."""
    arms = [(1, "on"), (1, "on"), (0, "cold"), (0, "cold")]

    class Script(FixedControl):
        def arm_for(self, batch_size):
            return arms.pop(0)

    engine = make_engine(Script((0, "cold")), acceptance="0", switch_s=0.002)
    (request,) = run(engine, Request(0, 0.0, 1000, 5))
    assert request.finish_s == pytest.approx(0.015 + 0.015 + 0.015 + 0.012 + 0.010)


def test_a_request_drafts_badly_after_a_cold_spell_until_it_ends(make_engine):
    """After one cold step a factor of 0 leaves nothing accepted; a request that came later is not harmed."""
    arms = iter([(0, "cold"), *[(1, "on")] * 100])

    class Script(FixedControl):
        def arm_for(self, batch_size):
            return next(arms)

    engine = make_engine(Script((0, "cold")), acceptance="1", after_off=AfterOff(cold=0.0, frozen=0.0))
    early, late = Request(0, 0.0, 1000, 20), Request(1, 0.030, 1000, 20)
    run(engine, early, late)
    assert engine.accepted_drafts == 10  # 19 tokens to decode, two a step: the late one's ten steps
    assert (early.cold, late.cold) == (True, False)


class Arms(FixedControl):
    """One arm after the other, the last for ever; requests are prefilled for `prefill`."""

    def __init__(self, *arms, prefill="on"):
        super().__init__(arms[-1])
        self._arms, self._prefill = list(arms), prefill

    def arm_for(self, batch_size):
        return self._arms.pop(0) if self._arms else self._arm

    def prefill_gear(self, batch_size):
        return self._prefill


@pytest.mark.parametrize("gear", ["cold", "frozen"])
def test_the_first_drafting_step_after_a_cold_spell_accepts_nothing(make_engine, gear):
    """Its drafts are left over: of 12 tokens 2 off, 1 in the first step at depth 2, then three a step."""
    engine = make_engine(Arms((0, gear), (0, gear), (2, "on")), acceptance="1", after_off=AfterOff(cold=1.0))
    run(engine, Request(0, 0.0, 1000, 13))
    assert [step.harmed for step in engine.log.steps] == [
        (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1), (0, 1, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0),
    ]  # fmt: skip
    assert engine.accepted_drafts == 6


def test_a_warm_step_after_a_cold_one_makes_the_drafts_anew(make_engine):
    """Warm's draft-extend leaves drafts for the step behind it: of 11 tokens 2 off, then three a step."""
    engine = make_engine(
        Arms((0, "cold"), (0, "warm"), (2, "on")), acceptance="1", after_off=AfterOff(cold=1.0)
    )
    run(engine, Request(0, 0.0, 1000, 12))
    assert [step.harmed for step in engine.log.steps][2:] == [(0, 1, 0, 0)] * 3
    assert engine.accepted_drafts == 6


def test_a_request_that_was_prefilled_frozen_has_neither_drafts_nor_prompt(make_engine):
    """It is harmed from its first step on: nothing is accepted there, then with the factor of frozen."""
    after = AfterOff(cold=1.0, frozen=0.0)
    engine = make_engine(Arms((1, "on"), prefill="frozen"), acceptance="1", after_off=after)
    run(engine, Request(0, 0.0, 1000, 4))
    assert [step.harmed for step in engine.log.steps] == [(0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 1, 0)]
    assert engine.accepted_drafts == 0


def test_the_draft_models_prefill_takes_its_time_but_for_frozen(profile):
    """2 ms a request: two of 500 tokens in one batch take 5 + 10 + 4 ms, frozen 5 + 10."""
    prefill = dataclasses.replace(profile.prefill, draft_ms_per_request=2.0)
    slower = dataclasses.replace(profile, prefill=prefill)
    for gear, first_token_s in (("cold", 0.019), ("frozen", 0.015)):
        quiet = EngineConfig(noise=0.0, switch_s=0.0)
        rng = np.random.default_rng(1)
        engine = VirtualEngine(slower, parse_acceptance("1"), FixedControl((0, gear)), rng, quiet)
        first, second = run(engine, Request(0, 0.0, 500, 2), Request(1, 0.0, 500, 2))
        assert (first.first_token_s, second.first_token_s) == pytest.approx((first_token_s,) * 2)
        assert engine.log.steps[0].prefilled == 2
        assert engine.log.steps[0].draft_prefill_s == pytest.approx(first_token_s - 0.015)


def test_warm_off_does_no_harm(make_engine):
    """The same with the warm gear: what the early one has left is accepted in full."""
    arms = iter([(0, "warm"), *[(1, "on")] * 100])

    class Script(FixedControl):
        def arm_for(self, batch_size):
            return next(arms)

    engine = make_engine(Script((0, "warm")), acceptance="1", after_off=AfterOff(cold=0.0, frozen=0.0))
    run(engine, Request(0, 0.0, 1000, 20))
    assert engine.accepted_drafts == 9  # 19 tokens, one in the warm step, then two a step


def test_a_cancelled_request_frees_its_place(make_engine):
    """Its client went away: no tokens any more, no KV."""
    engine = make_engine()
    run(engine, Request(0, 0.0, 1000, 500), until_s=0.1)
    engine.cancel(0)
    assert (engine.running, engine.context_tokens, engine.finished) == (0, 0, [])


def test_a_request_that_was_cancelled_before_the_engine_took_it_never_runs(make_engine):
    """It arrives while a step is in flight: its client may go away before the next one."""
    engine = make_engine()
    engine.submit(Request(0, 0.0, 100, 50))
    engine.submit(Request(1, 0.1, 100, 50))
    engine.cancel(0)
    engine.cancel(1)
    assert engine.idle
    engine.run_until(1.0)
    assert (engine.running, engine.emitted_tokens) == (0, 0)


def test_a_request_that_was_cancelled_in_the_middle_of_its_prefill_frees_its_place(make_engine):
    """The chunk before is done, the next one is not."""
    engine = make_engine()
    chunk = engine.config.chunked_prefill_tokens
    engine.submit(Request(0, 0.0, 2 * chunk, 50))
    engine.run_until(1e-6)
    assert (engine.waiting, engine.running) == (1, 0)
    engine.cancel(0)
    assert (engine.idle, engine.context_tokens) == (True, 0)
    (done,) = run(engine, Request(1, engine.now_s, 100, 50))
    assert done.index == 1


def test_the_same_seed_gives_the_same_run(make_engine):
    """Noise and acceptance come from the generator handed in, and from nowhere else."""

    def ends(seed):
        engine = make_engine(FixedControl((2, "on")), acceptance="0.6", seed=seed, noise=0.1)
        return [r.finish_s for r in run(engine, *(Request(i, i * 0.01, 100, 50) for i in range(20)))]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=30),
    gap_ms=st.integers(0, 50),
    arm=st.sampled_from([(0, "frozen"), (0, "cold"), (0, "warm"), (1, "on"), (2, "on")]),
    kv_tokens=st.integers(100, 400),
    slots=st.integers(1, 8),
)
def test_every_token_is_emitted_once_and_every_place_given_back(
    make_engine, lengths, gap_ms, arm, kv_tokens, slots
):
    """Whatever the load, limits and arm: all finish, tokens add up, nothing is left in the pool."""
    engine = make_engine(
        FixedControl(arm),
        acceptance="0.5",
        kv_tokens=kv_tokens,
        max_running_requests=slots,
        chunked_prefill_tokens=32,
        new_token_ratio=0.1,
    )
    requests = [Request(i, i * gap_ms / 1e3, p, n) for i, (p, n) in enumerate(lengths)]
    finished = run(engine, *requests, until_s=1e4)
    assert sorted(r.index for r in finished) == [r.index for r in requests]
    assert engine.emitted_tokens == sum(n for _, n in lengths)
    assert (engine.context_tokens, engine.running, engine.waiting, engine.idle) == (0, 0, 0, True)
    assert all(r.arrival_s <= r.first_token_s <= r.finish_s for r in requests)
