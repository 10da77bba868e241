"""SGLang's own rule, as its documentation and measurements describe it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from controller.simulation.native_rule import NativeRule, Slot, SlotRule


def depths(rule, accepted, batches):
    """The depth of every batch, when `accepted(depth)` drafts are accepted per request."""
    used = []
    for _ in range(batches):
        used.append(rule.depth)
        rule.observe(accepted(rule.depth))
    return used


def test_a_poor_drafter_flips_every_five_batches():
    """At acceptance 0.3 it goes on and off 200 times per 1000 batches, warm-up aside."""
    used = depths(SlotRule(Slot((0, 1)), 1), lambda depth: 0.3 * depth, 1000)
    flips = sum(a != b for a, b in itertools.pairwise(used))
    assert flips == pytest.approx(198, abs=2)


def test_a_drafter_that_is_right_more_often_than_not_is_never_switched_off():
    """At acceptance 0.55 with no noise the rule stays on for ever, whatever a step costs."""
    assert set(depths(SlotRule(Slot((0, 1)), 1), lambda depth: 0.55 * depth, 1000)) == {1}


def test_it_climbs_while_the_average_is_within_half_a_token_of_the_depth():
    """2.9 accepted of 3 is above 3 - 0.5: 7 from batch 15 on; and above 3 - 0.5 - 0.25: it stays there."""
    rule = SlotRule(Slot((1, 3, 7), down_margin=-0.25), 3)
    assert depths(rule, lambda depth: min(2.9, depth), 60) == [3] * 15 + [7] * 45


def test_the_first_ten_batches_decide_nothing():
    """Warm-up: nothing changes before batch 15."""
    assert depths(SlotRule(Slot((0, 1)), 1), lambda _: 0.0, 15) == [1] * 15


def test_slots_are_chosen_by_batch_size_and_cut_to_what_is_built():
    """Of 1, 3, 7 only 1 and 3 are built; from 64 requests on it is off."""
    rule = NativeRule([0, 1, 3])
    assert [rule.get_steps_for_batch(b) for b in (1, 7, 64, 500)] == [3, 3, 0, 0]
    assert rule.candidate_steps == [0, 1, 3]


def test_it_runs_the_steps_that_the_real_server_ran():
    """Measured at 32 requests, p = 0.366: 206 batches at 0 and 202 at 1, so about half and half."""
    rng = np.random.default_rng(1)
    rule = NativeRule([0, 1, 2, 3, 4])
    used = []
    for _ in range(2000):
        depth = rule.get_steps_for_batch(32)
        used.append(depth)
        rule.on_verify_complete((rng.random(32) < 0.366).astype(int).tolist() if depth else [0] * 32, 32)
    assert set(used) == {0, 1}
    assert np.mean(used) == pytest.approx(202 / 408, abs=0.02)
