"""Plain words for what is a code elsewhere: reasons, actions, states, the numbers of a decision.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.effect import Effect
from controller.overrides import Override
from controller.steering import Lease
from policies.types import Action, Mode, Reason, Schedule

ACTIONS: Mapping[Action, str] = {
    Action.GOVERN: "specgov sets the depth",
    Action.HOLD: "nothing is changed",
    Action.RELEASE: "SGLang chooses by itself",
}
REASONS: Mapping[Reason, str] = {
    Reason.FIXED: "the policy is one depth for every batch size",
    Reason.NATIVE: "the policy leaves the choice to SGLang",
    Reason.THRESHOLD_UP: "the batch or the queue passed a row of the table that drafts deeper",
    Reason.THRESHOLD_DOWN: "the batch or the queue passed a row of the table that drafts less",
    Reason.THRESHOLD_STAY: "the table asks for what is in force",
    Reason.GOODPUT_BETTER: "another depth is faster by more than the error of what is known",
    Reason.GOODPUT_STAY: "no other depth is faster by more than the error of what is known",
    Reason.GOODPUT_LEARNING: "no other depth is known to be faster, and some are not measured yet",
    Reason.TPOT_OBJECTIVE: "the objective for the time per output token asks for another depth",
    Reason.BANDIT: "the bandit drew these depths",
    Reason.EXTERNAL: "a policy from elsewhere decided so",
    Reason.OVERRIDE: "an operator ordered it",
    Reason.SUSPECT_INPUT: "SGLang's figures contradict each other",
    Reason.STALE_INPUT: "the load is too old or not known",
    Reason.LOST_INPUT: "the load has not been known for long",
    Reason.DWELL: "the last change was too short a time ago",
    Reason.SWITCH_BUDGET: "there were too many changes in a short time",
    Reason.FREEZE: "an operator forbade a change in this direction",
    Reason.ROLLED_BACK: "the last change did not bring what was predicted and is taken back",
    Reason.ARM_RESTING: "the depth that is wanted failed a short while ago and rests",
    Reason.CRASH_LOOP: "the engine restarts again and again",
    Reason.NOT_BUILT: "SGLang did not build the depth that is asked for",
    Reason.NOT_CONTROLLED: "the engine does not answer, or cannot be controlled",
    Reason.POLICY_ERROR: "the policy failed",
}
GUARDS: Mapping[Reason, str] = {
    Reason.SUSPECT_INPUT: "unsound input",
    Reason.STALE_INPUT: "stale input",
    Reason.LOST_INPUT: "lost input",
    Reason.DWELL: "dwell",
    Reason.SWITCH_BUDGET: "switch budget",
    Reason.ROLLED_BACK: "verification",
    Reason.ARM_RESTING: "verification",
    Reason.CRASH_LOOP: "crash loop",
    Reason.POLICY_ERROR: "policy error",
}
"""The guard that decided, for reasons that are a guard's and no policy's; an order's own are not here."""
LEASES: Mapping[Lease, str] = {
    Lease.NONE: "nobody holds it, so the engine follows its fallback",
    Lease.HELD: "held by this sidecar",
    Lease.LOST: "was this sidecar's, and was not renewed in time or ended at the engine",
    Lease.FOREIGN: "held under another name, or by another of this name; this sidecar only watches",
}
EFFECTS: Mapping[Effect, str] = {
    Effect.NONE: "no depth is asked of the engine",
    Effect.PENDING: "asked for, and not acknowledged by every rank",
    Effect.ACKNOWLEDGED: "acknowledged by every rank, and not yet seen in decode steps",
    Effect.APPLIED: "acknowledged, and seen in decode steps",
    Effect.UNCONFIRMED: "acknowledged, but the decode steps show another depth",
    Effect.INERT: "asked for, and without effect for too long",
}
UNITS = {
    "_tok_s_per_request": "tok/s per request",
    "_tok_s": "tok/s",
    "_per_hour": "per hour",
    "_per_request": "per request",
    "_reqs": "requests",
    "_bytes": "bytes",
    "_tok": "tokens",
    "_s": "s",
}
"""How the name of a number ends, by its unit; the first that fits."""


