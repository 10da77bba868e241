"""Regret and decode-seconds for the same tokens, added up by hand on the tiny profile."""

from __future__ import annotations

import pytest

from controller.simulation.acceptance import AfterOff, parse_acceptance
from controller.simulation.accounting import Accountant
from controller.simulation.engine import Step, StepLog

PLAIN, WARM, FROZEN, ONE, TWO = (0, "cold"), (0, "warm"), (0, "frozen"), (1, "on"), (2, "on")

HALF = AfterOff(first_step=0.0, cold=0.5, frozen=0.5)


def account(make_engine, *steps, acceptance="1", phase_s=0.0, draft_prefill_s=0.0):
    engine = make_engine(acceptance=acceptance)
    accountant = Accountant(engine.costs, parse_acceptance(acceptance), HALF, draft_prefill_s)
    accountant.account(StepLog(list(steps)), phase_s)
    return accountant.totals


def step(arm, batch_size=1, cold=0, stale=0, switch_s=0.0, probing=False, prefilled=(0, 0.0)):
    harmed = (batch_size - cold - stale, cold, 0, stale)
    return Step(arm, batch_size, 0, harmed, switch_s, probing, *prefilled)


def test_the_best_arm_has_no_regret(make_engine):
    """All drafts accepted, depth 2 gives 3 tokens in 16 ms: nothing is better at batch size 1."""
    assert account(make_engine, step(TWO)).regret == pytest.approx(0.0)


def test_regret_is_time_spent_over_the_best_arms_time_for_the_same_tokens(make_engine):
    """Off gives 1 token in 10 ms, depth 2 needs 16 / 3 ms for it: 10 / (16 / 3) - 1 = 7 / 8."""
    totals = account(make_engine, step(PLAIN))
    assert totals.spent_s == pytest.approx(0.010)
    assert totals.oracle_s == pytest.approx(0.016 / 3)
    assert totals.regret == pytest.approx(7 / 8)
    assert totals.against(ONE) == pytest.approx(10 / 7.5 - 1)
    assert totals.against(PLAIN) == pytest.approx(0.0)


def test_a_switch_counts_as_time_spent(make_engine):
    """Depth 2 with 4 ms for the change: 20 ms for what takes 16."""
    assert account(make_engine, step(TWO, switch_s=0.004)).regret == pytest.approx(20 / 16 - 1)


def test_going_cold_is_paid_for_in_the_second_figure(make_engine):
    """Half of the acceptance: 1.5 tokens in 15 ms at depth 1.

    As the request is, depth 2 gives 1 + 0.5 + 0.25 tokens in 16 ms: 13.714 ms for 1.5.  Unharmed it gives 3
    in 16 ms: 8 ms for 1.5.
    """
    totals = account(make_engine, step(ONE, cold=1))
    assert totals.tokens == pytest.approx(1.5)
    assert totals.regret == pytest.approx(15 / (1.5 * 16 / 1.75) - 1)
    assert totals.regret_with_cold_harm == pytest.approx(15 / 8 - 1)


def test_the_first_step_after_cold_loses_its_drafts_against_an_oracle_that_never_does(make_engine):
    """Two requests, one with drafts left over: 2 + 1 tokens in 24 ms at depth 1.

    With the drafts at hand depth 2 gives 3 + 1.75 tokens in 28 ms; depth 1 would have given 2 + 1.5.
    """
    totals = account(make_engine, step(ONE, 2, stale=1))
    assert totals.tokens == pytest.approx(3.0)
    assert totals.oracle_s == pytest.approx(3 / (4.75 / 0.028))
    assert totals.losses.stale_s == pytest.approx(0.024 * (1 - 3 / 3.5))
    assert totals.losses.stale_s + totals.losses.arms_s == pytest.approx(totals.spent_s - totals.oracle_s)


