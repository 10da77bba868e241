"""What the figures mean: the crossover, the schedule to run, what it is worth.  Pure.

Between two measured concurrencies every arm's throughput is taken as a straight line in log2(concurrency).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.bench.statistics import Estimate, reach

TIE = 0.01
"""Arms closer than this are equal."""

Curve = Mapping[int, Estimate]
"""Concurrency to output tokens per second."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where `falling` stops being faster than `rising`, in requests at once."""

    falling: str
    rising: str
    concurrency: float


@dataclass(frozen=True, slots=True)
class Undecided:
    """`falling` is told ahead at `low` requests at once, behind at `high`, and at none between is it told."""

    falling: str
    rising: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Worth:
    """The schedule's throughput over an arm's, with the 95 % interval; `None`: no spread is known."""

    ratio: float
    low: float | None
    high: float | None

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out 1: the two are further apart than chance has it."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def inverse(self) -> Worth:
        """The arm's throughput over the schedule's."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Worth(1 / self.ratio, low, high)


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
    """Of the best speculating arm with the best that does not speculate, ascending, within `compared`.

    Only between two neighbours of `compared` at which they are told apart (`fastest`).
    """
    undecided: tuple[Undecided, ...]
    """Of the same, where concurrencies lie between at which they are not told apart."""
    schedule: tuple[tuple[int, str], ...]
    """(from batch size, arm), of the arms that can be steered on one server."""
    not_in_schedule: Mapping[str, str]
    """Arms that were measured and can be in no schedule, and why."""
    worth: Mapping[str, Worth]
    """Geometric mean over the measured concurrencies of the schedule's throughput over the arm's."""
    instead: str | None
    """The arm to run rather than the schedule: the fastest of those that it is told to be worth less than."""


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


@dataclass(frozen=True, slots=True)
class _Path:
    """An arm for each of the concurrencies up to one; `cost` is rows, shortfall, sum of depths."""

    cost: tuple[int, float, int] = (0, 0.0, 0)
    arms: tuple[str, ...] = ()

    def then(self, arm: str, *, short: float, depth: int) -> _Path:
        rows, shortfall, drafted = self.cost
        changes = self.arms[-1:] != (arm,)
        return _Path((rows + changes, shortfall + short, drafted + depth), (*self.arms, arm))


def choices(curves: Mapping[str, Curve], depths: Mapping[str, int]) -> dict[int, str]:
    """The arm to run at each concurrency: one that the fastest there is not told from (`fastest`).

    Of all tables of such arms one with the fewest rows, so that a tie changes no arm; of those the one whose
    means fall least short of those of `best_arm` (sum of log ratios), and then the one that drafts least.
    """
    levels = sorted({c for curve in curves.values() for c in curve})
    paths = [_Path()]  # the cheapest that end in each arm
    for level in levels:
        best = best_arm(curves, depths, level)
        short = {
            arm: max(0.0, math.log(curves[best][level].mean / curves[arm][level].mean))
            for arm in fastest(curves, level) or (best,)
        }
        paths = [
            min((path.then(arm, short=short[arm], depth=depths[arm]) for path in paths), key=lambda p: p.cost)
            for arm in short
        ]
    return dict(zip(levels, min(paths, key=lambda path: path.cost).arms, strict=True))


def best_arm(curves: Mapping[str, Curve], depths: Mapping[str, int], concurrency: int) -> str:
    """Of the arms that the fastest does not beat (`_beats`) the one that drafts least.

    Raises `ValueError` where no arm has a figure.
    """
    here = {label: curve[concurrency] for label, curve in curves.items() if concurrency in curve}
    top = max(here, key=lambda label: here[label].mean)
    tied = [label for label in here if not _beats(here[top], here[label])]
    return min(tied, key=lambda label: (depths[label], -here[label].mean))


def _beats(a: Estimate, b: Estimate) -> bool:
    """Whether `a` is above `b` by more than 1 % and the standard error of their difference.

    A choice among arms that are not told apart, not a claim: of two windows 95 % intervals are wide.
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
    curves: Mapping[str, Curve], chosen: Mapping[int, str], batch_sizes: Mapping[int, float]
) -> tuple[tuple[int, str], ...]:
    """The table from batch size to arm that makes `choices`; `batch_sizes`: what batch a concurrency makes.

    The first row begins at the batch of the lowest concurrency, since below that nothing is known; another
    where its arm's curve crosses the one before, or, where they do not cross in between, at the concurrency
    from which it is taken.
    """
    rows = [
        (max(1, round(_batch_size(c, batch_sizes))), arm) for c, arm in itertools.islice(chosen.items(), 1)
    ]
    for (low, before), (high, arm) in itertools.pairwise(chosen.items()):
        if arm != before:
            crossing = crossovers(before, curves[before], arm, curves[arm])
            between = [x.concurrency for x in crossing if low <= x.concurrency <= high]
            start = round(_batch_size(between[0] if between else high, batch_sizes))
            rows.append((max(rows[-1][0] + 1, start), arm))
    return tuple(rows)


