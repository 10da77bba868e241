"""What governing brought is counted from what was measured, with an error that does not flatter."""

import dataclasses

import pytest

from controller.benefit import Benefit, Reference
from policies.types import OFF_COLD, OFF_WARM, Arm, CellDelta

DEEP = Arm(3)
SHALLOW = Arm(1)
BUILT = (OFF_WARM, OFF_COLD, SHALLOW, DEEP)


def cell(arm, *, steps, tokens_per_step, step_s, bucket=8, jitter_s=0.0):
    """Steps of 8 requests; every request accepts the same number of drafts."""
    accepted = round(tokens_per_step / 8) - 1
    counts = [0] * (arm.depth + 1)
    counts[accepted] = 8 * steps
    return CellDelta(
        batch_bucket=bucket,
        arm=arm,
        steps=steps,
        request_steps=8 * steps,
        tokens=steps * tokens_per_step,
        accepted=tuple(counts),
        accepted_after_cold=tuple([0] * (arm.depth + 1)),
        timed_steps=steps,
        timed_seconds=steps * step_s,
        timed_seconds_sq=steps * (step_s**2 + jitter_s**2),
        timed_request_steps=8 * steps,
        timed_context_tokens=0,
    )


def balance(benefit, reference):
    """(emitted, reference, error), rounded."""
    found = benefit.balances[reference]
    return tuple(round(x, 1) for x in (found.tokens, found.reference_tokens, found.error_tokens))


def test_an_unmeasured_reference_is_not_compared_with():
    """Depth 3 alone ran: nothing is known of off, so nothing is claimed."""
    benefit = Benefit()
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    assert balance(benefit, Reference.ALWAYS_OFF) == (0.0, 0.0, 0.0)
    assert balance(benefit, Reference.ALWAYS_ON) == (1600.0, 1600.0, 0.0)
    assert balance(benefit, Reference.BEST_MEASURED) == (0.0, 0.0, 0.0)


def test_the_reference_is_paid_the_time_that_was_spent():
    """100 steps of 10 ms at depth 3 emit 1600 tokens; off does 8 tokens in 8 ms, so 1000 in that second."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=50, tokens_per_step=8, step_s=0.008)], BUILT)
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    emitted, reference, _ = balance(benefit, Reference.ALWAYS_OFF)
    assert emitted == 400 + 1600
    assert reference == pytest.approx(400 + 1.0 * 1000, abs=1.0)


def test_off_is_compared_in_its_fastest_gear():
    """Warm does 8 tokens in 16 ms, cold in 8 ms: the comparison is with cold, the harder one."""
    benefit = Benefit()
    benefit.record([cell(OFF_WARM, steps=50, tokens_per_step=8, step_s=0.016)], BUILT)
    benefit.record([cell(OFF_COLD, steps=50, tokens_per_step=8, step_s=0.008)], BUILT)
    before = benefit.balances[Reference.ALWAYS_OFF].reference_tokens
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    gained = benefit.balances[Reference.ALWAYS_OFF].reference_tokens - before
    assert gained == pytest.approx(1000, abs=1.0)


def test_always_on_is_the_deepest_built_depth():
    """Depth 1 ran well and is not the reference; depth 3 is."""
    benefit = Benefit()
    benefit.record([cell(DEEP, steps=50, tokens_per_step=16, step_s=0.020)], BUILT)
    before = benefit.balances[Reference.ALWAYS_ON].reference_tokens
    benefit.record([cell(SHALLOW, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    gained = benefit.balances[Reference.ALWAYS_ON].reference_tokens - before
    assert gained == pytest.approx(1.0 * 800, abs=1.0)


def test_regret_counts_only_an_arm_that_is_surely_faster():
    """Depth 1 looks 5 % faster with an error of 10 %: not missed.  After many steps it is."""
    benefit = Benefit()
    benefit.record([cell(DEEP, steps=2000, tokens_per_step=16, step_s=0.0105, jitter_s=0.001)], BUILT)
    benefit.record([cell(SHALLOW, steps=25, tokens_per_step=16, step_s=0.010, jitter_s=0.005)], BUILT)
    before = benefit.balances[Reference.BEST_MEASURED].reference_tokens
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.0105, jitter_s=0.001)], BUILT)
    assert benefit.balances[Reference.BEST_MEASURED].reference_tokens - before == pytest.approx(
        1600, rel=1e-3
    )
    benefit.record([cell(SHALLOW, steps=20000, tokens_per_step=16, step_s=0.010, jitter_s=0.005)], BUILT)
    before = benefit.balances[Reference.BEST_MEASURED].reference_tokens
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.0105, jitter_s=0.001)], BUILT)
    missed = benefit.balances[Reference.BEST_MEASURED].reference_tokens - before
    assert missed == pytest.approx(1600 * 1.05, rel=2e-3)


def test_the_error_is_that_of_the_mean_and_adds_up_linearly():
    """100 steps of 8 ms, spread 4 ms: 5 % of the mean; ten turns of 1000 tokens carry 50 tokens each."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=100, tokens_per_step=8, step_s=0.008, jitter_s=0.004)], BUILT)
    first = benefit.balances[Reference.ALWAYS_OFF].error_tokens
    for _ in range(10):
        benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    assert benefit.balances[Reference.ALWAYS_OFF].error_tokens - first == pytest.approx(500, rel=0.01)


