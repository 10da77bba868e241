"""The HTTP process's side: who holds the lease, which command is wanted, and whether the ranks have it.

No SGLang and no web framework: the simulated engine uses it as it is.  It is the only place in the hook
that reads a clock to decide, and it runs in one process only: ranks get its verdicts as commands, over
the request path that reaches all of them in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import sglang_hooks
from sglang_hooks.ack_board import Ack, AckBoard, depths_mask, gears_mask
from sglang_hooks.schedule import Command, Plan, Row, Schedule, parse_plan

logger = logging.getLogger("specgov")

PROTOCOL = 1
ACK_TIMEOUT_S = 2.0
ENGINE_TIMEOUT_S = 5.0
RETRY_S = 1.0
_POLL_S = 0.005


class EngineLink(Protocol):
    """The way to the scheduler processes."""

    async def set(self, flat: Mapping[str, int | float]) -> list[bool]:
        """Carry a command to every rank in order; answers whether it was applied, per DP rank."""
        ...

    async def get(self) -> list[dict[str, Any]]:
        """`RankControl.report()` of each DP rank; empty where the hook is not installed there."""
        ...


class ControlError(Exception):
    """A request that cannot be done; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


def parse_fallback(text: str | None) -> str | int:
    """`SPECGOV_FALLBACK`: `native` (default), `hold` or `depth:N`; a bad value is logged and is `native`."""
    value = (text or "native").strip()
    kind, _, depth = value.partition(":")
    if value in ("native", "hold"):
        return value
    if kind == "depth" and depth.isascii() and depth.isdigit() and len(depth) <= 3:
        return int(depth)
    logger.error("SPECGOV_FALLBACK must be native, hold or depth:N, got %r; using native", text)
    return "native"


