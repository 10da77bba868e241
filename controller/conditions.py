"""What is wrong, or unusual, right now: a closed list, each with since when, why and what mends it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.control_state import ControlState
from controller.effect import Effect, EffectState
from controller.link import Link, LinkState
from controller.steering import Lease, Steered
from policies.types import Action, Decision, Reason


class Condition(StrEnum):
    """The same word in `/v1/status`, the metric label and the alert."""

    ENGINE_UNREACHABLE = "engine_unreachable"
    UNAUTHORIZED = "unauthorized"
    NO_PLUGIN = "no_plugin"
    SPECULATION_OFF = "speculation_off"
    NOT_CONTROLLABLE = "not_controllable"
    WRONG_VERSION = "wrong_version"
    NOT_SGLANG = "not_sglang"
    INERT = "inert"
    UNCONFIRMED = "unconfirmed"
    FOREIGN_LEASE = "foreign_lease"
    LEASE_LOST = "lease_lost"
    PLAN_REJECTED = "plan_rejected"
    RANKS_PENDING = "ranks_pending"
    RANKS_DISAGREE = "ranks_disagree"
    HOOK_ERRORS = "hook_errors"
    STALE_INPUT = "stale_input"
    SUSPECT_INPUT = "suspect_input"
    SCHEMA = "schema"
    FALLBACK = "fallback"
    POLICY_ERROR = "policy_error"
    NOT_BUILT = "not_built"
    SWITCH_BUDGET = "switch_budget"
    ROLLED_BACK = "rolled_back"
    ENGINE_CRASH_LOOP = "engine_crash_loop"
    DRIFT = "drift"
    FLEET_OVERRIDE_INVALID = "fleet_override_invalid"
    STORE_DEGRADED = "store_degraded"
    ORDERS_UNREAD = "orders_unread"
    TOKEN_EMPTY = "token_empty"  # noqa: S105  a word for a condition, no secret
    DRY_RUN = "dry_run"


MEANING: Mapping[Condition, tuple[str, str]] = {
    Condition.ENGINE_UNREACHABLE: (
        "the engine does not answer",
        "check engine.url and that the server is up",
    ),
    Condition.UNAUTHORIZED: ("the engine refuses the key", "set engine.admin_api_key_file"),
    Condition.NO_PLUGIN: (
        "SGLang runs without the plugin",
        "specgov export-hooks DIR, then restart SGLang with PYTHONPATH=DIR",
    ),
    Condition.SPECULATION_OFF: ("SGLang runs without speculation", "specgov engine-flags --depths 0,1,2,4"),
    Condition.NOT_CONTROLLABLE: ("the plugin says that control is impossible", "specgov preflight"),
    Condition.WRONG_VERSION: ("plugin and sidecar speak different protocols", "install the same release"),
    Condition.NOT_SGLANG: ("what answers is not SGLang", "check engine.url"),
    Condition.INERT: ("control is wanted and has no effect", "specgov preflight"),
    Condition.UNCONFIRMED: ("the depth in use is not the plan's", "specgov explain; specgov preflight"),
    Condition.FOREIGN_LEASE: (
        "the lease is held under another name, or by another of this name",
        "if its holder still runs, stop one of the two; if not, free the engine as specgov status says",
    ),
    Condition.LEASE_LOST: ("the lease ended without our doing", "nothing: it is renewed by itself"),
    Condition.PLAN_REJECTED: ("the engine refuses the plan", "specgov explain shows the plan and the field"),
    Condition.RANKS_PENDING: ("a rank has not taken the plan", "look for a hang in that rank's log"),
    Condition.RANKS_DISAGREE: ("ranks applied a plan differently", "specgov override native; report it"),
    Condition.HOOK_ERRORS: ("the hook counted errors inside the engine", "see SGLang's log; report it"),
    Condition.STALE_INPUT: ("the load is too old or not known", "specgov status shows the ages"),
    Condition.SUSPECT_INPUT: ("the figures contradict each other", "nothing: held until they are sound"),
    Condition.SCHEMA: ("fields that are expected are missing or unsound", "specgov preflight"),
    Condition.FALLBACK: ("the fallback decides, not the policy", "specgov explain"),
    Condition.POLICY_ERROR: ("the policy failed", "see the log; specgov override native"),
    Condition.NOT_BUILT: ("a depth is asked for that is not built", "specgov engine-flags, restart SGLang"),
    Condition.SWITCH_BUDGET: ("the policy changes its mind too often", "raise the policy's margin"),
    Condition.ROLLED_BACK: ("a change did not bring what was predicted", "specgov explain"),
    Condition.ENGINE_CRASH_LOOP: (
        "the engine restarts again and again, so off is pinned",
        "mend the engine, then let the policy govern again: specgov override auto",
    ),
    Condition.DRIFT: ("acceptance or step time has left what was learned", "specgov explain"),
    Condition.FLEET_OVERRIDE_INVALID: (
        "the fleet-wide override file is wrong; what was in force stays",
        "mend the file: the message names the field",
    ),
    Condition.STORE_DEGRADED: (
        "the state database cannot be written",
        "mend the state database: the message says how",
    ),
    Condition.ORDERS_UNREAD: (
        "an order may be unread, so none but the fleet's is obeyed and nothing else is put in force",
        "mend the state database, or give an order here: specgov override auto",
    ),
    Condition.TOKEN_EMPTY: (
        "a token file of the API is empty, so nobody can use it",
        "write the token into the file that the message names: it is read again by itself",
    ),
    Condition.DRY_RUN: ("decisions are not applied", "set dry_run = false and restart it"),
}
"""What each condition means and what mends it; the table in docs/metrics.md is made of it."""

INTENDED = frozenset({Condition.DRY_RUN})
"""Conditions that are as somebody wanted it: shown, and no reason to call anybody."""

_BY_LINK = {
    Link.UNREACHABLE: Condition.ENGINE_UNREACHABLE,
    Link.UNAUTHORIZED: Condition.UNAUTHORIZED,
    Link.NO_PLUGIN: Condition.NO_PLUGIN,
    Link.SPECULATION_OFF: Condition.SPECULATION_OFF,
    Link.NOT_CONTROLLABLE: Condition.NOT_CONTROLLABLE,
    Link.WRONG_VERSION: Condition.WRONG_VERSION,
    Link.NOT_SGLANG: Condition.NOT_SGLANG,
}
_BY_REASON = {
    Reason.STALE_INPUT: Condition.STALE_INPUT,
    Reason.LOST_INPUT: Condition.STALE_INPUT,
    Reason.SUSPECT_INPUT: Condition.SUSPECT_INPUT,
    Reason.POLICY_ERROR: Condition.POLICY_ERROR,
    Reason.NOT_BUILT: Condition.NOT_BUILT,
    Reason.NOT_CONTROLLED: Condition.NOT_BUILT,
    Reason.SWITCH_BUDGET: Condition.SWITCH_BUDGET,
    Reason.ROLLED_BACK: Condition.ROLLED_BACK,
    Reason.CRASH_LOOP: Condition.ENGINE_CRASH_LOOP,
}


@dataclass(frozen=True, slots=True)
class ActiveCondition:
    """A condition that holds now."""

    condition: Condition
    since_unix_s: float
    message: str
    remedy: str
    """What mends it."""

    @property
    def attention(self) -> bool:
        """Whether somebody should look: all but what was set so."""
        return self.condition not in INTENDED


class ConditionBoard:
    """Remembers since when each condition has held."""

    def __init__(self) -> None:
        self.now: tuple[ActiveCondition, ...] = ()
        """As of the last `update`, in the order of the list."""

    def update(
        self, messages: Mapping[Condition, str], now_unix_s: float, remedies: Mapping[Condition, str]
    ) -> tuple[ActiveCondition, ...]:
        """Take over which conditions hold, and why; `remedies` say more than those of `MEANING`."""
        since = {active.condition: active.since_unix_s for active in self.now}
        mends = {condition: MEANING[condition][1] for condition in messages} | dict(remedies)
        self.now = tuple(
            ActiveCondition(
                condition, since.get(condition, now_unix_s), messages[condition], mends[condition]
            )
            for condition in Condition
            if condition in messages
        )
        return self.now


def judge(
    *,
    link: LinkState,
    decision: Decision,
    steered: Steered,
    effect: EffectState,
    control: ControlState | None,
    problems: tuple[str, ...],
    store_problem: str | None,
    unread: str | None,
    fleet_problem: str | None,
    token_problem: str | None,
    dry_run: bool,
) -> dict[Condition, str]:
    """Which conditions hold, with the sentence for each."""
    found: dict[Condition, str | None] = {
        Condition.FOREIGN_LEASE: None if dry_run else steered.held_elsewhere,  # it would not take it anyhow
        Condition.LEASE_LOST: _lost(steered),
        Condition.PLAN_REJECTED: steered.rejected,
        Condition.RANKS_PENDING: f"{steered.pending_ranks} ranks" if steered.pending_ranks else None,
        Condition.INERT: effect.detail if effect.effect is Effect.INERT else None,
        Condition.UNCONFIRMED: effect.detail if effect.effect is Effect.UNCONFIRMED else None,
        Condition.SCHEMA: "; ".join(problems[:5]) or None,
        Condition.FLEET_OVERRIDE_INVALID: fleet_problem,
        Condition.STORE_DEGRADED: store_problem,
        Condition.ORDERS_UNREAD: unread,
        Condition.TOKEN_EMPTY: token_problem,
        Condition.DRY_RUN: "nothing is applied" if dry_run else None,
        Condition.DRIFT: decision.evidence.get("drift"),
        Condition.FALLBACK: _fallback(decision),
        **_inside(control),
    }
    if link.link in _BY_LINK:
        found[_BY_LINK[link.link]] = link.detail
    elif decision.reason in _BY_REASON:  # without a link, what the policy lacks is no news
        found[_BY_REASON[decision.reason]] = decision.detail
    return {condition: str(message) for condition, message in found.items() if message}


def _lost(steered: Steered) -> str | None:
    """Where no plan is wanted, neither is a lease."""
    lost = steered.lease is Lease.LOST and steered.wanted is not None
    return "not renewed in time, or ended" if lost else None


def _fallback(decision: Decision) -> str | None:
    handed_back = decision.action is Action.RELEASE and decision.reason is Reason.LOST_INPUT
    return decision.detail if handed_back or decision.evidence.get("fallback") else None


def _inside(control: ControlState | None) -> dict[Condition, str | None]:
    """What the engine says about itself."""
    if control is None:
        return {}
    errors = sum(rank.hook_errors or 0 for rank in control.telemetry)
    return {
        Condition.RANKS_DISAGREE: "ranks_agree is false" if control.ranks_agree is False else None,
        Condition.HOOK_ERRORS: f"{errors} since the engine started" if errors else None,
    }
