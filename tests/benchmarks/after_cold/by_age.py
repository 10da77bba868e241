"""How often drafts are accepted so many tokens after a rise from off, beside the same text without the spell.

Pure: takes the steps of each request, `(tokens before the step, depth, accepted drafts)`, as `accept_log`
keeps them.  The age of a step is the tokens since the first step that drafted again.  Greedy requests write
the same text in every arm, so the same request without a spell has steps over the same text: those that begin
in the same range of tokens are the baseline.  Errors are of a bootstrap over requests, each drawn with its
baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DEPTH = 3
FOREVER = 1 << 20
BINS = ((0, 1), (1, 8), (8, 32), (32, 128), (128, FOREVER))
"""Ages in tokens, from and to; the first holds one step alone, whose drafts were made during the spell."""
ALL = (0, FOREVER)
RESAMPLES = 1000

Counts = npt.NDArray[np.float64]


class Step(NamedTuple):
    """One decode step of one request."""

    before: int
    """Tokens that the request had."""
    depth: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Spell:
    """Where a request stopped drafting and where it drafted again, in tokens, and the steps between."""

    begin: int
    rise: int
    steps: int


def spell_of(steps: Sequence[Step]) -> Spell | None:
    """The first spell at depth 0 that was followed by a draft; `None` when there was none."""
    off = [i for i, step in enumerate(steps) if step.depth == 0]
    if not off:
        return None
    rise = next((i for i in range(off[0], len(steps)) if steps[i].depth > 0), None)
    if rise is None:
        return None
    return Spell(steps[off[0]].before, steps[rise].before, rise - off[0])


def within(steps: Iterable[Step], begin: int, end: int) -> list[Step]:
    """Drafting steps that begin at `begin` up to before `end` tokens."""
    return [step for step in steps if step.depth == DEPTH and begin <= step.before < end]


def counts(steps: Iterable[Step]) -> Counts:
    """[steps, at least 1 accepted, at least 2, at least 3]: each is what the next one was exposed to."""
    accepted = np.array([step.accepted for step in steps], dtype=np.int64)
    return np.array([np.sum(accepted >= j) for j in range(DEPTH + 1)], dtype=np.float64)


def pair(
    after: Sequence[Step], without: Sequence[Step], spell: Spell, ages: tuple[int, int], end: int
) -> tuple[Counts, Counts]:
    """Counts of one request in a bin of ages: after its spell, and without it at the same places.

    `end`: tokens that both have; what is drafted past them is left out.
    """
    begin, until = spell.rise + ages[0], min(spell.rise + ages[1], end - DEPTH)
    if ages == (0, 1):
        return counts(within(after, begin, until)), counts(within(without, begin, end - DEPTH)[:1])
    return counts(within(after, begin, until)), counts(within(without, begin, until))


def same_roots(after: Sequence[Step], without: Sequence[Step], spell: Spell, end: int) -> tuple[int, int]:
    """Steps after the rise that begin where one of the other arm begins too; how many accepted the same.

    What is drafted depends on the text up to that place and on the draft's cache: with equal caches, all.
    """
    known = {step.before: step.accepted for step in without if step.depth == DEPTH}
    equal = [
        step.accepted == known[step.before]
        for step in within(after, spell.rise, end - DEPTH)
        if step.before in known
    ]
    return len(equal), sum(equal)


def share(part: Counts, whole: Counts) -> Counts:
    """`part / whole`, not a number where there is nothing to divide by."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole == 0, np.nan, part / whole)


def conditional(total: Counts) -> Counts:
    """p_j: of those of which j - 1 drafts were accepted, how many had the next accepted too."""
    return share(total[..., 1:], total[..., :-1])


def tokens_per_step(total: Counts) -> Counts:
    """Accepted drafts and the bonus token."""
    return 1.0 + share(total[..., 1:].sum(-1), total[..., 0])


