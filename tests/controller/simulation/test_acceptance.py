"""Acceptance by position and over time, and what is drawn from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from controller.simulation.acceptance import AfterOff, Harm, expected_tokens, parse_acceptance, survival
from controller.simulation.draws import AcceptedDrafts, StepNoise


def test_expected_tokens_are_the_measured_ones():
    """p = 0.745: 1.745, 2.30, 2.71, 3.02 tokens a step at depth 1-4, as counted on the real server."""
    tokens = expected_tokens(survival((0.745,), 4))
    assert tokens == pytest.approx([1, 1.745, 2.30, 2.71, 3.02], abs=0.005)


def test_positions_have_their_own_probability_and_the_last_repeats():
    """0.8, then 0.5 for ever: S = 0.8, 0.4, 0.2."""
    assert survival((0.8, 0.5), 3) == pytest.approx([0.8, 0.4, 0.2])


def test_phases_follow_each_other_and_repeat():
    """A trailing `...` makes a period of the last gap: 0.7, 0.4, 0.7, ... every 300 s."""
    acceptance = parse_acceptance("0.7@0,0.4@300,...")
    assert [acceptance.at(t).positions[0] for t in (0, 299, 300, 599, 600, 900)] == [
        0.7, 0.7, 0.4, 0.4, 0.7, 0.4,
    ]  # fmt: skip
    assert [acceptance.next_change_s(t) for t in (0, 300, 450, 600)] == [300, 600, 600, 900]


def test_a_single_phase_never_changes():
    """Nobody has to look at the time again."""
    assert parse_acceptance("0.745").next_change_s(5) == math.inf


@pytest.mark.parametrize(
    "text", ["", "x", "1.1", "-0.1", "0.5@10", "0.5@0,0.4@0", "0.5,...", "0.5@0,0.4@-1", "nan", "0.5@nan"]
)
def test_a_bad_acceptance_is_refused(text):
    """Probabilities are 0..1, phases begin at 0 s and ascend."""
    with pytest.raises(ValueError, match="acceptance"):
        parse_acceptance(text)


def test_drawn_drafts_have_the_survival_asked_for():
    """200 000 draws at depth 3: the share with at least j accepted is S(j) within four standard errors."""
    drafts = AcceptedDrafts(np.random.default_rng(1), parse_acceptance("0.8/0.5"), 4, AfterOff())
    drawn = np.concatenate([drafts.take(0.0, 3, 100) for _ in range(2000)])
    for j, expected in enumerate((0.8, 0.4, 0.2), start=1):
        assert (drawn >= j).mean() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 200_000))
    assert drawn.max() == 3


def test_requests_that_were_left_behind_are_drawn_for_by_their_own_factor():
    """p = 0.8: nothing in the first step, 0.4 after cold, 0.2 after frozen, within four standard errors."""
    after = AfterOff(first_step=0.0, cold=0.5, frozen=0.25)
    drafts = AcceptedDrafts(np.random.default_rng(1), parse_acceptance("0.8"), 1, after)
    for harm, expected in ((Harm.NONE, 0.8), (Harm.COLD, 0.4), (Harm.FROZEN, 0.2), (Harm.STALE, 0.0)):
        drawn = drafts.take(0.0, 1, 10_000, harm)
        assert drawn.mean() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 10_000)), harm


def test_the_first_step_after_cold_accepts_nothing_and_later_ones_nearly_all():
    """The defaults: what the trained pair showed (docs/results/after-cold.md)."""
    assert AfterOff().factors() == (1.0, 0.99, 0.97, 0.0)


def test_a_new_phase_is_drawn_from_at_once():
    """Blocks are drawn ahead; the rest of a block must not outlive its phase."""
    drafts = AcceptedDrafts(np.random.default_rng(1), parse_acceptance("1@0,0@10"), 2, AfterOff())
    assert drafts.take(9.99, 2, 3).tolist() == [2, 2, 2]
    assert drafts.take(10.0, 2, 3).tolist() == [0, 0, 0]


def test_noise_has_mean_one():
    """Noise spreads step times, it does not shift them: the mean of 200 000 factors is 1 within 0.1 %."""
    noise = StepNoise(np.random.default_rng(1), 0.1)
    assert np.mean([noise.next() for _ in range(200_000)]) == pytest.approx(1.0, abs=1e-3)
