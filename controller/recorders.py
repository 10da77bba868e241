"""Takes note of turns in which something changed: rows of the decision log, lines of the log."""

from __future__ import annotations

import logging
from typing import Any

from controller.audit import Audit
from controller.control_state import schedule_to_json
from controller.loop import TickResult
from controller.overrides import Override, in_words
from controller.wording import limit
from policies.types import Arm, Decision, Reason, Schedule

log = logging.getLogger("specgov")
NEVER = "it was never seen in force"
STAYING = (Reason.THRESHOLD_STAY, Reason.GOODPUT_STAY, Reason.GOODPUT_LEARNING)
"""The same schedule as the turn before, for the reason that nothing has changed: no news."""


class DecisionRecorder:
    """Logs a decision when it is another than the one before, and what became of it."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._decision: Decision | None = None
        self._effect: str | None = None
        self._link: str | None = None
        self._epoch = 0
        self._conditions: frozenset[str] = frozenset()
        self._order: tuple[object, ...] | None = None
        self._fleet: Override | None = None
        self._fleet_in_force = False

    def record(self, result: TickResult) -> None:
        """Log what changed in this turn."""
        if _differs(result.decision, self._decision):
            body = decision_to_json(result.decision)
            self._note(result.decided_unix_s, "decision", str(result.decision.reason), body)
        self._decision = result.decision
        self._note_orders(result)
        if result.override_ended is not None:
            row = ended_row(result.override_ended, in_force=result.ended_in_force)
            self._note(result.decided_unix_s, "override", "expired", row)
        if result.override_limited is not None:
            row = override_row(result.override_limited)
            self._note(result.decided_unix_s, "override", "limit", row)
        if result.effect.effect != self._effect:
            self._effect = result.effect.effect
            detail = {"effect": self._effect, "detail": result.effect.detail}
            self._note(result.done_unix_s, "event", f"effect_{self._effect}", detail)
        if result.link.link != self._link:
            self._link = result.link.link
            self._note(result.decided_unix_s, "event", f"link_{self._link}", {"detail": result.link.detail})
        if result.observation.engine_epoch != self._epoch:
            self._epoch = result.observation.engine_epoch
            body = {"engine_epoch": self._epoch}
            self._note(result.decided_unix_s, "event", "engine_restart", body)
        self._note_conditions(result)
        self._audit.flush()

    def _note_orders(self, result: TickResult) -> None:
        """What comes into force without anybody's giving it over REST just then."""
        order = result.override
        if order is not None and order.scope == "pod" and order.given != self._order and result.resumed:
            self._note(result.decided_unix_s, "override", "resumed", override_row(order))
        elif order is not None and order.scope == "sidecar" and order.given != self._order:
            self._note(result.decided_unix_s, "override", str(order.mode), override_row(order))
        self._order = order.given if order else None
        self._note_fleet(result)

    def _note_fleet(self, result: TickResult) -> None:
        before, now = self._fleet, result.fleet_override
        self._fleet = now
        if now is not None and (before is None or now.given != before.given):
            self._fleet_in_force = False
            row = override_row(now)
            if before is not None:
                row["detail"] += f"; replaces {override_to_json(before)['detail']}"
            self._note(result.decided_unix_s, "override", str(now.mode), row)
        elif now is None and before is not None:
            over = before.expires_unix_s is not None and before.expires_unix_s <= result.decided_unix_s
            row = ended_row(before, in_force=self._fleet_in_force)
            self._note(result.decided_unix_s, "override", "expired" if over else "ended", row)
        if result.override == now and result.force.since_unix_s is not None:
            self._fleet_in_force = True

    def _note_conditions(self, result: TickResult) -> None:
        now = {str(active.condition): active.message for active in result.conditions}
        for name in now.keys() - self._conditions:
            body = {"active": True, "detail": now[name]}
            self._note(result.done_unix_s, "event", f"condition_{name}", body)
        for name in self._conditions - now.keys():
            body = {"active": False, "detail": "over"}
            self._note(result.done_unix_s, "event", f"condition_{name}", body)
        self._conditions = frozenset(now)

    def _note(self, at_unix_s: float, kind: str, reason: str, body: dict[str, Any]) -> None:
        """Log what happened at `at_unix_s`, which is not when the turn began: the engine may be slow."""
        self._audit.note(at_unix_s, kind, reason, body)
        log.info("%s %s: %s", kind, reason, body.get("detail", ""), extra={"fields": {"kind": kind, **body}})


def _differs(new: Decision, old: Decision | None) -> bool:
    """Whether a person would call it another decision.

    Evidence and wording change every turn, and what is probed nearly so: with a row for each, the log of a
    night would be gone by noon.
    """
    if old is None or (new.action, new.schedule) != (old.action, old.schedule):
        return True
    return new.reason is not old.reason and new.reason not in STAYING


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """A decision, JSON-ready."""
    return {
        "action": str(decision.action),
        "reason": str(decision.reason),
        "detail": decision.detail,
        "schedule": schedule_or_none(decision.schedule),
        "probe": None
        if decision.probe is None
        else {
            **arm_to_json(decision.probe.arm),
            "every_steps": decision.probe.every_steps,
            "burst_steps": decision.probe.burst_steps,
            "min_batch_size": decision.probe.min_batch_size,
            "max_batch_size": decision.probe.max_batch_size,
            "bursts": decision.probe.bursts,
        },
        "evidence": dict(decision.evidence),
    }


def schedule_or_none(schedule: Schedule | None) -> list[dict[str, Any]] | None:
    """A table, JSON-ready."""
    return None if schedule is None else schedule_to_json(schedule)


def arm_to_json(arm: Arm) -> dict[str, Any]:
    """An arm, JSON-ready."""
    return {"depth": arm.depth, "gear": str(arm.gear)}


def override_to_json(override: Override) -> dict[str, Any]:
    """An override, JSON-ready."""
    return {
        "mode": str(override.mode),
        "depth": override.depth,
        "reason": override.reason,
        "actor": override.actor,
        "set_unix_s": override.set_unix_s,
        "expires_unix_s": override.expires_unix_s,
        "scope": override.scope,
        "detail": in_words(override),
        "limit": limit(override),
        "suspends": in_words(override.suspends) if override.suspends else None,
    }


def override_row(override: Override) -> dict[str, Any]:
    """The same for the decision log, where `detail` says all."""
    body = override_to_json(override)
    suspends = f"suspends the fleet's {body['suspends']}" if body["suspends"] else None
    return body | {"detail": "; ".join(filter(None, (body["detail"], body["limit"], suspends)))}


def ended_row(override: Override, *, in_force: bool) -> dict[str, Any]:
    """`override_row` of an order that is over; `in_force`: whether it was ever seen in force."""
    row = override_row(override) | {"was_in_force": in_force}
    return row if in_force else row | {"detail": f"{row['detail']}; {NEVER}"}
