"""Keeps the engine on the wanted plan: push, renew, revoke; knows whose lease is live.

One `apply` a tick reconciles what is wanted with what `GET /speculation` has just said, so a lost answer, a
restart of either side or another holder need no case of their own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from controller.control_state import ControlState, Plan
from controller.engine_client import PutAnswer
from controller.errors import EngineError, EngineRejectedPlanError
from policies.types import Action, Decision


class Lease(StrEnum):
    """Whose plan the engine follows."""

    NONE = "none"
    """Nobody's: the engine follows its fallback."""
    HELD = "held"
    """Ours."""
    LOST = "lost"
    """Ours, as far as we know, but not renewed within the deadline; or it ended at the engine."""
    FOREIGN = "foreign"
    """Another sidecar's, be it under our own name: we only observe."""


class ControlChannel(Protocol):
    """The part of the engine client that changes something."""

    async def put(self, plan: Plan, *, lease_s: float, sequence: int, holder: str) -> PutAnswer:
        """Push a plan; raises `EngineError`."""
        ...

    async def revoke(self, holder: str) -> ControlState:
        """Hand back; raises `EngineError`."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseParams:
    """See `LeaseSettings`; in addition who we are."""

    holder: str
    lease_s: float
    renew_deadline_s: float
    renew_every_s: float


@dataclass(frozen=True, slots=True)
class Steered:
    """What is wanted and how far it has come."""

    wanted: Plan | None = None
    acknowledged: bool = False
    """Whether every rank that can be seen has taken `wanted`."""
    lease: Lease = Lease.NONE
    lease_left_s: float | None = None
    lease_left_at_s: float = 0.0
    """When the engine said `lease_left_s`, in seconds of the loop's clock."""
    holder: str | None = None
    """Who holds the live lease, if anybody."""
    whose: str | None = None
    """What is known of a foreign holder besides its name."""
    sequence: int = 0
    pending_ranks: int = 0
    renewed: bool = False
    """Whether a plan was pushed or renewed in this turn."""
    error: str | None = None
    rejected: str | None = None
    """Why the engine refused the wanted plan."""

    @property
    def held_elsewhere(self) -> str | None:
        """Who else holds the live lease, and what is known of them; `None`: nobody does."""
        if self.lease is not Lease.FOREIGN:
            return None
        return f"{self.holder} holds the lease" + (f" ({self.whose})" if self.whose else "")

    def left_s(self, now_s: float) -> float | None:
        """What is left of the live lease at `now_s`; `None`: none, or not known."""
        if self.lease_left_s is None:
            return None
        return max(0.0, self.lease_left_s - (now_s - self.lease_left_at_s))


BENCHMARK = "specgov-bench/"
"""How the names of a benchmark's leases begin, see docs/bench.md."""
RENEWED_BY_S = 0.5
"""More left of a lease than there can be by so much: it was renewed."""


def _whose(holder: str | None, own: str, *, renewed: bool, left_s: float | None) -> str | None:
    """What is known of a foreign `holder`; whether it still runs is known only once it has `renewed`."""
    if holder == own:
        kin = "this sidecar's own name, but not its plan"
    elif holder and holder.startswith("specgov/") and holder.rpartition("/")[0] == own.rpartition("/")[0]:
        kin = "by its name a sidecar of this host"
    elif holder and holder.startswith(BENCHMARK):
        kin = "by its name a benchmark"
    else:
        kin = ""
    within = "" if left_s is None else f" in {left_s:.0f} s"
    runs = f"not seen to renew so far: it ends by itself{within} unless it is renewed"
    runs = "it runs: it has renewed its lease" if renewed else runs
    return f"{kin}; {runs}" if kin else runs


