"""The profiles made of published numbers give those numbers back."""

from __future__ import annotations

import json

import pytest

from controller.simulation.acceptance import expected_tokens, parse_acceptance, survival
from controller.simulation.closed_loop import Bench
from controller.simulation.cost_profile import load_profile, parse_profile
from controller.simulation.published_case import READINGS, derive


def tok_s(name: str, row: str, batch: int) -> float:
    profile = load_profile(name)
    tokens = 1.0 if row == "plain" else expected_tokens(survival((profile.about["acceptance"],), 2))[2]
    return float(batch * tokens / profile.step_seconds(row, batch)[batch])


@pytest.mark.parametrize("name", READINGS)
def test_the_shipped_file_is_what_the_derivation_gives(name):
    """Nobody edited it by hand."""
    assert load_profile(name) == parse_profile(json.loads(json.dumps(derive(name))))


def test_one_stream_is_faster_with_speculation_by_what_was_published():
    """96.1 tok/s, 5.9 % more than without."""
    on, off = tok_s("blackwell_moe_tp8", "depth_2", 1), tok_s("blackwell_moe_tp8", "plain", 1)
    assert on == pytest.approx(96.1, rel=1e-3)
    assert on / off == pytest.approx(1.059, rel=1e-3)


def test_the_other_reading_has_speculation_behind_from_the_start():
    """15 % at one stream."""
    name = "blackwell_moe_tp8_parallel"
    assert tok_s(name, "plain", 1) / tok_s(name, "depth_2", 1) == pytest.approx(1.15, rel=1e-3)


@pytest.mark.parametrize("name", READINGS)
def test_the_gap_is_twofold_at_thirty_streams_and_both_sides_saturate(name):
    """Over 2x from 30 on; 773 and 354 tok/s are approached from below, within 3 % at 256 streams."""
    assert tok_s(name, "plain", 30) / tok_s(name, "depth_2", 30) == pytest.approx(2.0, rel=0.01)
    assert 0.97 * 773 < tok_s(name, "plain", 256) < 773
    assert 0.97 * 354 < tok_s(name, "depth_2", 256) < 354


def test_the_engine_gives_the_published_throughput_in_a_closed_loop():
    """One client: 96.1 tok/s with speculation, 90.7 without, from the whole engine."""
    bench = Bench(load_profile("blackwell_moe_tp8"), parse_acceptance("0.6"), (1,), measure_s=200)
    (on,), (off,) = bench.hold((2, "on")), bench.hold((0, "cold"))
    assert on.output_tok_s == pytest.approx(96.1, rel=0.02)
    assert off.output_tok_s == pytest.approx(96.1 / 1.059, rel=0.02)
