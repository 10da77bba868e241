"""How far the ratio of two arms may move along the batch size: as far as step times grow.

Plain words: while a step takes as long for 8 requests as for 4, it does so for every arm that does less work,
and their ratio is the same at both.  So a ratio that was measured once holds as far as step times are flat,
and is open again where they rise.

The maths: let g be the growth of log seconds per octave of batch size.  An arm of less work grows by no less
than nothing and by no more than an arm of more work, so the logarithm of the ratio of the two moves by g at
most.  `pace` is E[g^2], relative to what is expected where nothing was measured; the field of `step_cost.py`
lets the clock of a ratio run so fast.  Between two timed cells, a octaves apart, whose logarithms differ by y
with variance v, a Brownian bridge gives

    E[g^2] = (y^2 + v) / a^2 + GROWTH_SD^2 * max(0, 1 - 1 / a)

the second term since growth may be uneven inside of a wide gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

GROWTH_PER_OCTAVE, GROWTH_SD = 0.3, 0.35
"""Growth of log seconds per doubling of the batch until it is measured: mean and deviation."""
USUAL = GROWTH_PER_OCTAVE**2 + GROWTH_SD**2
POINTS = 4
"""Places within each interval between two knots at which the growth is looked up."""
APART = 1000.0
"""Octaves that set the batch sizes of one arm apart from those of the next."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Timed cells, by arm (from least to most work) and batch size."""

    arm: Indices
    where: Floats
    """Log2 of the batch size."""
    log_s: Floats
    variance: Floats


def pace(timings: Timings, arms: int, knots: Floats) -> Floats:
    """E[g^2] / USUAL, intervals between `knots` (log2 of batch sizes) x pairs of neighbouring `arms`.

    Of each pair it is that of the second, or of the arm of more work that bounds it best; 1 where no such arm
    was timed on both sides.
    """
    of_arm = _squared_growth(timings, arms, knots)
    bound = np.minimum.accumulate(of_arm[::-1], axis=0)[::-1][1:]
    return np.asarray(np.where(np.isfinite(bound), bound / USUAL, 1.0).mean(axis=2).T)


def _squared_growth(timings: Timings, arms: int, knots: Floats) -> Floats:
    """E[g^2], arms x intervals x points; infinite outside of what was timed."""
    inside = (np.arange(POINTS) + 0.5) / POINTS
    at = (knots[:-1, None] + np.diff(knots)[:, None] * inside)[None] + APART * np.arange(arms)[:, None, None]
    where = timings.where + APART * timings.arm
    if len(where) < 2:
        return np.full(at.shape, np.inf)
    octaves = np.maximum(1e-3, np.diff(where))
    rise, variance = np.diff(timings.log_s), timings.variance[:-1] + timings.variance[1:]
    squared = (rise**2 + variance) / octaves**2 + GROWTH_SD**2 * np.maximum(0.0, 1.0 - 1.0 / octaves)
    segment = np.searchsorted(where, at, side="right") - 1
    inner = np.clip(segment, 0, len(rise) - 1)
    covered = (segment == inner) & (octaves[inner] < APART / 2)
    return np.where(covered, squared[inner], np.inf)