class ControlPlane:
    """Serves the control protocol of `docs/protocol.md`; one per server, on one event loop.

    Args:
        link: `None` when control is impossible from the start, `reason` then says why.
        board: acknowledgements of the scheduler processes of this machine.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        link: EngineLink | None,
        board: AckBoard | None,
        *,
        sglang_version: str | None,
        fallback: str | int = "native",
        reason: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._board = board
        self._sglang_version = sglang_version
        self._fallback = fallback
        self._reason = reason
        self._clock = clock
        self._lock = asyncio.Lock()
        self._plan: Plan | None = None
        self._deadline_s = 0.0
        self._expired = 0
        self._wanted = Command(order=0, sequence=0, schedule=None)
        self._sent_order = 0
        self._refused_order = 0
        self._sender: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[list[dict[str, Any]]] | None = None
        self._reports: list[dict[str, Any]] = []

    async def put(self, body: object) -> tuple[int, dict[str, Any]]:
        """`PUT /speculation`: status and answer; raises `ControlError` or `InvalidPlanError`."""
        received_s = self._clock()
        async with self._lock:
            self._fall_back_if_due()
            await self._require_control()
            plan = parse_plan(body, self._reports[0]["built_depths"], self._reports[0]["gears"])
            if self._plan is not None and self._plan.holder != plan.holder:
                message = f"{self._plan.holder} holds the lease for another {self._left_s():.1f} s"
                raise ControlError(409, message, "holder")
            if plan.sequence <= self._wanted.sequence:
                message = f"sequence must be above {self._wanted.sequence}, got {plan.sequence}"
                raise ControlError(409, message, "sequence")
            self._plan = plan
            self._deadline_s = received_s + plan.lease_s
            self._want(plan.sequence, plan.schedule, plan)
            self._watch_lease()
            return await self._confirm()

    async def delete(self, holder: str | None) -> tuple[int, dict[str, Any]]:
        """`DELETE /speculation`: hand back to the fallback now; raises `ControlError`."""
        async with self._lock:
            self._fall_back_if_due()
            if self._plan is None:
                return 200, await self.state()
            if holder is not None and holder != self._plan.holder:
                raise ControlError(409, f"{self._plan.holder} holds the lease, not {holder}", "holder")
            self._fall_back()
            return await self._confirm()

    async def state(self, *, within_s: float = ENGINE_TIMEOUT_S) -> dict[str, Any]:
        """`GET /speculation`; raises `ControlError` 504 when the scheduler does not answer."""
        self._fall_back_if_due()
        reports = await self._read(within_s)
        reason = self._why_not(reports)
        first = reports[0] if reports else {}
        ranks = self._ranks(reports)
        schedule, plan = self._wanted.schedule, self._plan
        probe = self._wanted.probe
        return {
            "protocol": PROTOCOL,
            "plugin_version": sglang_hooks.__version__,
            "sglang_version": self._sglang_version,
            "controllable": reason is None,
            "reason": reason,
            "built_depths": first.get("built_depths", []),
            "gears": first.get("gears", []),
            "initial_depth": first.get("initial_depth"),
            "fallback": self._fallback,
            "state": "governed" if plan else "fallback" if self._wanted.order else "native",
            "schedule": [row.to_json() for row in schedule.rows] if schedule else None,
            "probe": probe.to_json() if probe else None,
            "sequence": self._wanted.sequence or None,
            "holder": plan.holder if plan else None,
            "lease": {
                "lease_s": plan.lease_s if plan else None,
                "left_s": round(self._left_s(), 3) if plan else None,
                "expired": self._expired,
            },
            "plain_decode": first.get("plain_decode"),
            "chain_verify": first.get("chain_verify"),
            "ranks": ranks,
            "ranks_agree": ranks_agree(ranks),
            "telemetry": [report["telemetry"] for report in reports],
        }

    # The lease

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._clock())

    def _fall_back_if_due(self) -> None:
        if self._plan is not None and self._clock() >= self._deadline_s:
            logger.warning(
                "specgov: the lease of %s ended, falling back to %s", self._plan.holder, self._fallback
            )
            self._expired += 1
            self._fall_back()

    def _fall_back(self) -> None:
        self._plan = None
        wanted, schedule = self._wanted, None
        if self._fallback == "hold":
            schedule = wanted.schedule
        elif isinstance(self._fallback, int):
            schedule = Schedule([Row(1, self._fallback, "on" if self._fallback else "warm")])
        self._want(wanted.sequence, schedule, None)

    def _watch_lease(self) -> None:
        """Look again when the lease in force now ends; each plan sets the one timer anew."""
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(self._left_s(), _POLL_S)  # a timer may go off a hair early
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._lease_timer)

    def _lease_timer(self) -> None:
        self._fall_back_if_due()
        if self._plan is not None:
            self._watch_lease()

    # Sending

    def _want(self, sequence: int, schedule: Schedule | None, plan: Plan | None) -> None:
        """Make this the command that ranks should have; the sender carries the latest one only."""
        probe = plan.probe if plan else None
        self._wanted = Command(self._wanted.order + 1, sequence, schedule, probe)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="specgov sender")

    async def _send(self) -> None:
        """Send until the ranks have the latest command; never cancelled, so that no answer is mixed up."""
        while self._link is not None and self._sent_order < self._wanted.order:
            command = self._wanted
            try:
                replies = await self._link.set(command.to_wire())
            except Exception:
                logger.exception("specgov: a command could not be sent, trying again in %g s", RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            self._sent_order = command.order
            if not replies or not all(replies):
                logger.error("specgov: command %d was refused by a rank: %s", command.order, replies)
                self._refused(command)

    def _refused(self, command: Command) -> None:
        """Hand all ranks back to SGLang's own policy, which none can refuse, whoever waits for an answer."""
        self._refused_order = command.order
        if command.schedule is not None and command.order == self._wanted.order:
            self._plan = None
            self._want(command.sequence, None, None)

    async def _confirm(self) -> tuple[int, dict[str, Any]]:
        """Wait up to `ACK_TIMEOUT_S` for every rank of this machine; 200 or 202 with the state."""
        order, deadline_s = self._wanted.order, self._clock() + ACK_TIMEOUT_S
        while not (done := self._sent_order >= order and self._acknowledged(order)):
            if self._refused_order == order or self._clock() >= deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        if self._refused_order == order:
            raise ControlError(500, "a rank refused the command; handed back to SGLang's own policy")
        try:
            return (200 if done else 202), await self.state(within_s=ENGINE_TIMEOUT_S if done else 0.1)
        except ControlError:
            return 202, {"error": {"field": None, "message": "sent; the scheduler has not answered yet"}}

    def _acknowledged(self, order: int) -> bool:
        return all(ack is not None and ack.order >= order for _, _, ack in self._local_acks(self._reports))

    # Reading

    async def _require_control(self) -> None:
        if not self._reports or self._why_not(self._reports) is not None:
            await self._read(ENGINE_TIMEOUT_S)
        reason = self._why_not(self._reports)
        if reason is not None:
            raise ControlError(503, reason)

    async def _read(self, within_s: float) -> list[dict[str, Any]]:
        """Reports of all DP ranks; calls that overlap share one request to the scheduler."""
        if self._link is None:
            return []
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._link.get(), name="specgov read")
        reading = self._reading  # a later call may start the next one before this one wakes up
        done, _ = await asyncio.wait({reading}, timeout=within_s)
        if not done:
            raise ControlError(504, f"the scheduler did not answer within {within_s:g} s")
        try:
            reports = sorted(reading.result(), key=lambda report: report["telemetry"]["dp_rank"])
        except Exception as error:
            logger.exception("specgov: the scheduler could not be asked")
            raise ControlError(502, f"the scheduler could not be asked: {error!r}") from error
        if reports:
            self._reports = reports
            self._check_fallback(reports[0]["built_depths"])
        return reports

    def _check_fallback(self, built_depths: list[int]) -> None:
        if isinstance(self._fallback, int) and built_depths and self._fallback not in built_depths:
            message = "SPECGOV_FALLBACK must name a built depth %s, got depth:%d; using native"
            logger.error(message, built_depths, self._fallback)
            self._fallback = "native"

    def _why_not(self, reports: list[dict[str, Any]]) -> str | None:
        """Why control is impossible; `None`: it is possible."""
        if self._reason is not None:
            return self._reason
        if not reports:
            return "the hook is not active in the scheduler processes; their log says why"
        for report in reports:
            if not report["controllable"]:
                return str(report["reason"])
        if len(reports) != reports[0]["dp_size"]:
            return f"the hook is active on {len(reports)} of {reports[0]['dp_size']} DP ranks only"
        if any(report["built_depths"] != reports[0]["built_depths"] for report in reports):
            return "DP ranks have built different depths"
        return self._why_not_acks(reports)

    def _why_not_acks(self, reports: list[dict[str, Any]]) -> str | None:
        """Why the acknowledgements show that some rank would not follow.

        A rank that runs another depth than its peers hangs them all, so a plan is sent only where every
        scheduler process of this machine has written down that it is hooked, with the same depths and
        gears: gears differ where plain decoding could not be set up, and then so do draft-extend steps.
        """
        depths, gears = depths_mask(reports[0]["built_depths"]), gears_mask(reports[0]["gears"])
        for dp_rank, tp_rank, ack in self._local_acks(reports):
            if ack is None:
                return f"the hook is not active in the scheduler of dp rank {dp_rank} tp rank {tp_rank}"
            if ack.depths_mask != depths:
                return f"dp rank {dp_rank} tp rank {tp_rank} has built other depths than rank 0"
            if ack.gears_mask != gears:
                return f"dp rank {dp_rank} tp rank {tp_rank} has other gears of off than rank 0"
        return None

    def _local_acks(self, reports: list[dict[str, Any]]) -> list[tuple[int, int, Ack | None]]:
        """(dp rank, tp rank, acknowledgement) of the scheduler processes on this machine."""
        board = self._board
        if board is None:
            return []
        return [
            (dp_rank, tp_rank, board.read(dp_rank * report["tp_size"] + tp_rank))
            for report in reports
            for dp_rank in (report["telemetry"]["dp_rank"],)
            for tp_rank in range(report["tp_size"] // report["nnodes"])
        ]

    def _ranks(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = {(dp, tp): ack for dp, tp, ack in self._local_acks(reports)}
        ranks = []
        for report in reports:
            for tp_rank in range(report["tp_size"]):
                dp_rank = report["telemetry"]["dp_rank"]
                ack = seen.get((dp_rank, tp_rank))
                ranks.append(
                    {
                        "dp_rank": dp_rank,
                        "tp_rank": tp_rank,
                        "sequence": ack.sequence if ack else None,
                        "order": ack.order if ack else None,
                        "decode_steps": ack.decode_steps if ack else None,
                        "digest": ack.digest if ack else None,
                    }
                )
        return ranks


def ranks_agree(ranks: list[dict[str, Any]]) -> bool | None:
    """Whether all ranks of a DP rank that applied a command did so at the same step, after the same steps.

    `None`: no two ranks can be compared.
    """
    applied: dict[tuple[int, int], set[tuple[int, int]]] = {}
    compared = False
    for rank in ranks:
        if rank["order"]:
            at = applied.setdefault((rank["dp_rank"], rank["order"]), set())
            compared = compared or bool(at)
            at.add((rank["decode_steps"], rank["digest"]))
    return all(len(at) == 1 for at in applied.values()) if compared else None
