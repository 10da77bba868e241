"""An engine that keeps restarting under our control must not be steered into the next crash.

An operator's order stands above the pin without ending it.  What ends it early is an operator's `auto` that
is given while it lasts: whoever says so wants the policy to govern.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from policies import arms
from policies.base import Policy
from policies.bounds import Count, Positive, check_bounds
from policies.guard import Guard
from policies.soundness import elapsed_s
from policies.types import Action, Decision, Observation, Reason, Schedule


@dataclass(frozen=True, slots=True)
class CrashLoopParams:
    """What counts as a crash loop."""

    restarts: Count = 3
    """Engine restarts within `window_s` that pin speculation off."""
    window_s: Positive = 900.0
    """Length of the window.  Restarts of a large model take minutes."""
    pin_s: Positive = 3600.0
    """How long off is pinned after the last of them, a restart of the sidecar included.  `specgov override
    auto` ends it at once; another order stands above it, and leaves it there for when that order ends."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)


class CrashLoop(Guard):
    """Pins off after too many engine restarts; the inner policy goes on learning meanwhile.

    Once an operator has ended a pin, restarts are counted from nothing.
    """

    def __init__(self, inner: Policy, params: CrashLoopParams | None = None) -> None:
        super().__init__(inner)
        self._params = params or CrashLoopParams()
        self._restarts_s: deque[float] = deque(maxlen=self._params.restarts)
        self._epoch: int | None = None
        self._clock_s = 0.0
        self._now_s: float | None = None
        self._pinned_until_s: float | None = None
        self._auto_orders = 0
        self._resumed = False

    @property
    def left_s(self) -> float | None:
        """Seconds that off stays pinned, as of the latest observation; `None`: it is not pinned."""
        return None if self._pinned_until_s is None else self._pinned_until_s - self._clock_s

    def decide(self, observation: Observation) -> Decision:
        """The proposal, or off while pinned."""
        proposal = self.inner.decide(observation)
        self._clock_s += elapsed_s(self._now_s, observation.now_s)
        self._now_s = observation.now_s
        self._hear(observation)
        if self._epoch is not None and observation.engine_epoch != self._epoch:
            self._restarted()
        self._epoch = observation.engine_epoch
        if self._pinned_until_s is None or self._clock_s >= self._pinned_until_s:
            self._pinned_until_s = None
            return proposal
        return self._off(observation, self._pinned_until_s - self._clock_s)

    def _hear(self, observation: Observation) -> None:
        """Take up a pin from before a restart of the sidecar, once; end any when an operator says so."""
        kept_s = observation.pin_left_s
        if kept_s is not None and not self._resumed:
            until_s = self._clock_s + min(kept_s, self._params.pin_s)  # a wall clock may have been set
            self._pinned_until_s = max(until_s, self._pinned_until_s or until_s)
        self._resumed = kept_s is not None
        if observation.auto_orders != self._auto_orders:
            self._auto_orders, self._pinned_until_s = observation.auto_orders, None
            self._restarts_s.clear()

    def _restarted(self) -> None:
        self._restarts_s.append(self._clock_s)
        full = len(self._restarts_s) == self._params.restarts
        if full and self._clock_s - self._restarts_s[0] <= self._params.window_s:
            self._pinned_until_s = self._clock_s + self._params.pin_s

    def _off(self, observation: Observation, left_s: float) -> Decision:
        p = self._params
        why = f"{p.restarts} engine restarts within {p.window_s:.0f} s"
        evidence = {"restarts": p.restarts, "window_s": p.window_s, "left_s": round(left_s, 1)}
        arm = arms.off(observation.built)
        if arm is None:
            detail = f"handed back: {why}, and depth 0 is not built"
            return Decision(Action.RELEASE, Reason.CRASH_LOOP, detail, evidence=evidence)
        detail = f"off for another {left_s:.0f} s: {why}"
        return Decision(Action.GOVERN, Reason.CRASH_LOOP, detail, Schedule.constant(arm), evidence=evidence)