def factor(baseline: Sequence[float], tokens: float) -> float:
    """The f with 1 + f p1 + f^2 p1 p2 + ... = `tokens`: what every p_j would have to be multiplied by.

    `baseline`: p_1, p_2, ...  Found by bisection; at most 2.
    """
    survival = np.cumprod(np.asarray(baseline, dtype=np.float64))
    powers = np.arange(1, len(survival) + 1)
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        if 1.0 + float(np.sum(survival * middle**powers)) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def summary(after: Counts, without: Counts, seed: int = 1) -> dict[str, Any]:
    """Figures of one bin from counts per request, [requests, 4] each; what nothing was seen of is `None`."""
    draw = np.random.default_rng(seed).integers(len(after), size=(RESAMPLES, len(after)))
    drawn, drawn_without = after[draw].sum(1), without[draw].sum(1)
    total, total_without = after.sum(0), without.sum(0)
    ratio, ratio_drawn = (
        share(conditional(one), conditional(other))
        for one, other in ((total, total_without), (drawn, drawn_without))
    )
    tokens, tokens_without = float(tokens_per_step(total)), float(tokens_per_step(total_without))
    return {
        "steps": int(total[0]),
        "accepted_at_least": [int(n) for n in total[1:]],
        "p": _known(conditional(total)),
        "p_error": _error(conditional(drawn)),
        "baseline_steps": int(total_without[0]),
        "baseline_p": _known(conditional(total_without)),
        "baseline_p_error": _error(conditional(drawn_without)),
        "ratio": _known(ratio),
        "ratio_error": _error(ratio_drawn),
        "tokens_per_step": _known([tokens])[0],
        "baseline_tokens_per_step": _known([tokens_without])[0],
        "tokens_ratio": _known([tokens / tokens_without])[0],
        "tokens_ratio_error": _error(
            (tokens_per_step(drawn) / tokens_per_step(drawn_without))[:, np.newaxis]
        )[0],
        "factor": _factor(conditional(total_without), tokens),
    }


def _known(values: Iterable[float]) -> list[float | None]:
    return [round(float(value), 4) if math.isfinite(value) else None for value in values]


def _error(drawn: Counts) -> list[float | None]:
    """Standard deviation over the resamples in which there was something to divide by."""
    columns = [column[np.isfinite(column)] for column in drawn.T]
    return _known([float(np.std(column)) if len(column) > 1 else math.nan for column in columns])


def _factor(baseline: Counts, tokens: float) -> float | None:
    return (
        round(factor(baseline, tokens), 4) if np.isfinite(baseline).all() and math.isfinite(tokens) else None
    )


def compare(
    after: Mapping[str, Sequence[Step]], without: Mapping[str, Sequence[Step]], ends: Mapping[str, int]
) -> dict[str, Any]:
    """An arm beside the one without a spell, request by request (the keys): a summary by bin of ages.

    `ends`: up to how many tokens the texts of a request are the same in both.  Requests that were not seen to
    have a spell, or not in both, or whose texts part before the rise, are left out and counted.
    """
    spells = {name: spell_of(steps) for name, steps in after.items() if name in without}
    found = {name: spell for name, spell in spells.items() if spell is not None and spell.rise < ends[name]}
    both = [same_roots(after[name], without[name], spell, ends[name]) for name, spell in found.items()]
    bins = []
    for ages in (*BINS, ALL):
        pairs = [pair(after[name], without[name], spell, ages, ends[name]) for name, spell in found.items()]
        if pairs:
            first, second = (np.stack(side) for side in zip(*pairs, strict=True))
            until = ages[1] if ages[1] < FOREVER else None
            bins.append({"from": ages[0], "to": until, **summary(first, second)})
    return {
        "requests": len(found),
        "left_out": len(after) - len(found),
        "spell_steps": [spell.steps for spell in found.values()],
        "rise_at_tokens": [spell.rise for spell in found.values()],
        "roots_in_both": sum(n for n, _ in both),
        "of_which_accepted_the_same": sum(n for _, n in both),
        "bins": bins,
    }
