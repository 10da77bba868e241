"""Quantiles and confidence intervals.  Pure.

Windows of one arm at one concurrency are the sample: alternated in time with those of the other arms,
so that drift of the machine falls on all alike.  Few windows, hence Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""Two-sided 95 % quantiles of Student's t for 1..14 degrees of freedom (any table of it)."""
_T_95_LARGE = 2.131
"""For 15 and more: slightly too wide, never too narrow."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `n` windows with the half width of its 95 % confidence interval (`None` for one window)."""

    mean: float
    half_width: float | None
    n: int
    standard_error: float | None = None
    """Of the mean; `None` for one window."""

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.half_width is None else f"{self.mean:.4g} +-{self.half_width:.2g}"


def quantile(values: Sequence[float], q: float) -> float | None:
    """The `q` quantile (0..1), linear between the two nearest values; `None` when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95 % confidence interval of independent windows; raises `ValueError` for none."""
    if not values:
        raise ValueError("values must hold at least one window, got none")
    n = len(values)
    mean = statistics.fmean(values)
    if n == 1:
        return Estimate(mean, None, 1)
    error = statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, _t_95(n - 1) * error, n, error)


def reach(a: Estimate, b: Estimate) -> float:
    """Half width of the 95 % interval of the difference of two means; 0 where neither has a spread.

    Student's t of n_a + n_b - 2 degrees of freedom times the standard error.  Two intervals that overlap are
    no such test: of two windows each they do where one mean is several times the other.
    """
    freedom = a.n + b.n - 2
    error = math.hypot(a.standard_error or 0.0, b.standard_error or 0.0)
    return _t_95(freedom) * error if freedom else 0.0


def _t_95(freedom: int) -> float:
    return _T_95[freedom - 1] if freedom <= len(_T_95) else _T_95_LARGE


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Ratio of two arms from paired windows (the i-th of each was measured in the same round).

    The interval is that of the mean of log ratios (delta method), which treats a/b and b/a alike.
    Raises `ValueError` unless both have the same, non-zero length and all values are positive.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(
            f"arms must have the same number of windows, got {len(numerators)} and {len(denominators)}"
        )
    if min(*numerators, *denominators) <= 0:
        raise ValueError("every window must be positive for a ratio")
    logs = estimate([math.log(a / b) for a, b in zip(numerators, denominators, strict=True)])
    mean = math.exp(logs.mean)
    if logs.half_width is None or logs.standard_error is None:
        return Estimate(mean, None, logs.n)
    return Estimate(mean, mean * logs.half_width, logs.n, mean * logs.standard_error)
