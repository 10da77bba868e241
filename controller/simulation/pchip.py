"""Shape-preserving cubic interpolation (PCHIP): smooth, and monotone wherever the data are.

Fritsch and Butland, "A method for constructing local monotone piecewise cubic interpolants", SIAM
J. Sci. Stat. Comput. 5 (1984); the end slopes are the three-point formula of Moler, "Numerical
Computing with MATLAB", chapter 3.  SciPy's `PchipInterpolator` is the same method and the reference in the
tests; it is not a run-time dependency for forty lines of arithmetic.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


def interpolate(x: Floats, y: Floats, at: Floats) -> Floats:
    """The interpolant through (`x`, `y`) at the points `at`, which must lie within `x`.

    `x` ascends strictly and has at least two points.
    """
    width = np.diff(x)
    slope = _slopes(width, np.diff(y) / width)
    i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    t = (at - x[i]) / width[i]
    from_left = (1 + 2 * t) * (1 - t) ** 2 * y[i] + t * (1 - t) ** 2 * width[i] * slope[i]
    from_right = t**2 * (3 - 2 * t) * y[i + 1] + t**2 * (t - 1) * width[i] * slope[i + 1]
    return np.asarray(from_left + from_right)


def _slopes(width: Floats, secant: Floats) -> Floats:
    """The derivative at every knot: a weighted harmonic mean of the neighbouring secants."""
    if len(secant) == 1:
        return np.array([secant[0], secant[0]])
    before, after = secant[:-1], secant[1:]
    weight_before, weight_after = 2 * width[1:] + width[:-1], width[1:] + 2 * width[:-1]
    same_sign = before * after > 0
    slope = np.zeros(len(secant) + 1)
    mean = weight_before[same_sign] / before[same_sign] + weight_after[same_sign] / after[same_sign]
    slope[1:-1][same_sign] = (weight_before + weight_after)[same_sign] / mean
    slope[0] = _end_slope(width[0], width[1], secant[0], secant[1])
    slope[-1] = _end_slope(width[-1], width[-2], secant[-1], secant[-2])
    return slope


def _end_slope(near_width: float, far_width: float, near: float, far: float) -> float:
    """One-sided three-point slope, limited so that the first piece keeps its shape."""
    slope = ((2 * near_width + far_width) * near - near_width * far) / (near_width + far_width)
    if slope * near <= 0:
        return 0.0
    if near * far <= 0 and abs(slope) > 3 * abs(near):
        return 3.0 * near
    return float(slope)
