"""The sidecar's loop in virtual time: the real observer, policies, guards and control plane, without HTTP.

At every tick the bodies of the engine's `/v1/loads` and `/speculation` go through the sidecar's own
parsers and observer; a decision goes as the JSON of a `PUT` into the hook's own control plane, whose clock
is the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from controller.control_state import Plan, parse_control_state, plan_to_json
from controller.exposition import parse_loads
from controller.observer import EngineSample, Observer
from controller.simulation.controls import HookControl, RankLink
from controller.simulation.engine import VirtualEngine
from controller.simulation.surface import SGLANG_VERSION, Surface
from policies.base import Policy
from policies.types import Action, Decision, Observation, Reason, Schedule
from sglang_hooks.control_plane import ControlPlane

HOLDER = "replay"
LEASE_S = 3600.0
"""The longest there is; renewed by half of it, since a `PUT` is what costs real time here."""


class VirtualSidecar:
    """Observes one engine and puts a policy's decisions in force; a context manager.

    Must not be used inside a running event loop: it drives the control plane on one of its own.
    """

    def __init__(self, engine: VirtualEngine, control: HookControl, policy: Policy) -> None:
        self.policy = policy
        self.plan_changes = 0
        """How often another schedule was put in force, the first one included."""
        self._engine = engine
        self._surface = Surface(engine, lambda: engine.now_s, "simulated")
        self._plane = ControlPlane(
            RankLink(control.rank), None, sglang_version=SGLANG_VERSION, clock=lambda: engine.now_s
        )
        self._runner = asyncio.Runner()
        self._observer = Observer()
        self._plan: Plan | None = None
        self._renew_s = 0.0
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    @property
    def schedule(self) -> Schedule | None:
        """The schedule in force."""
        return self._plan.schedule if self._plan else None

    def observe(self) -> Observation:
        """What the sidecar would see now."""
        self._surface.refresh()
        now_s = self._engine.now_s
        state = self._runner.run(self._plane.state())
        sample = EngineSample(
            now_s, loads=parse_loads(self._surface.loads()), control=parse_control_state(state)
        )
        return self._observer.observe(sample, now_s)

    def decide(self) -> Decision:
        """Observe and ask the policy; nothing is applied yet.

        Raises `RuntimeError` when the policy failed: its guard lives with that, but figures of such a run
        would be another policy's.
        """
        decision = self.policy.decide(self.observe())
        if decision.reason is Reason.POLICY_ERROR:
            raise RuntimeError(f"at {self._engine.now_s:.2f} s: {decision.detail}")
        return decision

    def turn(self, advance: Callable[[float], None], put_delay_s: float) -> Decision:
        """One turn of the loop; `advance(until_s)` lets the delay of the `PUT` pass in the engine."""
        decision = self.decide()
        advance(self._engine.now_s + put_delay_s)
        self.apply(decision)
        return decision

    def apply(self, decision: Decision) -> None:
        """Put a decision in force, hand back, or renew what is there."""
        if decision.action is Action.RELEASE:
            self._release()
        elif decision.schedule is not None:
            self._put(Plan(decision.schedule, decision.probe))
        elif self._plan is not None:
            self._put(self._plan)

    def _put(self, plan: Plan) -> None:
        if plan == self._plan and self._engine.now_s < self._renew_s:
            return
        self.plan_changes += plan.schedule != self.schedule
        self._sequence += 1
        body = plan_to_json(plan, lease_s=LEASE_S, sequence=self._sequence, holder=HOLDER)
        self._runner.run(self._plane.put(body))
        self._plan, self._renew_s = plan, self._engine.now_s + LEASE_S / 2

    def _release(self) -> None:
        if self._plan is not None:
            self._runner.run(self._plane.delete(HOLDER))
            self._plan = None
            self.plan_changes += 1
