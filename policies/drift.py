"""Have step times left what was learned?  A two-sided CUSUM over a long baseline; and how often changes come.

Each tick hands in one residual in standard deviations (what was seen minus what the long-run
estimate predicted).  The sums

    up_t   = max(0, up_{t-1}   + z_t - allowance)
    down_t = max(0, down_{t-1} - z_t - allowance)

stay near zero while the estimate holds, and grow by about (shift - allowance) a tick when it does not;
passing `threshold` is an alarm (Page, "Continuous inspection schemes", Biometrika 41, 1954).  One tick
counts for at most `clip` deviations, so that a single absurd reading never raises an alarm.
With allowance 0.5 and threshold 12 an alarm by pure chance takes of the order of exp(2*0.5*12), 160
thousand, ticks (Siegmund's approximation for Gaussian residuals).  Where residuals are not what their errors
say they are, `Watch` counts them by how far they scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.bounds import NotNegative, Positive, check_bounds

STANDS_OUT = 2.0
"""Deviations by which residuals scatter that count as one, where that is more than their error."""
SCATTER_TICKS, MOST_SCATTER = 60.0, 0.2
"""Ticks over which scatter is averaged, and the most that a residual counts in it, or a jump would hide."""


@dataclass(frozen=True, slots=True)
class DriftParams:
    """Sensitivity, in standard deviations of one tick's residual."""

    allowance: NotNegative = 0.5
    """Shifts below this are not drift."""
    threshold: Positive = 12.0
    """Accumulated excess that raises the alarm."""
    clip: Positive = 5.0
    """One tick counts for at most this much, either way, > `allowance`: else nothing adds up."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)
        if not self.clip > self.allowance:
            raise ValueError(f"clip must be above allowance ({self.allowance}), got {self.clip!r}")


@dataclass(slots=True)
class Cusum:
    """The two running sums."""

    params: DriftParams = field(default_factory=DriftParams)
    up: float = 0.0
    down: float = 0.0

    def update(self, z: float) -> bool:
        """Take one residual; `True` when it raises the alarm (the sums then start again)."""
        z = max(-self.params.clip, min(self.params.clip, z))
        self.up = max(0.0, self.up + z - self.params.allowance)
        self.down = max(0.0, self.down - z - self.params.allowance)
        if max(self.up, self.down) <= self.params.threshold:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """Forget the sums."""
        self.up = self.down = 0.0


@dataclass(slots=True)
class Watch:
    """A CUSUM of relative residuals, to which a change must stand out from how far ticks scatter anyway.

    On a host that others load, step times wander from second to second, all arms together: residuals are
    then larger than their errors say, and follow each other.
    """

    params: DriftParams = field(default_factory=DriftParams)
    sums: Cusum = field(init=False)
    mean: float = 0.0
    square: float = 0.0
    """Of the residuals of late: what lasts is in the mean, and no scatter."""

    def __post_init__(self) -> None:
        self.sums = Cusum(self.params)

    def update(self, residual: float, error: float) -> bool:
        """Take the relative residual of a tick and its standard error; `True` when it raises the alarm."""
        scatter = max(0.0, self.square - self.mean**2) ** 0.5
        alarm = self.sums.update(residual / max(error, STANDS_OUT * scatter))
        seen = max(-MOST_SCATTER, min(MOST_SCATTER, residual))
        self.mean += (seen - self.mean) / SCATTER_TICKS
        self.square += (seen**2 - self.square) / SCATTER_TICKS
        return alarm


@dataclass(slots=True)
class ChangeRate:
    """How often the world changes: alarms per second, learned (gamma prior, Poisson arrivals)."""

    alarms: float = 1.0
    watched_s: float = 1800.0
    """The prior: as if one change had been seen in half an hour."""

    def watch(self, seconds: float) -> None:
        """`seconds` more went by in which a change would have been seen."""
        self.watched_s += seconds

    def alarm(self) -> None:
        """A change was seen."""
        self.alarms += 1.0

    @property
    def per_s(self) -> float:
        """Expected changes per second."""
        return self.alarms / self.watched_s