def said(value: Any) -> str:
    """A value as people write it: no brackets, no quotes, no names of keys, six digits at most."""
    if isinstance(value, dict):
        return ", ".join(named(str(key), each) for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        apart = "; " if any(isinstance(each, dict | list | tuple) for each in value) else ", "
        return apart.join(map(said, value)) or "none"
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def named(key: str, value: Any) -> str:
    """`key`, whose end is a unit, and its value: `("rest_s", 60.0)` is "rest 60 s"."""
    name, unit = key, ""
    for suffix, words in UNITS.items():
        if key.endswith(suffix) and key != suffix:
            name, unit = key.removesuffix(suffix), f" {words}"
            break
    known = value is not None and not isinstance(value, bool | dict)
    return f"{name.strip('_').replace('_', ' ')} {said(value)}{unit if known else ''}"


def limit(order: Override) -> str | None:
    """Than what an order lets nothing go deeper, or shallower; `None`: it sets no limit."""
    words = {Mode.NO_DEEPER: "no deeper than", Mode.NO_SHALLOWER: "no shallower than"}
    if order.mode not in words:
        return None
    than, table = words[order.mode], order.limit
    if table is None:
        return f"{than} what comes into force first"
    return f"{than} {table_in_words(table, gears=False)}"


def table_in_words(table: Schedule, *, gears: bool = True) -> str:
    """Depth by batch size, in one phrase; `gears`: what the draft model does at depth 0, too."""
    arms = [f"depth {row.arm if gears else row.arm.depth}" for row in table.rows]
    if len(arms) == 1:
        return arms[0] + (" at every batch size" if gears else "")
    bands = (f"{arm} from batch size {row.min_batch_size}" for arm, row in zip(arms, table.rows, strict=True))
    return ", ".join(bands)


def numbers(evidence: Mapping[str, Any]) -> list[str]:
    """One line for each thing that a decision rests on; what no phrase is made for is `named`."""
    left, lines = dict(evidence), []
    left.pop("would_change", None)  # sentences of their own
    for keys, phrase in PHRASES:
        if not left.keys() >= set(keys):
            continue
        try:
            line = phrase(*(left[key] for key in keys))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            continue  # another policy's number of the same name
        for key in keys:
            del left[key]
        lines += [line] if line else []
    return [*lines, *(named(key, value) for key, value in left.items())]


def _expected(arm: Mapping[str, Any]) -> str:
    if arm["predicted_tok_s"] is None:
        return f"depth {arm['arm']}: not measured yet"
    rate = f"{arm['predicted_tok_s']:.0f} ± {arm['se_tok_s']:.0f} tok/s while decoding"
    return f"depth {arm['arm']}: {rate}, {arm['tokens_per_step']:.2f} tokens per request and step"


def _chosen(arm: Mapping[str, Any]) -> str:
    return f"expected of {_expected(arm)}"


def _runner_up(arm: Mapping[str, Any] | None) -> str:
    return "no other depth is measured yet" if arm is None else f"next to it, {_expected(arm)}"


def _acceptance(accepted: Sequence[float], errors: Sequence[float]) -> str:
    each = (f"{100 * p:.1f} ± {100 * e:.1f} %" for p, e in zip(accepted, errors, strict=True))
    positions = (f"{i}: {text}" for i, text in enumerate(each, 1))
    return f"drafts accepted, by position, of those whose predecessors were: {', '.join(positions)}"


def _probing(probing: Mapping[str, Any]) -> str:
    now = "no probe is planned" if probing["arm"] is None else f"depth {probing['arm']} is being probed"
    share = f"{probing['probe_s']:.1f} s of {probing['decode_s']:.0f} s of decoding"
    return f"{now}; {probing['probes']} probes since the start, {share}"


def _rewards(rates: Mapping[str, float], ticks: Mapping[str, float]) -> str:
    """Of the bandit: turns long ago count for less, so that their number is no whole one."""
    each = (f"depth {arm}: {rate:.0f} tok/s over {ticks[arm]:.1f} turns" for arm, rate in rates.items())
    return f"seen here, per request: {'; '.join(each)}" if rates else "nothing is seen here yet"


def _alarms(acceptance: int, step_time: int, per_hour: float) -> str:
    counted = f"acceptance {acceptance}, step time {step_time}"
    return (
        f"shifts noticed since the start: {counted}; of acceptance about {per_hour:.1f} an hour are expected"
    )


PHRASES: Sequence[tuple[tuple[str, ...], Callable[..., str]]] = (
    (
        ("dry_run", "would", "would_schedule"),
        lambda _dry, would, table: f"it would {would}: {table or 'no table'}",
    ),
    (("batch_size",), lambda size: f"batch size: {said(size)}"),
    (("batch_bucket",), lambda size: f"from batch size: {said(size)}"),
    (("chosen",), _chosen),
    (("runner_up",), _runner_up),
    (
        ("resting_arms",),
        lambda arms: f"at rest here after it failed: depth {', '.join(arms)}" if arms else "",
    ),
    (("unknown_arms",), lambda arms: f"not measured yet: depth {', '.join(arms)}" if arms else ""),
    (("acceptance_by_position", "acceptance_se"), _acceptance),
    (("context_tokens_per_request",), lambda tokens: f"context: {tokens:.0f} tokens per request"),
    (
        ("loss_per_rise_from_cold_s",),
        lambda s: f"lost whenever drafting comes back after a cold spell: {s:.2f} s of decode time",
    ),
    (
        ("loss_per_rise_from_frozen_s",),
        lambda s: f"lost whenever drafting comes back after a frozen spell: {s:.2f} s of decode time",
    ),
    (("tok_s_per_request", "ticks"), _rewards),
    (
        ("depth", "wanted_depth"),
        lambda depth, wanted: f"depth: {depth}, wanted: {'the deepest' if wanted is None else wanted}",
    ),
    (("acceptance_alarms", "step_time_alarms", "acceptance_changes_per_hour"), _alarms),
    (
        ("meets_tpot_objective",),
        lambda met: f"objective for the time per output token: {'' if met else 'not '}met",
    ),
    (("probing",), _probing),
    (
        ("queue_reqs", "queue_long"),
        lambda n, long: f"{said(n)} requests wait{', too many to draft' if long else ''}",
    ),
    (
        ("boundaries",),
        lambda sizes: f"the table changes at batch sizes {said(sizes[1:])}" if sizes[1:] else "",
    ),
    (
        ("load_age_s", "max_age_s"),
        lambda age, most: f"the load is {_aged(age)}; older than {most:g} s is too old",
    ),
    (("suspect",), lambda doubts: f"contradictions: {said(doubts)}" if doubts else ""),
    (("lost_s",), lambda s: f"without sound figures for {s:.0f} s"),
    (
        ("dwell_s", "left_s"),
        lambda dwell, left: f"{left:.1f} s are left of the {dwell:g} s between two changes",
    ),
    (("switches", "window_s"), lambda n, window: f"{n} changes in the last {window:g} s"),
    (
        ("restarts", "window_s", "left_s"),
        lambda n, w, s: f"{n} restarts in {w:g} s; off for another {s:.0f} s",
    ),
    (("failures", "fallback"), lambda n, back: f"failed {n} times in a row; fallback: {back or 'not yet'}"),
    (
        ("arm", "before_tok_s", "after_tok_s", "relative_error", "rest_s"),
        lambda arm, b, a, e, s: (
            f"depth {arm} brought {a:.0f} tok/s, {b:.0f} before it, ± {100 * e:.1f} %; it rests for {s:.0f} s"
        ),
    ),
    (("mode", "actor"), lambda mode, who: f"ordered: {mode.replace('_', ' ')}, by {who or 'someone'}"),
)
"""Keys of the evidence of a decision, and the line that is made of their values; empty: nothing to say."""


def _aged(age_s: float | None) -> str:
    return "of an age that is not known" if age_s is None else f"{age_s:.1f} s old"
