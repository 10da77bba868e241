"""The running sidecar as its API, its page and its demo see it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from controller import explanation, views
from controller.audit import Audit
from controller.crash_pin import CrashPin
from controller.errors import OverrideError
from controller.loop import ControlLoop
from controller.overrides import Override, Overrides, in_words
from controller.recorders import (
    NEVER,
    decision_to_json,
    override_row,
    override_to_json,
    schedule_or_none,
)
from controller.settings import Settings
from controller.standing import Standing, is_late, order_to_json, standing
from controller.store import LogRow
from controller.tokens import TokenSource
from policies.override import arm_for
from policies.types import Directive, Forecast, Mode, Schedule
from sglang_hooks import __version__

log = logging.getLogger(__name__)
MEMORY = Path(":memory:")
WRITE_PATIENCE_S = 2.0
"""How long an order waits to be on disk before it is answered with `durable` false."""


@dataclass(frozen=True, slots=True)
class OverrideRequest:
    """An order as it is given."""

    mode: Mode
    depth: int | None
    ttl_s: float | None
    reason: str
    actor: str


class Sidecar:
    """Reads from the loop, writes overrides."""

    def __init__(
        self,
        settings: Settings,
        *,
        loop: ControlLoop,
        overrides: Overrides,
        crash_pin: CrashPin,
        audit: Audit,
        registry: CollectorRegistry,
        token: TokenSource,
        read_token: TokenSource,
        policy_name: str,
        forecast: Callable[[], tuple[Forecast, ...]],
        shadow_difference: Callable[[], dict[str, Any] | None],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.registry = registry
        self.token = token
        self.read_token = read_token
        self._overrides = overrides
        self._crash_pin = crash_pin
        self._audit = audit
        self._policy_name = policy_name
        self._forecast = forecast
        self._shadow_difference = shadow_difference
        self.clock = clock
        self._wall_clock = wall_clock
        self._thread = ThreadPoolExecutor(1, "specgov-order")

    def note_start(self) -> None:
        """Log that the sidecar runs from now on; written with the first turn's rows."""
        detail = f"version {__version__} on {socket.gethostname()}, pid {os.getpid()}"
        self._audit.note(self._wall_clock(), "event", "sidecar_start", {"detail": detail, **self._who()})

    def note_stop(self) -> None:
        """Log that the loop has ended, and how it left the engine."""
        left = self.loop.farewell
        body = {"detail": left.detail, "handed_back": left.handed_back, **self._who()}
        self._audit.append(self._wall_clock(), "event", "sidecar_stop", body)

    @staticmethod
    def _who() -> dict[str, Any]:
        return {"version": __version__, "host": socket.gethostname(), "pid": os.getpid()}

    def status(self) -> dict[str, Any]:
        """The whole state on one page."""
        settings = self.settings
        return views.status(
            self.loop.last,
            self._standing(),
            now_s=self.clock(),
            now_unix_s=self._wall_clock(),
            period_s=settings.loop.period_s,
            dry_run=settings.dry_run,
        )

    def explain(self) -> dict[str, Any]:
        """Why this depth now, and what would change it."""
        return explanation.explain(self.loop.last, self._standing(), now_s=self.clock())

    def _standing(self) -> Standing:
        """The order that stands now, beside the latest turn."""
        last, now_s, now_unix_s = self.loop.last, self.clock(), self._wall_clock()
        return standing(
            last,
            self._overrides.current(now_unix_s),
            self._overrides.fleet(now_unix_s),
            changed_unix_s=self._overrides.ended_unix_s(now_unix_s),
            pin_ended=last is not None and last.observation.auto_orders != self._crash_pin.auto_orders,
            age_s=max(0.0, now_s - last.decided_s) if last else 0.0,
            late=last is not None and is_late(now_s - last.now_s, self.settings.loop.period_s),
            after_restart=self._after_restart(now_unix_s),
        )

    def _after_restart(self, now_unix_s: float) -> dict[str, Any] | None:
        """What a restart would put in force instead of what stands; `None`: the same."""
        if self._durable():
            return None
        if unread := self._overrides.unread_on_disk:
            return {"mode": None, "detail": f"not known: {unread}"}
        now, after = self._overrides.current(now_unix_s), self._overrides.after_restart(now_unix_s)
        if after is None and self._crash_pin.comes_back(now_unix_s):
            return {"mode": str(Mode.OFF), "detail": "the pin to off after the engine's crash loop"}
        if (now and now.given) == (after and after.given):
            return None
        return override_to_json(after) if after else {"mode": str(Mode.AUTO), "detail": in_words(None)}

    def _durable(self) -> bool:
        """Whether a restart would change nothing in what is ordered."""
        now_unix_s = self._wall_clock()
        if self.settings.store_path == MEMORY and self._overrides.current(now_unix_s) is None:
            return True  # no older order can come back from there
        return self._overrides.durable and not self._crash_pin.comes_back(now_unix_s)

    def policy(self) -> dict[str, Any]:
        """The policy in force, its parameters, its schedule, and the shadow."""
        last, settings = self.loop.last, self.settings
        shadow = settings.policy.shadow
        return {
            "name": self._policy_name,
            "params": dataclasses.asdict(settings.params_of(self._policy_name)),
            "guards": dataclasses.asdict(settings.guards),
            "curves": views.curves(self._forecast()),
            "decision": decision_to_json(last.decision) if last else None,
            "schedule": schedule_or_none(last.steered.wanted.schedule)
            if last and last.steered.wanted
            else None,
            "shadow": {
                "name": shadow,
                "params": dataclasses.asdict(settings.params_of(shadow)),
                "decision": decision_to_json(last.shadow) if last and last.shadow else None,
                "difference": self._shadow_difference(),
            }
            if shadow
            else None,
        }

    def override(self) -> dict[str, Any]:
        """The order that stands; mode `auto` when there is none.

        `obstacle`: why the engine cannot be made to follow it now; null: nothing is in the way.
        `unconfirmed`: why the engine is not known to follow it all the same; null: it was seen to.
        `limit`: than what it lets nothing go deeper, or shallower; null: it sets no limit.
        """
        return {**order_to_json(self._standing(), self.loop.last), "durable": self._durable()}

    async def set_override(self, request: OverrideRequest) -> dict[str, Any]:
        """Put an order in force; raises `OverrideError` when it cannot be carried out.

        `replaced` in the answer: the order that was in force until now.  `pin_ended`: whether this order,
        `auto`, has ended a crash loop's pin.
        """
        self._check(request)
        now = self._wall_clock()
        before = self._overrides.current(now)
        pin_ended = request.mode is Mode.AUTO and self._end_pin()
        if request.mode is Mode.AUTO and before is None and not pin_ended:
            return {**self.override(), "replaced": None, "pin_ended": False}
        asked = Override(
            request.mode,
            request.depth,
            request.reason,
            request.actor,
            set_unix_s=now,
            expires_unix_s=now + request.ttl_s if request.ttl_s is not None else None,
            limit=self._in_force() if request.mode in (Mode.NO_DEEPER, Mode.NO_SHALLOWER) else None,
        )
        order = self._overrides.put(asked) or asked
        replaced = self._replaced(before) if before else None
        return {**await self._ordered(order, before), "replaced": replaced, "pin_ended": pin_ended}

    async def clear_override(self, reason: str, actor: str) -> dict[str, Any]:
        """End this pod's order, and a crash loop's pin; does nothing when there is neither."""
        pin_ended = self._end_pin()
        now = self._wall_clock()
        before = self._overrides.pod(now)
        if before is None and self._overrides.unread is None and not pin_ended:
            return self.override()
        self._overrides.put(None, now)
        return await self._ordered(Override(Mode.AUTO, None, reason, actor, now, None), before)

    def _in_force(self) -> Schedule | None:
        return self.loop.last.in_force if self.loop.last else None

    def _end_pin(self) -> bool:
        """Let the policy govern again after a crash loop; whether it was pinned."""
        pinned = self._crash_pin.pinned(self._wall_clock())
        if pinned:
            self._crash_pin.end()
        return pinned

    async def _ordered(self, order: Override, before: Override | None) -> dict[str, Any]:
        """Write and log what stands instead of `before`; answered in time even if the disk does not."""
        if before is not None and (before.scope != "pod" or self.loop.ever_in_force(before)):
            before = None  # it was in force, or nobody gave it here

        def write() -> None:
            self._overrides.flush()
            self._crash_pin.record(None)
            row = self._row(order, before)
            self._audit.append(order.set_unix_s, "override", str(order.mode), row)

        thread = asyncio.get_running_loop().run_in_executor(self._thread, write)
        await asyncio.wait({thread}, timeout=WRITE_PATIENCE_S)
        if thread.done():
            thread.result()
        self.loop.wake()
        return self.override()

    def _replaced(self, before: Override) -> dict[str, Any]:
        return override_to_json(before) | {"was_in_force": self.loop.ever_in_force(before)}

    def _row(self, order: Override, unmet: Override | None) -> dict[str, Any]:
        """Of the decision log: with what a restart would do, and an order that it ended in vain."""
        row, notes = override_row(order), []
        if unmet is not None:
            row["never_in_force"] = override_to_json(unmet)
            notes.append(f"ends {in_words(unmet)}: {NEVER}")
        if after := self._after_restart(self._wall_clock()):
            row["after_restart"] = after
            notes.append(f"not on disk, a restart of the sidecar would put in force: {after['detail']}")
            log.warning("%s: %s", row["detail"], notes[-1])
        return row | {"detail": "; ".join((row["detail"], *notes))}

    def _check(self, request: OverrideRequest) -> None:
        if self.settings.dry_run and request.mode is not Mode.AUTO:
            raise OverrideError(None, "this sidecar runs dry: set dry_run = false and restart it first")
        if request.mode is Mode.AUTO and request.ttl_s is not None and not self._fleet_orders():
            rule = (
                "ttl_s goes with mode auto only while a fleet's order is in force, which auto suspends here"
            )
            raise OverrideError("ttl_s", f"{rule}; got {request.ttl_s:g}: leave it out")
        if request.depth is not None and request.mode is not Mode.ON:
            raise OverrideError("depth", f"depth goes with mode on only, got mode {request.mode}")
        built = self.loop.last.observation.built if self.loop.last else ()
        if not built or request.mode.leaves_policy or request.mode is Mode.NATIVE:
            return  # an engine that is away may have built it; if not, the status will say so
        if arm_for(Directive(request.mode, request.depth), built) is None:
            depths = ", ".join(sorted({str(arm.depth) for arm in built}))
            field = "depth" if request.mode is Mode.ON else "mode"
            wanted = request.depth if request.mode is Mode.ON else 0
            message = f"{field} must lead to a built depth ({depths}), got {wanted}; see specgov engine-flags"
            raise OverrideError(field, message)

    def _fleet_orders(self) -> bool:
        return self._overrides.fleet(self._wall_clock()) is not None

    def decisions(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        reason: str | None = None,
        since_unix_s: float | None = None,
    ) -> list[LogRow]:
        """Rows of the decision log, newest first."""
        return self._audit.page(
            before=before, limit=limit, kind=kind, reason=reason, since_unix_s=since_unix_s
        )

    def healthy(self) -> bool:
        """Whether the loop turns: the latest turn is not older than ten periods and ten seconds."""
        last = self.loop.last
        if last is None:
            return True
        return self.clock() - last.now_s < 10 * self.settings.loop.period_s + 10
