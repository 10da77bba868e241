"""Quantiles and intervals, against numbers worked out by hand."""

import pytest

from controller.bench.statistics import Estimate, estimate, quantile, ratio, reach


def test_quantile_is_linear_between_neighbours():
    """The 0.25 quantile of 10, 20, 30 lies half-way from 10 to 20."""
    assert quantile([30, 10, 20], 0.25) == 15
    assert quantile([30, 10, 20], 1.0) == 30
    assert quantile([], 0.5) is None


def test_interval_of_three_windows_uses_student_t():
    """Values 9, 10, 11: s = 1, s/sqrt(3) = 0.5774, t(2) = 4.303, half width 2.484."""
    found = estimate([9, 10, 11])
    assert found.mean == 10
    assert found.standard_error == pytest.approx(0.57735, abs=1e-5)
    assert found.half_width == pytest.approx(2.4843, abs=1e-4)


def test_two_means_are_apart_by_the_error_of_their_difference():
    """Errors 3 and 4 make 5; two windows each leave 2 degrees of freedom, 4.303; three and five 6, 2.447."""
    assert reach(Estimate(0, None, 2, 3), Estimate(0, None, 2, 4)) == pytest.approx(21.515)
    assert reach(Estimate(0, None, 3, 3), Estimate(0, None, 5, 4)) == pytest.approx(12.235)
    assert reach(Estimate(0, None, 1), Estimate(0, None, 1)) == 0


def test_one_window_has_no_interval():
    """Unknown is not zero."""
    assert estimate([5.0]).half_width is None
    with pytest.raises(ValueError, match="at least one window"):
        estimate([])


def test_paired_ratio_cancels_drift_that_both_arms_share():
    """Both arms slow down by half; the ratio stays 2 with no width: ln 2 in both rounds."""
    found = ratio([200, 100], [100, 50])
    assert found.mean == pytest.approx(2.0)
    assert found.half_width == pytest.approx(0.0)


def test_ratio_refuses_arms_that_are_not_paired():
    """A missing window must not pair others wrongly."""
    with pytest.raises(ValueError, match="same number of windows, got 2 and 1"):
        ratio([1, 2], [1])
    with pytest.raises(ValueError, match="positive"):
        ratio([0], [1])
