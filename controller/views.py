"""What people and programs are shown, made from the latest turn.  Pure; all of it JSON-ready."""

from __future__ import annotations

import shlex
from typing import Any

from controller.conditions import ActiveCondition, Condition
from controller.effect import NO_STEP, Effect
from controller.link import SILENT, Link
from controller.loop import TickResult, out_of_reach
from controller.overrides import Override, in_words
from controller.recorders import arm_to_json, decision_to_json, override_to_json, schedule_or_none
from controller.standing import WHY_LATE, Standing, is_late, order_to_json
from controller.wording import GUARDS, REASONS
from policies.types import Arm, Decision, Forecast, Observation

NOT_LOOKED_AT = "not yet looked at: the order is newer than the latest turn"


def status(
    result: TickResult | None,
    now: Standing,
    *,
    now_s: float,
    now_unix_s: float,
    period_s: float,
    dry_run: bool,
) -> dict[str, Any]:
    """The whole state on one page; ages, and what is left of the lease, are as of `now_s`.

    Mode, since when, the order and what undoes it are of `now`; the rest is of the turn `result`.
    """
    if result is None:
        detail = f"; ordered: {in_words(now.order)}" if now.order else ""
        return {
            "mode": str(now.mode),
            "headline": f"starting: no turn is done yet{detail}",
            "conditions": [],
            "type": [way_out(now.order)] if now.order else [],
        }
    steered = result.steered
    age_s = max(0.0, now_s - result.decided_s)
    late = is_late(now_s - result.now_s, period_s)
    aged = f"{age_s:.0f} s ago: " if late else ""
    return {
        "headline": _kept(now) + aged + headline(result, dry_run=dry_run),
        "mode": str(now.mode),
        "mode_since_unix_s": now.since_unix_s,
        "why": _why(result, now),
        "type": advice(result, now, dry_run=dry_run, late=late),
        "dry_run": dry_run,
        "override": _order(result, now) if now.order else None,
        "unconfirmed": now.unconfirmed,
        "after_restart": now.after_restart,
        "fleet_override": override_to_json(now.fleet) if now.fleet else None,
        "guard": guard(result.decision),
        "decision": decision_to_json(result.decision),
        "effect": _effect(result, now, now_s=now_s, now_unix_s=now_unix_s),
        "load": load(result.observation, now_s),
        "depth": {
            "in_force": schedule_or_none(result.in_force),
            "wanted": schedule_or_none(steered.wanted.schedule if steered.wanted else None),
            "in_use": arm_to_json(result.observation.in_use) if result.observation.in_use else None,
            "decoded": _decoded(result),
            "in_use_before": _in_use_before(result, now),
            "probing": _probing(result),
            "built": [arm_to_json(arm) for arm in result.observation.built],
        },
        "lease": {
            "state": str(steered.lease),
            "holder": steered.holder,
            "left_s": None if result.link.link in SILENT else steered.left_s(now_s),
            "sequence": steered.sequence,
            "error": steered.error,
        },
        "engine": engine(result),
        "conditions": [condition(active) for active in result.conditions],
        "turn": {
            "at_unix_s": result.decided_unix_s,
            "age_s": age_s,
            "late": late,
            "detail": WHY_LATE if late else None,
            "duration_s": result.duration_s,
        },
    }


def _order(result: TickResult, now: Standing) -> dict[str, Any]:
    """`resumed`: it dates from before a restart, or was covered by another."""
    return {**order_to_json(now, result), "resumed": now.taken_up and result.resumed}


def _kept(now: Standing) -> str:
    """What stands ordered, where the turn that is shown does not know of it or of what came of it."""
    if now.unconfirmed is None or (now.order is None and now.taken_up):
        return ""
    return f"ordered, not confirmed: {in_words(now.order)}; "


def _why(result: TickResult, now: Standing) -> str:
    if now.obstacle is not None:
        return f"nothing is put in force: {now.obstacle}"
    if now.unconfirmed is not None:
        before = "" if now.taken_up else "; before it: "
        return f"not confirmed: {now.unconfirmed}{before or '; '}{result.decision.detail}"
    away = out_of_reach(result.link, result.steered)
    return result.decision.detail if away is None else f"nothing is put in force: {away}"


def _effect(result: TickResult, now: Standing, *, now_s: float, now_unix_s: float) -> dict[str, Any]:
    """Of what is ordered: the effect of a plan before it says nothing of it."""
    if not now.taken_up:
        for_s = max(0.0, now_unix_s - now.since_unix_s)
        return {"state": str(Effect.PENDING), "for_s": for_s, "detail": NOT_LOOKED_AT}
    effect = result.effect
    return {
        "state": str(effect.effect),
        "for_s": max(0.0, now_s - effect.since_s),
        "detail": effect.detail,
    }


def _in_use_before(result: TickResult, now: Standing) -> bool:
    """Whether the latest step that was seen was launched before what is wanted now could show in it."""
    effect = result.effect
    return not now.taken_up or effect.effect is Effect.PENDING or effect.detail == NO_STEP


def _decoded(result: TickResult) -> bool | None:
    """Whether the engine has run a decode step since it started; `None`: not known."""
    steps = [rank.decode_steps for rank in result.control.telemetry] if result.control else []
    if any(steps):
        return True
    return False if steps and None not in steps else None


def way_out(order: Override) -> str:
    """What to type to be rid of `order` on this pod."""
    return "specgov override fleet" if order.suspends else "specgov override auto"


def given_again(order: Override | None) -> str:
    """What to type to have the same order once more."""
    if order is None or order.scope != "pod":
        return "specgov override fleet"
    depth = "" if order.depth is None else f" --depth {order.depth}"
    return f"specgov override {order.mode}{depth} --reason {shlex.quote(order.reason)}"


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
    if result.silent is not None and not result.steered.acknowledged:
        return f"{result.silent}; asked for ({who}): {result.decision.detail}"
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


def advice(result: TickResult, now: Standing, *, dry_run: bool, late: bool) -> list[str]:
    """What to type next: what mends a condition, or how to take over and hand back; nothing twice."""
    asks = [result.preflight] if late else []  # it asks the engine itself, which the loop does not hear
    mends = dict.fromkeys([*asks, *(active.remedy for active in result.conditions if active.remedy)])
    if dry_run:  # an override is refused there
        return [*mends, "specgov explain"]
    degraded = any(active.condition is Condition.STORE_DEGRADED for active in result.conditions)
    if now.after_restart is not None and degraded:  # else it was set up so that nothing is kept
        mends[f"once the sidecar has restarted: {given_again(now.order)}"] = None
    if now.order is not None:
        return list(dict.fromkeys([*mends, way_out(now.order)]))
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
        "remedy": result.link_remedy,
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
