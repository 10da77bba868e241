"""Acknowledged is not applied: whether the engine's telemetry shows the plan at work.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controller.control_state import ControlState, Plan, RankTelemetry
from policies.types import Arm

IN_FLIGHT_STEPS = 4
"""Decode steps after the acknowledgement whose results may still be of the plan before: the overlap
scheduler launches one step ahead and its result arrives one step late, on either side of the swap."""


NOT_ACKNOWLEDGED = "not acknowledged by every rank"
NO_STEP = "no decode step since"
"""Why a plan that is acknowledged is not known to be applied: nothing has run since."""


class Effect(StrEnum):
    """How far a wanted plan has come."""

    NONE = "none"
    """No plan is wanted."""
    PENDING = "pending"
    """Wanted, not acknowledged by every rank."""
    ACKNOWLEDGED = "acknowledged"
    """Every rank has taken it; no decode step has shown it yet: it is new, or there is no load."""
    APPLIED = "applied"
    """The decode steps since show the arms of the plan."""
    UNCONFIRMED = "unconfirmed"
    """Under load the steps show other arms than the plan's."""
    INERT = "inert"
    """Control is wanted and has had no effect for too long."""


@dataclass(frozen=True, slots=True)
class EffectState:
    """An effect, since when (monotonic seconds of the loop) and why."""

    effect: Effect
    since_s: float
    detail: str


class EffectTracker:
    """Follows one plan at a time."""

    def __init__(self, confirm_within_s: float, inert_after_s: float, began_s: float) -> None:
        """`began_s`: the loop's time now, since which no plan is wanted; its clock need not begin at 0."""
        self._confirm_within_s = confirm_within_s
        self._inert_after_s = inert_after_s
        self._plan: Plan | None = None
        self._steps: dict[int, int] | None = None
        self._unmet_s: float | None = None
        self.now = EffectState(Effect.NONE, began_s, "no plan is wanted")
        """As of the last `update`."""

    def update(
        self,
        now_s: float,
        *,
        wanted: Plan | None,
        acknowledged: bool,
        obstacle: str | None,
        control: ControlState | None,
    ) -> EffectState:
        """Judge anew.  `obstacle`: why wanted control cannot even be tried; `None`: nothing is in the way."""
        other = (wanted and wanted.schedule) != (self._plan and self._plan.schedule)
        if other:
            self._steps, self._unmet_s = None, None
        self._plan = wanted
        effect, detail = self._judge(wanted, acknowledged=acknowledged, obstacle=obstacle, control=control)
        effect, detail = self._aged(effect, detail, now_s)
        since_s = self.now.since_s if effect is self.now.effect and not other else now_s
        self.now = EffectState(effect, since_s, detail)
        return self.now

    def _judge(
        self, wanted: Plan | None, *, acknowledged: bool, obstacle: str | None, control: ControlState | None
    ) -> tuple[Effect, str]:
        """The effect without regard to time; `PENDING` and `UNCONFIRMED` are what time makes worse."""
        if obstacle is not None:
            self._steps = None
            return Effect.PENDING, obstacle
        if wanted is None:
            return Effect.NONE, "no plan is wanted"
        if not acknowledged:
            self._steps = None
            return Effect.PENDING, NOT_ACKNOWLEDGED
        return self._seen(wanted, control.telemetry if control else ())

    def _seen(self, wanted: Plan, telemetry: tuple[RankTelemetry, ...]) -> tuple[Effect, str]:
        ranks = [rank for rank in telemetry if rank.decode_steps is not None]
        if self._steps is None:
            self._steps = {rank.dp_rank: rank.decode_steps or 0 for rank in ranks}
            return Effect.ACKNOWLEDGED, NO_STEP
        moved = [rank for rank in ranks if self._steps_since(rank) >= IN_FLIGHT_STEPS]
        if not moved:
            return self._kept(NO_STEP)
        other = [rank for rank in moved if not _shows(wanted, rank)]
        if not other:
            return Effect.APPLIED, f"depth {moved[0].arm} in use at batch size {moved[0].batch_size}"
        seen = ", ".join(
            f"dp_rank {r.dp_rank}: depth {r.arm} at batch size {r.batch_size}" for r in other[:4]
        )
        return Effect.UNCONFIRMED, f"the plan is {wanted.schedule}, in use is {seen}"

    def _kept(self, detail: str) -> tuple[Effect, str]:
        """What was shown before stays shown until something else is seen."""
        if self.now.effect in (Effect.APPLIED, Effect.UNCONFIRMED, Effect.INERT) and self._steps is not None:
            shown = Effect.APPLIED if self.now.effect is Effect.APPLIED else Effect.UNCONFIRMED
            return shown, self.now.detail
        return Effect.ACKNOWLEDGED, detail

    def _steps_since(self, rank: RankTelemetry) -> int:
        known = (self._steps or {}).setdefault(rank.dp_rank, rank.decode_steps or 0)
        return (rank.decode_steps or 0) - known

    def _aged(self, effect: Effect, detail: str, now_s: float) -> tuple[Effect, str]:
        if effect not in (Effect.PENDING, Effect.UNCONFIRMED):
            self._unmet_s = None
            return effect, detail
        if self._unmet_s is None:
            self._unmet_s = now_s
        unmet_s = now_s - self._unmet_s
        if unmet_s > self._inert_after_s:
            return Effect.INERT, detail
        if effect is Effect.UNCONFIRMED and unmet_s <= self._confirm_within_s:
            return Effect.ACKNOWLEDGED, f"waiting to see it: {detail}"
        return effect, detail


def _shows(plan: Plan, rank: RankTelemetry) -> bool:
    """Whether the latest step of `rank` ran an arm of the plan.

    The batch may have been larger when the depth was looked up: requests that finish in a step no longer
    count in its result.
    """
    if rank.arm is None or rank.batch_size is None:
        return False
    size = rank.batch_size
    allowed: set[Arm] = {plan.schedule.arm_for(n) for n in (*range(size, size + 5), size + size // 4)}
    probe = plan.probe
    if probe is not None and probe.min_batch_size <= size + 4 and size <= probe.max_batch_size:
        allowed.add(probe.arm)
    return rank.arm in allowed
