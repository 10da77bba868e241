"""After a change, was it right?  Measured against measured; taken back when it was not.

Independent of any policy's model: before a change and after it the speed of the batch-size bucket that is in
use is taken from the telemetry, and both are compared at the same acceptance.

    speed = timed request-steps / timed seconds          rate = speed * (1 + S(1) + ... + S(depth))

A longer step pays what prefills cost beside their tokens less often; what that spares is counted too
(`prefill_cost.py`), or a change that was made for it would be blamed for its longer steps.
S, the survival of accepted drafts, is what is known of it when the two are compared (`acceptance.py`, an
account of its own): of drafts that are made no more, only what was seen since acceptance last changed.  Else
a change that answers a fall of acceptance would be blamed for it.  A loss must exceed the errors of both
speeds and of S.  "Before" is just before: a speed fades while it is not seen.  Requests that lived through a
cold step are left out.

The policy is told which arms rest where, so that it can choose the next best; one that does not listen gets
what was in force there before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from policies.acceptance import Survival, yields
from policies.base import Policy
from policies.bounds import Bound, NotNegative, Positive, Share, check_bounds
from policies.guard import Guard
from policies.prefill_cost import PrefillCost
from policies.soundness import elapsed_s, sound_cells
from policies.step_cost import KNOTS, bucket_index
from policies.types import Action, Arm, CellDelta, Decision, Observation, Reason, Row, Schedule

MEMORY_TICKS = 20.0
"""Half-life of a speed in ticks, those in which it was not seen included."""
ENOUGH_TICKS = 2.0
"""A speed before the change that is known from fewer is not compared."""


@dataclass(frozen=True, slots=True)
class VerificationParams:
    """When a change has failed."""

    tolerance: Share = 0.05
    """A rate lower by this share is let pass: batches differ within a bucket."""
    confidence: NotNegative = 2.0
    """Standard errors that the loss must exceed on top."""
    ticks: Annotated[int, Bound(at_least=2)] = 5
    """Ticks with clean steps that are needed after the change."""
    patience_s: Positive = 60.0
    """A change whose bucket does not come up for so long is taken as it is."""
    rest_s: Positive = 60.0
    """First rest of an arm that failed in a bucket; doubles with each failure."""
    max_rest_s: Positive = 3600.0
    """Longest rest, >= `rest_s`."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)
        if self.max_rest_s < self.rest_s:
            raise ValueError(f"max_rest_s must be >= rest_s ({self.rest_s}), got {self.max_rest_s!r}")


@dataclass(slots=True)
class Speed:
    """Mean and variance of the ticks' request-steps per second, exponentially forgotten."""

    ticks: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    seen_at: int = 0
    """Number of the tick that was added last."""

    def add(self, speed: float, tick: int) -> None:
        """One more, of tick number `tick`."""
        self.ticks = self.known(tick) + 1.0
        delta = speed - self.mean
        self.mean += delta / self.ticks
        self.variance += (delta * (speed - self.mean) - self.variance) / self.ticks
        self.seen_at = tick

    def known(self, tick: int) -> float:
        """How many ticks it is worth at tick number `tick`."""
        return self.ticks * math.exp2((self.seen_at - tick) / MEMORY_TICKS)

    @property
    def error(self) -> float:
        """Relative standard error of the mean."""
        return math.sqrt(max(0.0, self.variance) / max(1.0, self.ticks)) / self.mean