def _batch_size(concurrency: float, batch_sizes: Mapping[int, float]) -> float:
    """The batch that a concurrency makes, linear between the measured ones."""
    known = sorted(batch_sizes)
    for low, high in itertools.pairwise(known):
        if low <= concurrency <= high:
            share = (concurrency - low) / (high - low)
            return batch_sizes[low] + share * (batch_sizes[high] - batch_sizes[low])
    return concurrency


def worth(chosen: Mapping[int, Estimate], other: Curve) -> Worth | None:
    """Geometric mean of chosen over other, at the concurrencies that both have; `None` without any.

    The interval is that of the mean of logarithms (delta method), whose degrees of freedom are Welch and
    Satterthwaite's.  Where the chosen is the other itself the ratio is 1, without error.
    """
    pairs = [(chosen[c], other[c]) for c in chosen if c in other]
    if not pairs:
        return None
    mean = sum(math.log(a.mean / b.mean) for a, b in pairs) / len(pairs)
    differing = [(a, b) for a, b in pairs if a is not b]
    if any(e.standard_error is None for pair in differing for e in pair):
        return Worth(math.exp(mean), None, None)
    half = _half_width(differing, len(pairs))
    return Worth(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _half_width(pairs: Sequence[tuple[Estimate, Estimate]], count: int) -> float:
    """Of the 95 % interval of the sum of log ratios over `count`; every mean has a standard error."""
    variances = [sum(((e.standard_error or 0.0) / e.mean) ** 2 for e in pair) for pair in pairs]
    total = sum(variances)
    if not total:
        return 0.0
    parts = sum(v**2 / (a.n + b.n - 2) for v, (a, b) in zip(variances, pairs, strict=True))
    freedom = max(1, math.floor(total**2 / parts))
    exact = Estimate(0.0, None, 1)
    return reach(Estimate(0.0, None, freedom + 1, math.sqrt(total) / count), exact)


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
    chosen = choices(mine, depths)
    figures = {c: mine[arm][c] for c, arm in chosen.items()}
    gains = {label: gain for label, curve in curves.items() if (gain := worth(figures, curve)) is not None}
    on = envelope({label: curve for label, curve in curves.items() if depths.get(label)})
    off = envelope({label: curve for label, curve in curves.items() if depths.get(label) == 0})
    turns = tuple(_turns(on, off))
    return Advice(
        best={c: found for c in levels if (found := fastest(curves, c))},
        compared=tuple(sorted(on.keys() & off.keys())),
        crossovers=tuple(turn for turn in turns if isinstance(turn, Crossover)),
        undecided=tuple(turn for turn in turns if isinstance(turn, Undecided)),
        schedule=schedule(mine, chosen, batch_sizes),
        not_in_schedule={label: why for label, why in not_in_schedule.items() if label in curves},
        worth=gains,
        instead=_instead(gains),
    )


def _instead(gains: Mapping[str, Worth]) -> str | None:
    better = {label: gain.ratio for label, gain in gains.items() if gain.is_told and gain.ratio < 1 - TIE}
    return min(better, key=lambda label: better[label]) if better else None


def _turns(on: Curve, off: Curve) -> Iterator[Crossover | Undecided]:
    """From each concurrency at which speculation is told ahead to the next told one, if behind there."""
    shared = sorted(on.keys() & off.keys())
    ahead = {c for c in shared if _is_above(on[c], off[c])}
    behind = {c for c in shared if _is_above(off[c], on[c])}
    names = "speculation", "no speculation"
    for low, high in itertools.pairwise(c for c in shared if c in ahead | behind):
        if low in ahead and high in behind:
            if shared.index(high) == shared.index(low) + 1:
                falling, rising = ({c: curve[c] for c in (low, high)} for curve in (on, off))
                yield from crossovers(names[0], falling, names[1], rising)
            else:
                yield Undecided(*names, low, high)
