"""Which arm at which batch size: the best schedule under errors, hysteresis and the price of a switch.

For every batch size g of a grid and every arm a the caller gives the expected log-goodput V[g, a].  The
schedule a(.) minimises

    sum_g w[g] * ( -V[g, a(g)] + [a(g) != now(g)] * (min_gain + z * se[g, a(g)]) + tie * rank(a(g)) )
      + sum_g crossing[g, a(g), a(g+1)]

so a change must pay for its margin and its error, ties go to the shallower arm, and a boundary between
two rows must be worth the switches that it causes, and the requests that it makes draft badly when one of
them is cold.  Exact, by dynamic programming along the batch sizes (Viterbi).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

TIE = 1e-3
"""Log-goodput that each rank of depth must bring, so that equal arms go to the shallower."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Expected log-goodput over the grid; -inf where an arm must not be chosen."""

    value: Floats
    """Log tokens per second, sizes x arms."""
    error: Floats
    """Standard error of the difference to the arm in force, sizes x arms."""
    incumbent: Indices
    """Arm in force at each size."""
    weight: Floats
    """Share of decode time at each size, > 0."""
    crossing: Floats
    """Share of decode time that a boundary between size g and g+1 costs, by the arms on its two sides:
    (sizes - 1) x arms x arms, zero on the diagonal."""


def choose(surface: Surface, min_gain: Floats, confidence: Floats) -> tuple[Indices, float]:
    """The arm (index) at each size of the grid, and the share of decode time that it saves, >= 0.

    `min_gain` and `confidence`: margin and standard errors asked for, by size.
    """
    arms = surface.value.shape[1]
    loss = TIE * np.arange(arms) - surface.value
    moved = np.arange(arms)[None, :] != surface.incumbent[:, None]
    loss = loss + moved * (min_gain[:, None] + confidence[:, None] * surface.error)
    cost = np.where(np.isfinite(loss), loss, 1e6) * surface.weight[:, None]
    path = _cheapest_path(cost, surface.crossing)
    return path, _cost(surface.incumbent, cost, surface.crossing) - _cost(path, cost, surface.crossing)


def _cost(path: Indices, cost: Floats, crossing: Floats) -> float:
    g = np.arange(len(path))
    return float(cost[g, path].sum() + crossing[g[:-1], path[:-1], path[1:]].sum())


def _cheapest_path(cost: Floats, crossing: Floats) -> Indices:
    """Minimise the sum of `cost` along the path plus `crossing` at each step."""
    rows, columns = cost.shape
    back = np.empty((rows, columns), dtype=np.intp)
    total = cost[0]
    every = np.arange(columns)
    for g in range(1, rows):
        through = total[:, None] + crossing[g - 1]
        back[g] = through.argmin(axis=0)
        total = through[back[g], every] + cost[g]
    path = np.empty(rows, dtype=np.intp)
    path[-1] = total.argmin()
    for g in range(rows - 1, 0, -1):
        path[g - 1] = back[g, path[g]]
    return path