@dataclass(slots=True)
class Trial:
    """A change that is being looked at, in one bucket."""

    bucket: int
    arm: Arm
    before: Schedule
    arm_before: Arm
    baseline: Speed
    batch: float
    """Mean batch size when the change was made."""
    since_s: float
    after: Speed = field(default_factory=Speed)

    def compare(self, survival: Survival, prefill: PrefillCost) -> Rates:
        """Both rates at the acceptance, and with the prefills, that are known now."""
        depths = [self.arm_before.depth, self.arm.depth]
        tokens = yields(*survival.conditional(max(1, *depths)), depths)
        emitted, speeds = np.exp(tokens.log_tokens), np.array([self.baseline.mean, self.after.mean])
        fit = prefill.fit(float(self.batch / speeds.max()))
        added_s = prefill.amortized_s(self.batch * emitted, fit)
        before, after = emitted * speeds / (1.0 + added_s * speeds / self.batch)
        of_tokens = math.sqrt(tokens.difference_variance(np.array([0]))[0, 1])
        error = math.hypot(self.baseline.error, self.after.error, of_tokens)
        return Rates(float(before), float(after), error)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second before and after a change, and the standard error of their log ratio."""

    before: float
    after: float
    error: float


@dataclass(slots=True)
class Rested:
    """An arm that failed in a bucket."""

    until_s: float
    next_s: float


class Verified(Guard):
    """Takes back a change that lowered the measured rate, and rests the arm in that bucket."""

    def __init__(self, inner: Policy, params: VerificationParams | None = None) -> None:
        super().__init__(inner)
        self._params = params or VerificationParams()
        self._speeds: dict[tuple[int, Arm], Speed] = {}
        self._survival = Survival()
        self._prefill = PrefillCost()
        self._rests: dict[tuple[int, Arm], Rested] = {}
        self._current: Schedule | None = None
        self._trial: Trial | None = None
        self._clock_s = 0.0
        self._now_s: float | None = None
        self._tick = 0

    def decide(self, observation: Observation) -> Decision:
        """The proposal, without arms that rest; or the schedule before, when the change has failed."""
        dt_s = elapsed_s(self._now_s, observation.now_s)
        self._clock_s += dt_s
        self._now_s = observation.now_s
        resting = tuple((KNOTS[k], arm) for k, arm in self._resting())
        proposal = self.inner.decide(dataclasses.replace(observation, resting=resting))
        cells = sound_cells(observation.cells)
        self._measure(cells, dt_s)
        self._prefill.observe(cells, self._step_s)
        if proposal.action is Action.RELEASE:
            self._current = self._trial = None
            return proposal
        failed = self._judge()
        if failed is not None and all(row.arm in observation.built for row in failed[0].before.rows):
            return self._take_back(*failed)
        if proposal.schedule is None or proposal.schedule == self._current:
            return proposal
        return self._let_through(proposal, proposal.schedule, cells)

    def _measure(self, cells: Sequence[CellDelta], dt_s: float) -> None:
        self._tick += 1
        self._survival.observe(cells, dt_s)
        for cell in cells:
            speed, key = clean_speed(cell), (bucket_index(cell.batch_bucket), cell.arm)
            if speed is None:
                continue
            self._speeds.setdefault(key, Speed()).add(speed, self._tick)
            if self._trial is not None and key == (self._trial.bucket, self._trial.arm):
                self._trial.after.add(speed, self._tick)

    def _step_s(self, cell: CellDelta) -> float | None:
        """What a clean step of `cell` takes, as far as it was seen."""
        speed = self._speeds.get((bucket_index(cell.batch_bucket), cell.arm))
        return None if speed is None or cell.steps <= 0 else cell.request_steps / cell.steps / speed.mean

    def _judge(self) -> tuple[Trial, Rates] | None:
        """The trial, when it has failed; one that has passed or waited too long ends."""
        trial, p = self._trial, self._params
        if trial is None:
            return None
        if trial.after.ticks < p.ticks * 0.9:
            if self._clock_s - trial.since_s > p.patience_s:
                self._trial = None
            return None
        self._trial = None
        seen = trial.compare(self._survival, self._prefill)
        if seen.after >= seen.before * (1 - p.tolerance - p.confidence * seen.error):
            self._rests.pop((trial.bucket, trial.arm), None)
            return None
        return trial, seen

    def _take_back(self, trial: Trial, seen: Rates) -> Decision:
        key = (trial.bucket, trial.arm)
        rest = self._rests.get(key, Rested(0.0, self._params.rest_s))
        self._rests[key] = Rested(self._clock_s + rest.next_s, min(2 * rest.next_s, self._params.max_rest_s))
        self._current = trial.before
        evidence = {
            "batch_bucket": KNOTS[trial.bucket],
            "arm": str(trial.arm),
            "before_tok_s": round(seen.before, 3),
            "after_tok_s": round(seen.after, 3),
            "relative_error": round(seen.error, 4),
            "rest_s": rest.next_s,
        }
        detail = (
            f"depth {trial.arm} brings {seen.after:.0f} tok/s from batch size {KNOTS[trial.bucket]}, "
            f"depth {trial.arm_before} {seen.before:.0f}: taken back, rests {rest.next_s:.0f} s"
        )
        return Decision(Action.GOVERN, Reason.ROLLED_BACK, detail, trial.before, evidence=evidence)

    def _let_through(self, proposal: Decision, schedule: Schedule, cells: Iterable[CellDelta]) -> Decision:
        current = self._current
        if current is None:
            self._current = schedule
            return proposal
        allowed = self._without_resting(schedule, current)
        if allowed == current:
            detail = f"held, the arm rests after it failed: {proposal.detail}"
            return Decision(Action.HOLD, Reason.ARM_RESTING, detail, evidence=proposal.evidence)
        self._begin(allowed, current, cells)
        self._current = allowed
        return Decision(
            Action.GOVERN, proposal.reason, proposal.detail, allowed, proposal.probe, proposal.evidence
        )

    def _begin(self, schedule: Schedule, current: Schedule, cells: Iterable[CellDelta]) -> None:
        """Watch the bucket in use, if its arm changes and its rate before is known."""
        busiest = max(cells, key=lambda cell: cell.steps, default=None)
        if busiest is None or busiest.steps <= 0:
            return
        k = bucket_index(busiest.batch_bucket)
        arm, before = schedule.arm_for(KNOTS[k]), current.arm_for(KNOTS[k])
        baseline = self._speeds.get((k, before))
        if arm == before or baseline is None or baseline.known(self._tick) < ENOUGH_TICKS:
            return
        known = dataclasses.replace(baseline, ticks=baseline.known(self._tick))
        batch = busiest.request_steps / busiest.steps
        self._trial = Trial(k, arm, current, before, known, max(1.0, batch), self._clock_s)

    def _resting(self) -> list[tuple[int, Arm]]:
        return [key for key, rest in self._rests.items() if self._clock_s < rest.until_s]

    def _without_resting(self, schedule: Schedule, current: Schedule) -> Schedule:
        """`schedule`, but as in `current` in every bucket where its arm rests."""
        resting = self._resting()
        if not resting:
            return schedule
        starts = sorted({*KNOTS, *(r.min_batch_size for r in (*schedule.rows, *current.rows))})
        rows = []
        for start in starts:
            arm = schedule.arm_for(start)
            rests = (bucket_index(start), arm) in resting
            rows.append(Row(start, current.arm_for(start) if rests else arm))
        return Schedule(tuple(rows)).merged()


def clean_speed(cell: CellDelta) -> float | None:
    """Request-steps per second of a cell's clean steps; `None`: unknown."""
    if cell.timed_steps < 2 or cell.timed_seconds <= 0 or cell.timed_request_steps <= 0:
        return None
    return cell.timed_request_steps / cell.timed_seconds
