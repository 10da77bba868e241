"""Why this depth now: the chain from what was seen to what is in use, and what would change it.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from controller import views
from controller.conditions import MEANING
from controller.effect import EffectState
from controller.link import SILENT, Link
from controller.loop import TickResult, out_of_reach
from controller.overrides import Override, in_words
from controller.recorders import decision_to_json, override_to_json
from controller.standing import WHY_LATE, Standing
from controller.wording import ACTIONS, EFFECTS, LEASES, REASONS, limit, numbers, table_in_words
from policies.types import Action


def explain(result: TickResult | None, now: Standing, *, now_s: float) -> dict[str, Any]:
    """Sentences for people (`because`, `numbers`, `would_change`); for programs, what they are made of."""
    if result is None:
        return {"because": ["no turn is done yet"], "numbers": [], "would_change": [], "decision": None}
    return {
        "because": [
            *_watching(result),
            *_standing(now),
            *_because(result, now, now_s),
            *_ordered(result, now),
        ],
        "numbers": numbers(result.decision.evidence),
        "would_change": list(_would_change(result, now)),
        "decision": decision_to_json(result.decision),
        "shadow": decision_to_json(result.shadow) if result.shadow else None,
        "load": views.load(result.observation, now_s),
        "effect": str(result.effect.effect),
    }


def _because(result: TickResult, now: Standing, now_s: float) -> Iterator[str]:
    decision, steered, effect = result.decision, result.steered, result.effect
    yield f"engine: {_engine(result, late=now.late)}"
    yield f"load: {_load(result, now_s)}"
    kept = ", not put in force" if out_of_reach(result.link, steered) else ""
    because = f"{ACTIONS[decision.action]}, because {REASONS[decision.reason]}: {decision.detail}"
    yield f"decision{kept}: {because}"
    if steered.wanted is not None:
        yield f"asked of the engine: {table_in_words(steered.wanted.schedule)}"
    if steered.rejected:
        yield f"refused by the engine: {steered.rejected}"
    yield f"effect, for {max(0.0, now_s - effect.since_s):.0f} s: {_effect(effect)}"
    yield f"lease: {_lease(result, now_s)}"
    if steered.error and steered.error != steered.rejected:
        yield f"last error: {steered.error}"


def _watching(result: TickResult) -> Iterator[str]:
    """What makes of all the rest a wish."""
    if result.steered.held_elsewhere is not None:
        yield f"this sidecar watches only: {result.steered.held_elsewhere}"


def _engine(result: TickResult, *, late: bool) -> str:
    if result.link.link is not Link.READY or result.steered.held_elsewhere is not None:
        return result.link.detail
    hangs = WHY_LATE if late else result.silent
    if hangs is not None:
        return f"{hangs}; before that it could be governed: {result.link.detail}"
    return f"it can be governed: {result.link.detail}"


def _effect(effect: EffectState) -> str:
    words = EFFECTS[effect.effect]
    return words if effect.detail in words else f"{words}: {effect.detail}"


def _lease(result: TickResult, now_s: float) -> str:
    """What an engine that does not answer holds is not known: it may be gone."""
    if result.link.link in SILENT:
        return "not known"
    left_s = result.steered.left_s(now_s)
    return LEASES[result.steered.lease] + ("" if left_s is None else f", {left_s:.1f} s left")


def _standing(now: Standing) -> Iterator[str]:
    """What stands ordered, where the rest does not tell what came of it."""
    if now.unconfirmed is not None:
        yield f"ordered, not confirmed: {in_words(now.order)}: {now.unconfirmed}"
    if now.after_restart is not None:
        yield f"not on disk: a restart of the sidecar would put in force: {now.after_restart['detail']}"


def _ordered(result: TickResult, now: Standing) -> Iterator[str]:
    order = now.order
    if order is None:
        return
    bound = limit(order)
    if bound is not None:
        yield f"order: {bound}"
    if order.suspends is not None:
        yield f"order: suspends the fleet's {override_to_json(order)['suspends']}"
    if not now.taken_up or not (result.resumed or result.force.gap_unix_s):
        return
    since, gap = result.force.since_unix_s, result.force.gap_unix_s
    force = f"in force since {_utc(since)}" if since is not None else "not in force"
    before = f"not from {_utc(gap[0])} to {_utc(gap[1])}" if gap else "whether before that is not known here"
    yield f"order: given at {_utc(order.set_unix_s)} UTC, {force}, {before}"


def _utc(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}"


def _load(result: TickResult, now_s: float) -> str:
    seen = result.observation
    counts = (seen.running_reqs, seen.queue_reqs, seen.batch_size)
    running, waiting, batch = ("not known" if count is None else str(count) for count in counts)
    age_s = views.load(seen, now_s)["age_s"]
    aged = "age not known" if age_s is None else f"{age_s:.1f} s old"
    return f"requests running: {running}, waiting: {waiting}; batch size: {batch} ({aged})"


def _would_change(result: TickResult, now: Standing) -> Iterator[str]:
    for active in result.conditions:
        if active.remedy:
            yield f"{MEANING[active.condition][0]}: {active.remedy}"
    if now.order is not None:
        yield f"the override {_end(now.order)}; at once: {views.way_out(now.order)}"
    yield from _other_batch_sizes(result)
    hints = result.decision.evidence.get("would_change", ())
    yield from map(str, hints if isinstance(hints, list | tuple) else ())


def _other_batch_sizes(result: TickResult) -> Iterator[str]:
    schedule, batch_size = result.in_force, result.observation.batch_size
    if schedule is None or batch_size is None or result.decision.action is Action.RELEASE:
        return
    arm = schedule.arm_for(batch_size)
    for row in schedule.rows:
        if row.min_batch_size > batch_size and row.arm != arm:
            yield f"a batch size of {row.min_batch_size} or more: depth {row.arm}"
    lower = [row for row in schedule.rows if row.min_batch_size <= batch_size]
    if len(lower) > 1:
        yield f"a batch size below {lower[-1].min_batch_size}: depth {lower[-2].arm}"


def _end(override: Override) -> str:
    ways = []
    if override.expires_unix_s is not None:
        end = datetime.fromtimestamp(override.expires_unix_s, UTC)
        ways.append(f"at {end:%Y-%m-%d %H:%M:%S} UTC")
    if override.suspends is not None:
        ways.append("when the fleet's order changes or ends")
    if override.scope == "sidecar":
        ways.append("when the orders can be read")
    return f"ends by itself {' or '.join(ways)}" if ways else "does not end by itself"