def test_few_steps_are_not_a_measurement():
    """19 timed steps are not enough, 20 are."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=19, tokens_per_step=8, step_s=0.008)], BUILT)
    assert benefit.speeds(8) == {}
    benefit.record([cell(OFF_COLD, steps=2, tokens_per_step=8, step_s=0.008)], BUILT)
    assert benefit.speeds(8)[OFF_COLD].tok_s == pytest.approx(1000)


def test_another_batch_size_inside_the_bucket_is_no_gain():
    """Bucket 8 holds 8 to 11 requests: after 11 at depth 3, 8 at depth 3 neither gain nor lose."""
    full = dataclasses.replace(
        cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010),
        request_steps=1100,
        tokens=2200,
        accepted=(0, 1100, 0, 0),
    )
    benefit = Benefit()
    benefit.record([full], BUILT)
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    assert balance(benefit, Reference.ALWAYS_ON) == (3800.0, 3800.0, 0.0)


def test_buckets_are_kept_apart():
    """What off did at batch 64 says nothing about batch 8."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=100, tokens_per_step=8, step_s=0.008, bucket=64)], BUILT)
    before = benefit.balances[Reference.ALWAYS_OFF].tokens
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010, bucket=8)], BUILT)
    assert benefit.balances[Reference.ALWAYS_OFF].tokens == before


def test_old_steps_fade():
    """After twelve hours at 10 ms a step, the 5 ms of before weigh less than a quarter (e^-2 to 1 - e^-2)."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=4_320_000, tokens_per_step=8, step_s=0.005)], BUILT)
    for _ in range(12):
        benefit.record([cell(OFF_COLD, steps=360_000, tokens_per_step=8, step_s=0.010)], BUILT)
    assert 0.00875 < 8 / benefit.speeds(8)[OFF_COLD].tok_s < 0.010


def test_a_turn_without_steps_changes_nothing():
    """An idle server earns and loses nothing."""
    benefit = Benefit()
    benefit.record([cell(DEEP, steps=0, tokens_per_step=16, step_s=0.010)], BUILT)
    assert balance(benefit, Reference.ALWAYS_ON) == (0.0, 0.0, 0.0)


def test_what_ran_ungoverned_tells_speeds_and_is_nobodys_gain():
    """Under `native`, or after a lease had ended: 1600 tokens that specgov did not bring."""
    benefit = Benefit()
    benefit.record([cell(OFF_COLD, steps=50, tokens_per_step=8, step_s=0.008)], BUILT, governed=False)
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT, governed=False)
    assert balance(benefit, Reference.ALWAYS_OFF) == (0.0, 0.0, 0.0)
    assert benefit.emitted_tokens == 2000
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010)], BUILT)
    assert balance(benefit, Reference.ALWAYS_OFF)[:2] == (1600.0, 1000.0)
    assert benefit.share(Reference.ALWAYS_OFF) == pytest.approx(1600 / 3600)


def test_the_share_says_of_how_many_tokens_a_gain_is_known():
    """Off ran at bucket 64 only, 800 tokens; depth 3 at bucket 8 only, 1600: a third, and two thirds."""
    benefit = Benefit()
    assert benefit.share(Reference.ALWAYS_OFF) is None
    benefit.record([cell(OFF_COLD, steps=100, tokens_per_step=8, step_s=0.008, bucket=64)], BUILT)
    benefit.record([cell(DEEP, steps=100, tokens_per_step=16, step_s=0.010, bucket=8)], BUILT)
    assert benefit.share(Reference.ALWAYS_OFF) == pytest.approx(1 / 3)
    assert benefit.share(Reference.ALWAYS_ON) == pytest.approx(2 / 3)
