"""Safety, wrapped around a policy: each guard is itself a policy.  `stack()` is their only order.

A guard sees the observation and the inner policy's proposal, and may turn the proposal into a hold or a
release.  Guards keep state from observations and from their own decisions only.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from policies.arms import deeper_anywhere, only_built, reverts
from policies.base import Policy
from policies.bounds import Count, NotNegative, Positive, check_bounds
from policies.crash_loop import CrashLoop, CrashLoopParams
from policies.freeze import Freeze
from policies.guard import ChangeGuard, Guard
from policies.override import Override
from policies.types import Action, Decision, Observation, Reason, Schedule
from policies.verification import VerificationParams, Verified


@dataclass(frozen=True, slots=True)
class GuardParams:
    """Parameters of the guards."""

    max_age_s: Positive = 5.0
    """Load figures older than this are stale: hold.  5 s: SGLang refreshes them every 15 decode
    steps, so this is a step of 0.33 s."""
    lost_after_s: Positive = 60.0
    """After this long without sound input control is handed back to SGLang, > `max_age_s`.  A minute
    outlasts a long prefill, during which an engine answers late."""
    dwell_down_s: NotNegative = 1.0
    """Least seconds between two changes.  Short: turning down under load must be quick."""
    dwell_up_s: NotNegative = 10.0
    """Least seconds from drafting less at some batch size to drafting as deep there again.  Long: coming back
    may wait."""
    max_switches: Count = 20
    """At most this many schedule changes in any `switch_window_s`; then only changes that draft
    nowhere deeper pass, so a flapping policy comes to rest at the shallow end."""
    switch_window_s: Positive = 300.0
    """Length of the window of `max_switches`.  20 in 300 s is 4 a minute; public reports of harm
    start at 18 a minute (1100 an hour)."""
    fallback_after: Count = 10
    """After this many failed decisions in a row `fallback` decides; until then each one holds."""
    fallback: Literal["native", "hold"] = "native"
    """What decides while the policy fails: `native` hands back to SGLang, `hold` keeps what is in force."""
    verification: VerificationParams = field(default_factory=VerificationParams)
    """When a change that did not bring more is taken back."""
    crash_loop: CrashLoopParams = field(default_factory=CrashLoopParams)
    """When an engine that keeps restarting is pinned to off."""

    def __post_init__(self) -> None:
        """Raise `ValueError` when a value is out of range."""
        check_bounds(self)
        if not self.lost_after_s > self.max_age_s:
            raise ValueError(
                f"lost_after_s must be above max_age_s ({self.max_age_s}), got {self.lost_after_s!r}"
            )
        if self.fallback not in ("native", "hold"):
            raise ValueError(f"fallback must be native or hold, got {self.fallback!r}")


_CUTS_KEPT = 64
"""So many cuts can be let through in a minute of changes a second apart."""


class Contained(Guard):
    """A policy that raises, or names an arm that is not built, holds; after too many times, `fallback`."""

    def __init__(self, inner: Policy, fallback_after: int, fallback: str) -> None:
        super().__init__(inner)
        self._fallback_after = fallback_after
        self._fallback = fallback
        self._failures = 0

    def decide(self, observation: Observation) -> Decision:
        """The proposal if it is sound."""
        try:
            proposal = self.inner.decide(observation)
        except Exception as error:  # noqa: BLE001  whatever a third party's policy raises
            return self._failed(f"{type(error).__name__}: {error}"[:300])
        if proposal.schedule is not None and not only_built(proposal.schedule, observation.built):
            return self._failed(f"names an arm that is not built: {proposal.schedule}")
        self._failures = 0
        return proposal

    def _failed(self, why: str) -> Decision:
        self._failures += 1
        spent = self._failures >= self._fallback_after
        action = Action.RELEASE if spent and self._fallback == "native" else Action.HOLD
        detail = f"policy {self.name} failed {self._failures} times in a row: {why}"
        evidence = {"failures": self._failures, "fallback": self._fallback if spent else None}
        return Decision(action, Reason.POLICY_ERROR, detail, evidence=evidence)


class Freshness(Guard):
    """Suspect or stale input holds; input that stays away hands back."""

    def __init__(self, inner: Policy, max_age_s: float, lost_after_s: float) -> None:
        super().__init__(inner)
        self._max_age_s = max_age_s
        self._lost_after_s = lost_after_s
        self._sound_s: float | None = None

    def decide(self, observation: Observation) -> Decision:
        """The proposal if the input is sound, else hold; release after `lost_after_s` without."""
        proposal = self.inner.decide(observation)
        now_s, age_s = observation.now_s, observation.load_age_s
        evidence = {"load_age_s": age_s, "max_age_s": self._max_age_s, "suspect": list(observation.suspect)}
        if self._sound_s is None:
            self._sound_s = now_s
        if observation.suspect:
            why = ", ".join(observation.suspect)
            held = Decision(Action.HOLD, Reason.SUSPECT_INPUT, f"held: {why}", evidence=evidence)
        elif age_s is None or age_s > self._max_age_s:
            aged = "is not known" if age_s is None else f"is {age_s:.1f} s old"
            held = Decision(Action.HOLD, Reason.STALE_INPUT, f"held: the load {aged}", evidence=evidence)
        else:
            self._sound_s = now_s
            return proposal
        lost_s = now_s - self._sound_s
        if lost_s <= self._lost_after_s:
            return held
        detail = f"handed back: no sound input for {lost_s:.0f} s ({held.detail})"
        return Decision(Action.RELEASE, Reason.LOST_INPUT, detail, evidence={**evidence, "lost_s": lost_s})


class Dwell(ChangeGuard):
    """Least time between changes: short for any; long for drafting as deep again where that was just cut.

    A change between gears of off cuts nothing, a cut at other batch sizes is no reason to wait, and neither
    is one of depth 4 for depth 1, which a probe has found since: dwelling is against going back and forth.
    """

    def __init__(self, inner: Policy, down_s: float, up_s: float) -> None:
        super().__init__(inner)
        self._down_s = down_s
        self._up_s = up_s
        self._changed_s = -math.inf
        self._cuts: deque[tuple[float, Schedule, Schedule]] = deque(maxlen=_CUTS_KEPT)

    def judge(self, proposal: Decision, current: Schedule, observation: Observation) -> Decision | None:
        """Hold until the dwell time of this direction is over."""
        wanted, now_s = proposal.schedule, observation.now_s
        while self._cuts and self._cuts[0][0] + self._up_s <= now_s:
            self._cuts.popleft()
        dwell_s, left_s = self._down_s, self._changed_s + self._down_s - now_s
        for cut_s, before, after in self._cuts:
            if wanted is not None and reverts(wanted, current, before, after):
                dwell_s, left_s = self._up_s, cut_s + self._up_s - now_s
        if left_s <= 0:
            self._note(observation.now_s, current, wanted)
            return None
        why = f" for another {max(0.1, left_s):.1f} s"
        return self.held(proposal, observation, Reason.DWELL, why, dwell_s=dwell_s, left_s=left_s)

    def changed(self, observation: Observation) -> None:
        """Start the dwell time."""
        self._changed_s = observation.now_s

    def _note(self, now_s: float, before: Schedule, after: Schedule | None) -> None:
        if after is not None and deeper_anywhere(before, after):
            self._cuts.append((now_s, before, after))


class SwitchBudget(ChangeGuard):
    """A bounded number of changes in a window; then nothing deeper."""

    def __init__(self, inner: Policy, max_switches: int, window_s: float) -> None:
        super().__init__(inner)
        self._max_switches = max_switches
        self._window_s = window_s
        self._changes_s: deque[float] = deque(maxlen=max_switches)

    def judge(self, proposal: Decision, current: Schedule, observation: Observation) -> Decision | None:
        """Hold a change that drafts deeper when the window is full."""
        while self._changes_s and self._changes_s[0] <= observation.now_s - self._window_s:
            self._changes_s.popleft()
        deeper = proposal.schedule is not None and deeper_anywhere(proposal.schedule, current)
        if len(self._changes_s) < self._max_switches or not deeper:
            return None
        switches, window_s = len(self._changes_s), self._window_s
        why = f": {switches} changes within {window_s:.0f} s"
        return self.held(
            proposal, observation, Reason.SWITCH_BUDGET, why, switches=switches, window_s=window_s
        )

    def changed(self, observation: Observation) -> None:
        """Count the change."""
        self._changes_s.append(observation.now_s)


class DryRun(Guard):
    """Nothing is applied; what would have been done stands in the evidence."""

    def decide(self, observation: Observation) -> Decision:
        """Hold, with the reason of the proposal."""
        proposal = self.inner.decide(observation)
        evidence = {
            **proposal.evidence,
            "dry_run": True,
            "would": str(proposal.action),
            "would_schedule": str(proposal.schedule) if proposal.schedule else None,
        }
        detail = f"dry run, not applied: {proposal.detail}"
        return dataclasses.replace(
            proposal, action=Action.HOLD, schedule=None, probe=None, detail=detail, evidence=evidence
        )


def pin_left_s(guarded: Policy) -> float | None:
    """Seconds that the crash loop in this `stack` pins off yet, orders above it or not; `None`: none."""
    inner: object = guarded
    while inner is not None and not isinstance(inner, CrashLoop):
        inner = getattr(inner, "inner", None)
    return inner.left_s if isinstance(inner, CrashLoop) else None


def stack(policy: Policy, params: GuardParams, *, dry_run: bool = False) -> Policy:
    """The policy in all its guards; the first line is asked last, the last has the last word."""
    guarded: Policy = Contained(policy, params.fallback_after, params.fallback)
    guarded = Freshness(guarded, params.max_age_s, params.lost_after_s)
    guarded = Dwell(guarded, params.dwell_down_s, params.dwell_up_s)
    guarded = SwitchBudget(guarded, params.max_switches, params.switch_window_s)
    guarded = Verified(guarded, params.verification)
    guarded = Freeze(guarded)
    guarded = CrashLoop(guarded, params.crash_loop)
    guarded = Override(guarded)
    return DryRun(guarded) if dry_run else guarded
