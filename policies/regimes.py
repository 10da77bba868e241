"""Since when has acceptance been what it is, and was it like this before?  Change points in counts of drafts.

Plain words: several accounts of the past are kept side by side.  Each says that nothing has changed since a
certain tick, from which on either nothing was known or a regime that was met before came back.  Each tick,
every account foretells the counts; those that foretell badly lose their weight.  One tick that contradicts
what was learned is so answered at once, in all positions of the chain together, and as surely as its counts
allow: old counts are not averaged away, they are dropped.

The maths: Bayesian on-line change points (Adams & MacKay, arXiv:0710.3742, 2007), with beta-binomial
predictions for every draft position (they change together),

    weight(run) <- weight(run) * (1 - c) * P(counts | run)
    weight(born now) = c / 2 for a run that knows nothing, c / 2 shared by those that go on from a regime met
                       before (mixing past posteriors: Bousquet & Warmuth, JMLR 3, 2002)

with c the probability of a change since the counts before, from the learned rate of changes.  Counts are
divided by the dispersion (requests of a batch are not independent), and one tick is never believed to tell
p more exactly than `LEAST_SHIFT`: what is less is no change, it is the mix of prompts.

False alarms: a change is announced when the run that was settled on has less than `DOUBT` left.  While
nothing changes, a likelihood ratio is a martingale: it ever exceeds K with probability 1 / K at most (Ville).
So a run born by chance at a given tick displaces the settled one with probability c * DOUBT at most: where
one change in half an hour is expected, one false alarm in 50 hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LEAST_SHIFT = 0.01
"""Shifts of p below this are not changes: they move goodput by about a percent."""
DOUBT = 0.01
"""Weight left to the settled run at which a change is announced."""
SURE = 0.9
"""Weight from which on what the settled run knows is what will be remembered of it."""
NEGLIGIBLE, MAX_RUNS = 1e-4, 6
MAX_REGIMES = 4
"""Regimes remembered after they ended; the one that was met longest ago is forgotten first."""
SETTLED_TICKS = 3
"""A run that lasts for less is no regime, it is the tick in which a change fell: half before, half after."""
BRIEF_TICKS = 30
"""A regime that lasted for less was not one: it was a single request, and the next one is another."""


@dataclass(slots=True)
class Counts:
    """Exponentially forgotten counts per draft position (index 0 is draft 1)."""

    hits: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)

    def copy(self) -> Counts:
        """Counts of its own."""
        return Counts(list(self.hits), list(self.exposed))

    def grow(self, size: int) -> None:
        """Make room for `size` positions."""
        missing = size - len(self.hits)
        self.hits.extend([0.0] * missing)
        self.exposed.extend([0.0] * missing)

    def add(
        self, hits: Sequence[float], exposed: Sequence[float], dt_s: float, half: tuple[float, float]
    ) -> None:
        """Fade by the slower of the two half-lives (request-steps, seconds), then add."""
        self.grow(len(hits))
        half_steps, half_s = half
        fade_s = 2.0 ** (-dt_s / half_s)
        for j, (h, n) in enumerate(zip(hits, exposed, strict=True)):
            if n <= 0 and half_steps:
                continue
            fade = max(fade_s, 2.0 ** (-n / half_steps)) if half_steps else fade_s
            self.hits[j] = self.hits[j] * fade + h
            self.exposed[j] = self.exposed[j] * fade + n


@dataclass(slots=True)
class Run:
    """One account: nothing has changed for `ticks` ticks with counts."""

    counts: Counts
    weight: float
    ticks: int = 0
    regime: Counts | None = None
    """The remembered regime that it goes on from."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick showed, and how much of it is believed."""

    hits: Sequence[float]
    exposed: Sequence[float]
    scale: Sequence[float]
    """By which the counts of each position are divided before they are believed, >= 1."""
    prior: float
    """Strength of the prior of a position, in request-steps."""
    dispersion: float

    def log_likelihood(self, counts: Counts) -> float:
        """Log of the probability of this tick's counts under a run (but for what is common to all runs)."""
        total = 0.0
        for j, (h, n) in enumerate(zip(self.hits, self.exposed, strict=True)):
            if n <= 0:
                continue
            known = j < len(counts.hits)
            a = 0.5 * self.prior + (counts.hits[j] / self.dispersion if known else 0.0)
            both = self.prior + (counts.exposed[j] / self.dispersion if known else 0.0)
            more, of = h / self.scale[j], n / self.scale[j]
            total += log_beta(a + more, both - a + of - more) - log_beta(a, both - a)
        return total


def log_beta(a: float, b: float) -> float:
    """Logarithm of the beta function, a and b > 0."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


class Regimes:
    """The runs, and the regimes that are remembered."""

    def __init__(self) -> None:
        self.runs = [Run(Counts(), 1.0)]
        self.past: list[Counts] = []
        self._settled = self.runs[0]
        self._sure = Counts()
        """What the settled run knew when it was last sure."""
        self.lasted_ticks = 0
        """For how many ticks with counts the latest regime lasted that has ended."""

    @property
    def settled(self) -> Counts:
        """What is known since the latest change."""
        return self._settled.counts

    def restore(self, settled: Counts, past: Iterable[Counts]) -> None:
        """Go on from what was known."""
        self.runs = [Run(settled, 1.0, BRIEF_TICKS)]
        self.past = list(past)[-MAX_REGIMES:]
        self._settled, self._sure = self.runs[0], settled.copy()

    def observe(self, tick: Tick, dt_s: float, half: tuple[float, float], changed: float) -> bool:
        """Take one tick; `changed`: chance of a change since the one before.  `True`: one is announced.

        `half`: half-lives of the counts within a run, in request-steps and seconds.
        """
        runs = [*self.runs, *self._born(changed)]
        for run in self.runs:
            run.weight *= 1.0 - changed
        self._weigh(runs, tick)
        if self._settled.weight >= SURE:
            self._sure = self._settled.counts.copy()
        for run in self.runs:
            run.counts.add(tick.hits, tick.exposed, dt_s, half)
            run.ticks += 1
        return self._settle()

    def _born(self, changed: float) -> list[Run]:
        fresh = changed * (0.5 if self.past else 1.0)
        back = [Run(known.copy(), (changed - fresh) / len(self.past), 0, known) for known in self.past]
        return [Run(Counts(), fresh), *back]

    def _weigh(self, runs: list[Run], tick: Tick) -> None:
        """Weigh the runs by how well they foretold the tick, and drop those that do not count."""
        told = [tick.log_likelihood(run.counts) for run in runs]
        best = max(told)
        for run, log_likelihood in zip(runs, told, strict=True):
            run.weight *= math.exp(max(-700.0, log_likelihood - best))
        total = math.fsum(run.weight for run in runs)
        for run in runs:
            run.weight /= total
        runs.sort(key=lambda run: -run.weight)
        self.runs = [run for run in runs[:MAX_RUNS] if run.weight >= NEGLIGIBLE]

    def _settle(self) -> bool:
        """Whether another run is now to be settled on, and a regime ends with that."""
        settled, best = self._settled, self.runs[0]
        if settled.weight >= DOUBT and settled in self.runs:
            return False
        lasted = settled.ticks > SETTLED_TICKS
        if lasted:
            self.lasted_ticks = settled.ticks
            kept = [known for known in self.past if known is not settled.regime]
            self.past = [*kept, self._sure][-MAX_REGIMES:]
        self._settled, self._sure = best, best.counts.copy()
        return lasted
