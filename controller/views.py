"""What people and programs are shown, made from the latest turn.  Pure; all of it JSON-ready."""

from __future__ import annotations

from typing import Any

from controller.conditions import ActiveCondition
from controller.effect import Effect
from controller.link import Link
from controller.loop import TickResult, out_of_reach
from controller.overrides import Override
from controller.recorders import arm_to_json, decision_to_json, override_to_json, schedule_or_none
from controller.wording import GUARDS, REASONS
from policies.types import Arm, Decision, Forecast, Mode, Observation

LATE_PERIODS, LATE_S = 3, 3.0
"""A turn older than so many periods, and so many seconds, was the last before something hung."""
WHY_LATE = "the engine is slow to answer, or turns fail: see the sidecar's log"


def status(result: TickResult | None, *, now_s: float, period_s: float, dry_run: bool) -> dict[str, Any]:
    """The whole state on one page; ages, and what is left of the lease, are as of `now_s`."""
    if result is None:
        return {"mode": str(Mode.AUTO), "headline": "starting: no turn is done yet", "conditions": []}
    override, steered = result.override, result.steered
    obstacle = out_of_reach(result.link, steered)
    age_s = max(0.0, now_s - result.now_s)
    late = age_s > max(LATE_PERIODS * period_s, LATE_S)
    aged = f"{age_s:.0f} s ago: " if late else ""
    return {
        "headline": aged + headline(result, dry_run=dry_run),
        "mode": str(override.mode if override else Mode.AUTO),
        "mode_since_unix_s": result.mode_since_unix_s,
        "why": result.decision.detail if obstacle is None else f"nothing is put in force: {obstacle}",
        "type": advice(result, dry_run=dry_run, late=late),
        "dry_run": dry_run,
        "override": _order(result, override, obstacle) if override else None,
        "fleet_override": override_to_json(result.fleet_override) if result.fleet_override else None,
        "guard": guard(result.decision),
        "decision": decision_to_json(result.decision),
        "effect": {
            "state": str(result.effect.effect),
            "for_s": max(0.0, now_s - result.effect.since_s),
            "detail": result.effect.detail,
        },
        "load": load(result.observation, now_s),
        "depth": {
            "in_force": schedule_or_none(result.in_force),
            "wanted": schedule_or_none(steered.wanted.schedule if steered.wanted else None),
            "in_use": arm_to_json(result.observation.in_use) if result.observation.in_use else None,
            "probing": _probing(result),
            "built": [arm_to_json(arm) for arm in result.observation.built],
        },
        "lease": {
            "state": str(steered.lease),
            "holder": steered.holder,
            "left_s": steered.left_s(now_s),
            "sequence": steered.sequence,
            "error": steered.error,
        },
        "engine": engine(result),
        "conditions": [condition(active) for active in result.conditions],
        "turn": {
            "at_unix_s": result.now_unix_s,
            "age_s": age_s,
            "late": late,
            "detail": WHY_LATE if late else None,
            "duration_s": result.duration_s,
        },
    }


def _order(result: TickResult, order: Override, obstacle: str | None) -> dict[str, Any]:
    """`resumed`: it dates from before a restart, or was covered by another; in force since the mode is."""
    return {**override_to_json(order), "obstacle": obstacle, "resumed": result.resumed}


def way_out(order: Override) -> str:
    """What to type to be rid of `order` on this pod."""
    return "specgov override fleet" if order.suspends else "specgov override auto"


def headline(result: TickResult, *, dry_run: bool) -> str:
    """One sentence: what speculation does now, and who says so."""
    who = _who(result)
    if result.link.link is not Link.READY:
        return f"not controlled: {result.link.detail}"
    if dry_run:
        return f"not controlled, dry run: {result.decision.detail}"
    if result.steered.held_elsewhere:
        return f"not controlled by this sidecar: {result.steered.held_elsewhere}"
    if result.steered.wanted is None:
        return f"SGLang chooses by itself ({who}): {result.decision.detail}"
    return f"governed ({who}), {_using(result)}: {result.decision.detail}"


def _who(result: TickResult) -> str:
    """Who has the last word: an order, a guard over the policy, or the policy."""
    ruling = guard(result.decision)
    if ruling is not None:
        return f"guard: {ruling['name']}"
    return f"override by {result.override.actor or 'someone'}" if result.override else "policy"


