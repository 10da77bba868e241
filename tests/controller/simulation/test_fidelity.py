"""The simulator beside the real server: the same closed loop, the same profile."""

from __future__ import annotations

import pytest

from tests.benchmarks.simulator_error import compare

LEVELS = (1, 16, 32, 64)


@pytest.fixture(scope="module")
def errors():
    rows = compare(LEVELS, measure_s=10.0)
    return {(row["column"], row["concurrency"]): row["error"] for row in rows}


@pytest.mark.slow
def test_throughput_is_within_eight_percent_of_the_measured_one(errors):
    """Up to 64 requests, in every column but one; beyond, the profile's own median holds prefills."""
    near = {key: error for key, error in errors.items() if "depth 2, p .366" not in key[0]}
    assert len(near) == 6 * len(LEVELS)
    assert max(abs(error) for error in near.values()) < 0.08


@pytest.mark.slow
def test_the_one_column_that_is_further_off_is_too_fast(errors):
    """Depth 2 at p = 0.366 was measured up to 22 % slower than its step time and acceptance imply."""
    off = [error for key, error in errors.items() if "depth 2, p .366" in key[0]]
    assert all(0 < error < 0.25 for error in off)