def test_the_draft_models_prefill_is_charged_but_for_frozen(make_engine):
    """Off in 10 ms is best at acceptance 0; two requests were prefilled, 1 ms each for their draft cache.

    Cold paid that and frozen did not; the oracle is frozen: 12 / 10 and 10 / 10.
    """
    cold = step(PLAIN, prefilled=(2, 0.002))
    totals = account(make_engine, cold, acceptance="0", draft_prefill_s=0.001)
    assert totals.regret == pytest.approx(0.0)
    assert totals.draft_prefill_s == 0.002
    assert totals.regret_with_draft_prefill == pytest.approx(12 / 10 - 1)
    frozen = step(FROZEN, prefilled=(2, 0.0))
    totals = account(make_engine, frozen, acceptance="0", draft_prefill_s=0.001)
    assert totals.regret_with_draft_prefill == pytest.approx(0.0)


def test_an_oracle_that_drafts_pays_for_the_draft_models_prefill(make_engine):
    """All accepted: depth 2 gives 3 tokens in 16 + 1 ms, and it is best; nobody lost anything."""
    totals = account(make_engine, step(TWO, prefilled=(1, 0.001)), draft_prefill_s=0.001)
    assert totals.regret_with_draft_prefill == pytest.approx(0.0)


def test_fixed_arms_are_compared_unharmed(make_engine):
    """Depth 1 held for ever never goes cold: 2 tokens in 15 ms, so 11.25 ms for 1.5."""
    totals = account(make_engine, step(ONE, cold=1))
    assert totals.against(ONE) == pytest.approx(15 / 11.25 - 1)


def test_acceptance_is_that_of_the_phase(make_engine):
    """In a phase where nothing is accepted, off is best and depth 2 wastes 6 of 16 ms."""
    totals = account(make_engine, step(TWO), acceptance="1@0,0@10", phase_s=10.0)
    assert totals.regret == pytest.approx(16 / 10 - 1)


def test_switches_probes_and_seconds_by_arm_are_counted(make_engine):
    """Off, probe at 1, off, off: two changes; the probe takes 15 of 45 ms."""
    totals = account(make_engine, step(PLAIN), step(ONE, probing=True), step(PLAIN), step(PLAIN))
    assert totals.switches == 2
    assert totals.probe_share == pytest.approx(15 / 45)
    assert totals.used_s == pytest.approx({PLAIN: 0.030, ONE: 0.015, WARM: 0.0, FROZEN: 0.0, TWO: 0.0})


def test_before_the_first_step_nothing_is_known(make_engine):
    """No steps: regret is not zero but unknown."""
    totals = account(make_engine)
    assert (totals.regret, totals.regret_with_cold_harm, totals.probe_share) == (None, None, None)
    assert totals.against(TWO) is None


def test_what_was_lost_is_told_by_cause(make_engine):
    """All drafts accepted; depth 2 gives 3 tokens in 16 ms and is best, so a token is worth 16 / 3 ms.

    Depth 1 gives 2 tokens in 15 ms: 15 - 32 / 3 = 13 / 3 ms lost, in a probe that took 4 ms to switch to.
    Off gives 1 token in 10 ms: 14 / 3 ms lost.
    """
    losses = account(make_engine, step(ONE, switch_s=0.004, probing=True), step(PLAIN)).losses
    assert losses.switches_s == pytest.approx(0.004)
    assert losses.probes_s == pytest.approx(0.013 / 3)
    assert losses.arms_s == pytest.approx(0.014 / 3)
    assert losses.arms_by_batch_s == {1: pytest.approx(0.014 / 3)}
    assert (losses.late_s, losses.cold_s) == (0.0, 0.0)


def test_what_was_lost_adds_up(make_engine):
    """Nothing accepted, so off is best, and only cold would have been better than warm."""
    totals = account(make_engine, step(WARM), step(ONE, 3, switch_s=0.002), step(PLAIN, 2), acceptance="0")
    losses = totals.losses
    parts = (losses.switches_s, losses.probes_s, losses.cold_s, losses.late_s, losses.arms_s)
    assert losses.cold_s > 0
    assert sum(parts) == pytest.approx(totals.spent_s - totals.oracle_s)
