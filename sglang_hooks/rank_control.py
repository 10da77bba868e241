"""What one scheduler process holds: its policy, its recorder, and the command it applied last.

No SGLang import: the simulated engine uses it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_hooks.ack_board import Ack, AckBoard, depths_mask, gears_mask
from sglang_hooks.governed_policy import GovernedStepPolicy, Launch
from sglang_hooks.guard import Guard
from sglang_hooks.recorder import Behind, Recorder
from sglang_hooks.schedule import Command, InvalidPlanError
from sglang_hooks.status import ChainVerifyStatus, PlainDecodeStatus

logger = logging.getLogger("specgov")


@dataclass(frozen=True, slots=True)
class Topology:
    """Which rank this process is, among how many."""

    dp_rank: int = 0
    tp_rank: int = 0
    dp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    nnodes: int = 1

    @property
    def slot(self) -> int:
        """Index of this rank's slot on the acknowledgement board."""
        return self.dp_rank * self.tp_size + self.tp_rank


class RankControl:
    """Applies commands and reports; one per scheduler process.

    Args:
        policy: the policy in SGLang's adaptive controller, `None` where there is no such controller.
        reason: why this process cannot be governed; `None`: it can.
        started_unix_s: wall-clock start of the process, for display only.
    """

    def __init__(
        self,
        policy: GovernedStepPolicy | None,
        plain_decode: PlainDecodeStatus,
        *,
        topology: Topology,
        started_unix_s: float,
        reason: str | None = None,
        board: AckBoard | None = None,
        guard: Guard | None = None,
        chain_verify: ChainVerifyStatus | None = None,
    ) -> None:
        self.policy = policy
        self.recorder = Recorder()
        self.topology = topology
        self.guard = guard or Guard()
        self._plain_decode = plain_decode
        self._chain_verify = chain_verify or ChainVerifyStatus()
        self._reason = reason
        self._started_unix_s = started_unix_s
        self._initial_depth = policy.depth if policy else None
        self._board = board
        self._applied = Command(order=0, sequence=0, schedule=None)
        self._applied_at = (0, 0)
        self._acknowledged: Ack | None = None
        self._acknowledge()

    def apply(self, flat: Mapping[str, object]) -> bool:
        """Follow the command in `flat` (keys with our prefix); `False`: refused, nothing changed.

        Refuses what is invalid here and what is not newer than the command applied last; that one again
        is applied already, since whoever sent it may not have had the answer.  The answer depends on
        commands alone, so that all ranks give the same one.
        """
        policy = self.policy
        if policy is None or self._reason is not None:
            logger.warning("specgov: a schedule was refused: %s", self._reason)
            return False
        try:
            command = Command.from_wire(flat, policy.built_depths, self._plain_decode.gears)
        except InvalidPlanError as error:
            logger.warning("specgov: a schedule was refused: %s", error)
            return False
        if command == self._applied:
            return True
        if command.order <= self._applied.order:
            logger.warning("specgov: order %d refused, %d is in force", command.order, self._applied.order)
            return False
        policy.follow(command.schedule, command.probe)
        self._applied, self._applied_at = command, (policy.decode_steps, policy.digest)
        self._acknowledge()
        return True

    def result_arriving(self, depth: int) -> Launch | None:
        """Call before SGLang processes a decode result of `depth`."""
        return self.policy.result_of(depth) if self.policy else None

    def decode_result(
        self,
        now_s: float,
        launch: Launch,
        *,
        batch_size: int,
        requests: Sequence[object],
        accepted: Sequence[int],
        context_tokens: int,
        prefill_behind: bool = False,
    ) -> None:
        """Call after SGLang processed it; see `Recorder.decode`.

        `prefill_behind`: a prefill had been launched by then.
        """
        behind: Behind | None = "prefill" if prefill_behind else None
        if behind is None and self.policy and (self.policy.depth, self.policy.gear) != launch[:2]:
            behind = "switch"
        self.recorder.decode(
            now_s,
            launch.depth,
            launch.gear,
            batch_size=batch_size,
            requests=requests,
            accepted=accepted,
            context_tokens=context_tokens,
            behind=behind,
        )

    def report(self) -> dict[str, Any]:
        """State and telemetry, JSON-ready; the HTTP process makes `GET /speculation` of it.

        Every rank is asked though only TP rank 0 is heard, so each writes down anew what it can do: plain
        decoding is set up after this object is made.
        """
        self._acknowledge()
        policy, topology = self.policy, self.topology
        return {
            "controllable": policy is not None and self._reason is None,
            "reason": self._reason,
            "built_depths": list(policy.built_depths) if policy else [],
            "gears": list(self._plain_decode.gears) if policy else [],
            "initial_depth": self._initial_depth,
            "plain_decode": self._plain_decode.to_json(),
            "chain_verify": self._chain_verify.to_json(),
            "dp_size": topology.dp_size,
            "tp_size": topology.tp_size,
            "nnodes": topology.nnodes,
            "telemetry": {
                "dp_rank": topology.dp_rank,
                "started_unix_s": self._started_unix_s,
                "decode_steps": policy.decode_steps if policy else 0,
                "prefill_batches": self.recorder.prefill_batches,
                "switches": policy.switches if policy else 0,
                "probe_steps": policy.probe_steps if policy else 0,
                "probe_bursts": policy.probe_bursts if policy else 0,
                "hook_errors": self.guard.errors,
                "depth": policy.depth if policy else None,
                "gear": policy.gear if policy else None,
                "batch_size": policy.batch_size if policy else None,
                "cells": self.recorder.cells(),
            },
        }

    def _acknowledge(self) -> None:
        """Write down what was applied and what can be done, when that is news."""
        if self._board is None or self.policy is None:
            return
        can = (depths_mask(self.policy.built_depths), gears_mask(self._plain_decode.gears))
        ack = Ack(self._applied.order, self._applied.sequence, *self._applied_at, *can)
        if ack != self._acknowledged:
            self._board.write(self.topology.slot, ack)
            self._acknowledged = ack
