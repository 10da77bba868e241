"""What the figures mean: the crossover, the schedule to run, what it is worth.  Pure.

Between two measured concurrencies every arm's throughput is taken as a straight line in log2(concurrency).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.bench.statistics import Estimate, reach

TIE = 0.01
"""Arms closer than this are equal, and the one that drafts less is taken."""

Curve = Mapping[int, Estimate]
"""Concurrency to output tokens per second."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where `falling` stops being faster than `rising`, in requests at once."""

    falling: str
    rising: str
    concurrency: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The conclusion of a benchmark."""

    best: Mapping[int, tuple[str, ...]]
    """The fastest of all arms at each concurrency at which several have a figure.

    More than one: the fastest first, and those that it cannot be told from (`fastest`).
    """
    compared: tuple[int, ...]
    """Concurrencies at which both a speculating arm and one that does not speculate were measured."""
    crossovers: tuple[Crossover, ...]
    """Of the best speculating arm with the best that does not speculate, ascending, within `compared`."""
    schedule: tuple[tuple[int, str], ...]
    """(from batch size, arm), of the arms that can be steered on one server."""
    not_in_schedule: Mapping[str, str]
    """Arms that were measured and can be in no schedule, and why."""
    worth: Mapping[str, float]
    """Geometric mean over the measured concurrencies of the schedule's throughput over the arm's."""


def crossovers(falling: str, falling_curve: Curve, rising: str, rising_curve: Curve) -> tuple[Crossover, ...]:
    """Every place where the first curve drops under the second."""
    shared = sorted(set(falling_curve) & set(rising_curve))
    found = []
    for low, high in itertools.pairwise(shared):
        before = math.log(falling_curve[low].mean / rising_curve[low].mean)
        after = math.log(falling_curve[high].mean / rising_curve[high].mean)
        if before >= 0 > after:
            share = before / (before - after)
            at = 2 ** (math.log2(low) + share * (math.log2(high) - math.log2(low)))
            found.append(Crossover(falling, rising, at))
    return tuple(found)


def fastest(curves: Mapping[str, Curve], concurrency: int) -> tuple[str, ...]:
    """The fastest arm, and behind it those that it cannot be told from; none where fewer than two are.

    Two are told apart when their means are further apart than `TIE`, and than chance makes them (`reach`).
    """
    here = {label: curve[concurrency] for label, curve in curves.items() if concurrency in curve}
    if len(here) < 2:
        return ()
    ranked = sorted(here, key=lambda label: -here[label].mean)
    top = here[ranked[0]]
    return (ranked[0], *(label for label in ranked[1:] if not _is_above(top, here[label])))


def _is_above(a: Estimate, b: Estimate) -> bool:
    return a.mean - b.mean > max(TIE * b.mean, reach(a, b))


def best_arm(curves: Mapping[str, Curve], depths: Mapping[str, int], concurrency: int) -> str | None:
    """The arm to run; of those that the fastest does not clearly beat the one that drafts least."""
    here = {label: curve[concurrency] for label, curve in curves.items() if concurrency in curve}
    if not here:
        return None
    top = max(here, key=lambda label: here[label].mean)
    tied = [label for label in here if not _beats(here[top], here[label])]
    return min(tied, key=lambda label: (depths[label], -here[label].mean))


def _beats(a: Estimate, b: Estimate) -> bool:
    """Whether `a` is above `b` by more than 1 % and the standard error of their difference.

    A schedule must choose.  Not by 95 % intervals: of two windows those are too wide to ever tell arms apart.
    """
    error = math.hypot(a.standard_error or 0.0, b.standard_error or 0.0)
    return a.mean - b.mean > max(TIE * b.mean, error)


def envelope(curves: Mapping[str, Curve]) -> dict[int, Estimate]:
    """The best of several arms at each concurrency."""
    levels = sorted({c for curve in curves.values() for c in curve})
    return {
        c: max((curve[c] for curve in curves.values() if c in curve), key=lambda e: e.mean) for c in levels
    }


def schedule(
    curves: Mapping[str, Curve], depths: Mapping[str, int], batch_sizes: Mapping[int, float]
) -> tuple[tuple[int, str], ...]:
    """The table from batch size to arm; `batch_sizes` gives what batch each concurrency makes.

    The first row begins at the batch of the lowest concurrency, since below that nothing is known; another
    where its arm's curve crosses the one before, or, where they do not cross in between, at the concurrency
    from which it was better.
    """
    levels = sorted({c for curve in curves.values() for c in curve})
    rows: list[tuple[int, str]] = []
    for low, high in itertools.pairwise([None, *levels]):
        assert high is not None  # noqa: S101 - for the type checker: only the first is None
        arm = best_arm(curves, depths, high)
        if arm is None or (rows and rows[-1][1] == arm):
            continue
        start = max(1, round(_batch_size(high, batch_sizes)))
        if low is not None and rows:
            crossing = crossovers(rows[-1][1], curves[rows[-1][1]], arm, curves[arm])
            between = [x.concurrency for x in crossing if low <= x.concurrency <= high]
            start = max(rows[-1][0] + 1, round(_batch_size(between[0] if between else high, batch_sizes)))
        rows.append((start, arm))
    return tuple(rows)


def _batch_size(concurrency: float, batch_sizes: Mapping[int, float]) -> float:
    """The batch that a concurrency makes, linear between the measured ones."""
    known = sorted(batch_sizes)
    for low, high in itertools.pairwise(known):
        if low <= concurrency <= high:
            share = (concurrency - low) / (high - low)
            return batch_sizes[low] + share * (batch_sizes[high] - batch_sizes[low])
    return concurrency


def worth(chosen: Mapping[int, Estimate], other: Curve) -> float | None:
    """Geometric mean of chosen over other, at the concurrencies that both have; `None` without any."""
    logs = [math.log(chosen[c].mean / other[c].mean) for c in chosen if c in other]
    return math.exp(sum(logs) / len(logs)) if logs else None


def advise(
    curves: Mapping[str, Curve],
    depths: Mapping[str, int],
    *,
    not_in_schedule: Mapping[str, str],
    batch_sizes: Mapping[int, float],
) -> Advice:
    """Draw the conclusion.

    `curves` holds every arm; `depths` those that hold one depth (0: no speculation), on any server;
    `not_in_schedule` those that no schedule of the governed server can hold, and why; all others are in
    `depths`.
    """
    mine = {label: curve for label, curve in curves.items() if label not in not_in_schedule}
    levels = sorted({c for curve in curves.values() for c in curve})
    chosen = {c: mine[arm][c] for c in levels if (arm := best_arm(mine, depths, c)) is not None}
    gains = {label: worth(chosen, curve) for label, curve in curves.items()}
    on = envelope({label: curve for label, curve in curves.items() if depths.get(label)})
    off = envelope({label: curve for label, curve in curves.items() if depths.get(label) == 0})
    return Advice(
        best={c: found for c in levels if (found := fastest(curves, c))},
        compared=tuple(sorted(on.keys() & off.keys())),
        crossovers=_clear_crossovers(on, off),
        schedule=schedule(mine, depths, batch_sizes),
        not_in_schedule={label: why for label, why in not_in_schedule.items() if label in curves},
        worth={label: gain for label, gain in gains.items() if gain is not None},
    )


def _clear_crossovers(on: Curve, off: Curve) -> tuple[Crossover, ...]:
    """Where speculation stops paying; what is ahead or behind within its error crosses nothing."""
    ahead = [c for c in on if c in off and _beats(on[c], off[c])]
    behind = [c for c in on if c in off and _beats(off[c], on[c])]
    found = crossovers("speculation", on, "no speculation", off)
    return tuple(x for x in found if min(ahead, default=math.inf) <= x.concurrency <= max(behind, default=0))