def guard(decision: Decision) -> dict[str, str] | None:
    """The guard that has the last word over policy and orders, and why; `None`: none has."""
    if decision.reason not in GUARDS:
        return None
    return {"name": GUARDS[decision.reason], "because": REASONS[decision.reason]}


def _using(result: TickResult) -> str:
    arm = result.observation.in_use
    if arm is None or result.effect.effect is not Effect.APPLIED:
        return "not seen in use yet"
    return f"depth {arm} in use{', a short probe' if _probing(result) else ''}"


def _probing(result: TickResult) -> bool:
    """Whether the arm in use is that of the probe plan, and not the table's."""
    arm, batch_size, wanted = result.observation.in_use, result.observation.batch_size, result.steered.wanted
    if wanted is None or wanted.probe is None or result.in_force is None or batch_size is None:
        return False
    return wanted.probe.arm == arm != result.in_force.arm_for(batch_size)


def advice(result: TickResult, *, dry_run: bool, late: bool) -> list[str]:
    """What to type next: what mends a condition, or how to take over and hand back; nothing twice."""
    asks = ["specgov preflight"] if late else []  # it asks the engine itself, which the loop does not hear
    mends = dict.fromkeys([*asks, *(active.remedy for active in result.conditions if active.remedy)])
    if dry_run:  # an override is refused there
        return [*mends, "specgov explain"]
    if result.override is not None:
        return list(dict.fromkeys([*mends, way_out(result.override)]))
    return [*mends, 'specgov override off --ttl 30m --reason "WHY"']


def load(seen: Observation, now_s: float) -> dict[str, Any]:
    """The load, with its age at `now_s`; null: not known."""
    return {
        "running_reqs": seen.running_reqs,
        "queue_reqs": seen.queue_reqs,
        "batch_size": seen.batch_size,
        "max_running_reqs": seen.max_running_reqs,
        "context_tokens": seen.context_tokens,
        "token_usage": seen.token_usage,
        "age_s": _aged(seen.load_age_s, seen, now_s),
        "queue_age_s": _aged(seen.queue_age_s, seen, now_s),
        "telemetry_age_s": _aged(seen.telemetry_age_s, seen, now_s),
        "suspect": list(seen.suspect),
    }


def _aged(age_s: float | None, seen: Observation, now_s: float) -> float | None:
    """The age by now of what was so old when it was seen."""
    return None if age_s is None else age_s + max(0.0, now_s - seen.now_s)


def engine(result: TickResult) -> dict[str, Any]:
    """The other end."""
    info, control = result.info, result.control
    return {
        "link": str(result.link.link),
        "detail": result.link.detail,
        "remedy": result.link.remedy,
        "sglang_version": (info and info.version) or (control and control.sglang_version),
        "plugin_version": control.plugin_version if control else None,
        "model": info.model if info else None,
        "state": control.state if control else None,
        "fallback": control.fallback if control else None,
        "plain_decode": control.plain_decode if control else None,
        "plain_decode_reason": control.plain_decode_reason if control else None,
        "chain_verify": control.chain_verify if control else None,
        "chain_verify_backend": control.chain_verify_backend if control else None,
        "chain_verify_reason": control.chain_verify_reason if control else None,
        "restarts_seen": result.observation.engine_epoch,
        "ranks_agree": control.ranks_agree if control else None,
    }


def condition(active: ActiveCondition) -> dict[str, Any]:
    """One condition."""
    return {
        "condition": str(active.condition),
        "since_unix_s": active.since_unix_s,
        "message": active.message,
        "remedy": active.remedy,
        "attention": active.attention,
    }


def curves(forecast: tuple[Forecast, ...]) -> list[dict[str, Any]]:
    """What the policy expects: one curve over batch size for each arm; empty: it does not say."""
    points: dict[Arm, list[dict[str, float]]] = {}
    for each in forecast:
        point = {"batch_size": each.batch_size, "tok_s": each.tok_s, "se_tok_s": each.se_tok_s}
        points.setdefault(each.arm, []).append(point)
    return [{**arm_to_json(arm), "points": found} for arm, found in sorted(points.items())]