class Steering:
    """Holds the wanted plan; `dry_run` never changes the engine."""

    def __init__(self, params: LeaseParams, channel: ControlChannel, *, dry_run: bool = False) -> None:
        self._params = params
        self._channel = channel
        self._dry_run = dry_run
        self._renewed_s: float | None = None
        self._rejected_plan: Plan | None = None
        self._sent: Plan | None = None
        self._fresh = True
        self._renews = False
        self._foreign_sequence = 0
        self._said: ControlState | None = None
        self.now = Steered()
        """As of the last `apply`."""

    async def apply(
        self, decision: Decision, control: ControlState | None, now_s: float, *, late: bool = False
    ) -> Steered:
        """Bring the engine to what `decision` says; `control`: its state just read, `None` if unknown.

        `late`: the engine is there and answers late, so act on what it said last; a lease must not end
        because of a long prefill.  Requests that fail are reported in the result, not raised; the next turn
        tries again.
        """
        if self._fresh and control is not None:
            self._adopt(control, now_s)
        self._want(decision)
        self._reconcile(control, now_s)
        self._said = control or (self._said if late else None)
        if self._said is not None and self._said.controllable and not self._dry_run:
            try:
                await self._act(self._said, now_s)
            except EngineRejectedPlanError as error:
                self._rejected_plan = self.now.wanted
                self._set(rejected=str(error), error=str(error))
            except EngineError as error:
                self._set(error=str(error))
        return self.now

    async def shut_down(self) -> bool:
        """Give the lease back if it is ours, and say whether it was; raises `EngineError`."""
        if self.now.lease not in (Lease.HELD, Lease.LOST) or self._dry_run:
            return False
        await self._channel.revoke(self._params.holder)
        self._set(lease=Lease.NONE, wanted=None, acknowledged=False)
        return True

    def _adopt(self, control: ControlState, now_s: float) -> None:
        """Take over the plan that this holder put in force before it was restarted."""
        self._fresh = False
        if control.held_by(self._params.holder) and control.plan and not self._dry_run:
            self._renewed_s, self._sent = now_s, control.plan
            self._set(wanted=control.plan, lease=Lease.HELD, sequence=control.sequence)

    def _want(self, decision: Decision) -> None:
        wanted = self.now.wanted
        if decision.action is Action.RELEASE:
            wanted = None
        elif decision.schedule is not None:
            wanted = Plan(decision.schedule, decision.probe)
        if wanted != self.now.wanted:
            self._rejected_plan = None
            self._set(wanted=wanted, acknowledged=False, rejected=None, pending_ranks=0)
        self._set(error=None, renewed=False)

    def _reconcile(self, control: ControlState | None, now_s: float) -> None:
        """Judge the lease, and take note of a plan whose acknowledgement was lost."""
        if control is None:
            overdue = self._renewed_s is None or now_s - self._renewed_s > self._params.renew_deadline_s
            if self.now.lease is Lease.HELD and overdue:
                self._set(lease=Lease.LOST, acknowledged=False, lease_left_s=None)
            return
        holder = control.holder if control.lease_live else None
        if holder == self._params.holder and control.sequence <= self.now.sequence:
            lease = Lease.HELD
        elif holder is not None:
            lease = Lease.FOREIGN
        else:
            lease = Lease.LOST if self.now.lease in (Lease.HELD, Lease.LOST) else Lease.NONE
        taken = lease is Lease.HELD and self._in_force(control) and not self._pending(control)
        self._set(acknowledged=taken)
        if taken and control.lease_left_s is not None:
            self._renewed_s = now_s - max(0.0, self._params.lease_s - control.lease_left_s)
        self._set(
            lease=lease,
            holder=holder,
            whose=self._known_of(holder, control, now_s) if lease is Lease.FOREIGN else None,
            lease_left_s=control.lease_left_s,
            lease_left_at_s=now_s,
            pending_ranks=self._pending(control),
        )

    def _known_of(self, holder: str | None, control: ControlState, now_s: float) -> str | None:
        """By what the turn before saw of the same lease: `holder` runs if it has pushed or renewed since."""
        before, left_s = self.now, control.lease_left_s
        if before.lease is not Lease.FOREIGN or before.holder != holder:
            self._renews = False
        elif control.sequence > self._foreign_sequence:
            self._renews = True
        elif left_s is not None and before.lease_left_s is not None:
            could_be_s = before.lease_left_s - (now_s - before.lease_left_at_s)
            self._renews = self._renews or left_s > could_be_s + RENEWED_BY_S
        self._foreign_sequence = control.sequence
        return _whose(holder, self._params.holder, renewed=self._renews, left_s=left_s)

    def _in_force(self, control: ControlState) -> bool:
        """Whether the engine follows the wanted plan: it has the sequence number that carried it."""
        sent = self.now.wanted is not None and self.now.wanted == self._sent
        return sent and control.sequence == self.now.sequence

    def _pending(self, control: ControlState) -> int:
        """Ranks that can be seen and have not taken our latest sequence."""
        if not control.held_by(self._params.holder):
            return 0
        return sum(r.sequence is not None and r.sequence < control.sequence for r in control.ranks)

    async def _act(self, control: ControlState, now_s: float) -> None:
        if self.now.lease is Lease.FOREIGN:
            return
        if self.now.wanted is None:
            if self.now.lease is Lease.HELD:
                await self._channel.revoke(self._params.holder)
            self._set(lease=Lease.NONE, holder=None, lease_left_s=None)
        elif self.now.wanted != self._rejected_plan and self._due(control, now_s):
            await self._push(self.now.wanted, control, now_s)

    def _due(self, control: ControlState, now_s: float) -> bool:
        in_force = self.now.lease is Lease.HELD and self._in_force(control)
        if not in_force or self._renewed_s is None:
            return True
        return now_s - self._renewed_s >= self._params.renew_every_s

    async def _push(self, plan: Plan, control: ControlState, now_s: float) -> None:
        sequence = max(control.sequence, self.now.sequence) + 1
        self._set(sequence=sequence)
        self._sent = plan
        params = self._params
        answer = await self._channel.put(
            plan, lease_s=params.lease_s, sequence=sequence, holder=params.holder
        )
        self._renewed_s, self._said = now_s, answer.state
        self._set(
            acknowledged=answer.complete,
            renewed=True,
            rejected=None,
            lease=Lease.HELD,
            holder=params.holder,
            lease_left_s=answer.state.lease_left_s,
            lease_left_at_s=now_s,  # when it was asked for: it may have more left, never less
            pending_ranks=self._pending(answer.state),
        )

    def _set(self, **changes: object) -> None:
        self.now = dataclasses.replace(self.now, **changes)  # type: ignore[arg-type]
