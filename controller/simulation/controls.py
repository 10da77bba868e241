"""The two sides that may steer the simulated engine: one arm for ever, or the hook's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.simulation.arms import OFF_COLD, OFF_WARM, Arm
from controller.simulation.engine import Request
from controller.simulation.native_rule import NativeRule
from sglang_hooks.ack_board import AckBoard
from sglang_hooks.governed_policy import GovernedStepPolicy
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.status import PlainDecodeStatus


class FixedControl:
    """The same arm at every step: a server that was started so."""

    probing = False

    def __init__(self, arm: Arm) -> None:
        self._arm = arm

    def arm_for(self, batch_size: int) -> Arm:  # noqa: ARG002
        """The arm."""
        return self._arm

    def on_result(
        self, now_s: float, arm: Arm, requests: Sequence[Request], accepted: list[int], context_tokens: int
    ) -> None:
        """Nothing is learned."""

    def prefill_gear(self, batch_size: int) -> str:  # noqa: ARG002
        """That of the arm."""
        return self._arm[1]

    def on_prefill(self, now_s: float, requests: Sequence[Request], tokens: int) -> None:
        """Nothing is learned."""

    def on_idle(self) -> None:
        """Nothing is learned."""


class HookControl:
    """The hook's own policy, probe plan and recorder, wired as the plugin wires them into SGLang.

    `rank` is what a scheduler process of a real server holds; its `apply` and `report` are the two ends
    of the control protocol.
    """

    def __init__(
        self, arms: Sequence[Arm], *, started_unix_s: float = 0.0, board: AckBoard | None = None
    ) -> None:
        """`arms` are those of the engine; it starts at the deepest, under SGLang's own rule."""
        gears = tuple(gear for depth, gear in arms if depth == 0)
        depths = sorted({depth for depth, _ in arms})
        # SGLang's own off is the warm one; without a row for it, its rule must do without 0.
        native = NativeRule([depth for depth in depths if depth or OFF_WARM in arms])
        self.policy = GovernedStepPolicy(native, depths, depths[-1])
        cold = OFF_COLD in arms
        status = PlainDecodeStatus(in_force=cold, reason=None if cold else "no profile row", gears=gears)
        if cold:
            status.backend = "simulated"
        self.rank = RankControl(
            self.policy, status, topology=Topology(), started_unix_s=started_unix_s, board=board
        )

        self.probing = False

    def arm_for(self, batch_size: int) -> Arm:
        """Ask the hook's policy, as SGLang's adaptive controller does before a decode step."""
        policy = self.policy
        probes = policy.probe_steps
        depth = policy.get_steps_for_batch(batch_size)
        self.probing = policy.probe_steps != probes
        return depth, policy.gear

    def on_result(
        self, now_s: float, arm: Arm, requests: Sequence[Request], accepted: list[int], context_tokens: int
    ) -> None:
        """Tell the hook's recorder and SGLang's rule, in the order of the real scheduler."""
        batch_size = len(requests)
        launch = self.policy.result_of(arm[0])
        self.rank.decode_result(
            now_s,
            launch,
            batch_size=batch_size,
            requests=requests,
            accepted=accepted,
            context_tokens=context_tokens,
        )
        self.policy.on_verify_complete(accepted, batch_size)

    def prefill_gear(self, batch_size: int) -> str:
        """As the plugin does it: that of the schedule for as many requests as hold a slot."""
        return self.policy.gear_at(batch_size)

    def on_prefill(self, now_s: float, requests: Sequence[Request], tokens: int) -> None:
        """Tell the hook's recorder."""
        self.rank.recorder.prefill(now_s, requests, tokens)

    def on_idle(self) -> None:
        """Tell the hook's recorder."""
        self.rank.recorder.ran_dry()


class RankLink:
    """The way from the hook's control plane to the one rank of the simulated engine (`EngineLink`)."""

    def __init__(self, rank: RankControl) -> None:
        self._rank = rank

    async def set(self, flat: Mapping[str, int | float]) -> list[bool]:
        """Carry a command."""
        return [self._rank.apply(flat)]

    async def get(self) -> list[dict[str, Any]]:
        """What the rank reports."""
        return [self._rank.report()]
