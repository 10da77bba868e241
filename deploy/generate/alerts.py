"""The alert rules, as one table.  Every condition of the sidecar has an alert or a reason to have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.conditions import MEANING, Condition

RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.  `hold`: how long the expression must hold, in Prometheus' notation."""

    name: str
    expr: str
    hold: str
    severity: str
    """`critical`: look now.  `warning`: look today.  `info`: for the record."""
    summary: str
    description: str

    @property
    def anchor(self) -> str:
        """Its entry in the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def to_rule(self) -> dict[str, Any]:
        """As Prometheus takes it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": self.anchor,
            },
        }


def _on_condition(
    name: str, conditions: tuple[Condition, ...], hold: str, severity: str, summary: str
) -> Alert:
    matcher = f'="{conditions[0]}"' if len(conditions) == 1 else f'=~"{"|".join(conditions)}"'
    meanings = (
        "; ".join(MEANING[each][0] for each in conditions)
        if len(conditions) == 1
        else "{{ $labels.condition }}"
    )
    return Alert(
        name,
        f"specgov_condition{{condition{matcher}}} == 1",
        hold,
        severity,
        summary,
        f"{{{{ $labels.instance }}}}: {meanings}.",
    )


NO_CONTROL = (
    Condition.UNAUTHORIZED,
    Condition.NO_PLUGIN,
    Condition.SPECULATION_OFF,
    Condition.NOT_CONTROLLABLE,
    Condition.WRONG_VERSION,
    Condition.NOT_SGLANG,
)

CONDITION_ALERTS: Mapping[tuple[Condition, ...], Alert] = {
    conditions: _on_condition(name, conditions, hold, severity, summary)
    for conditions, name, hold, severity, summary in (
        ((Condition.INERT,), "SpecgovInert", "5m", "warning", "Control is wanted and has no effect"),
        (
            (Condition.ENGINE_UNREACHABLE,),
            "SpecgovEngineUnreachable",
            "10m",
            "warning",
            "SGLang does not answer the sidecar",
        ),
        (NO_CONTROL, "SpecgovCannotControl", "10m", "warning", "SGLang answers, but cannot be controlled"),
        (
            (Condition.UNCONFIRMED,),
            "SpecgovUnconfirmed",
            "5m",
            "warning",
            "The depth in use is not the one that was asked for",
        ),
        (
            (Condition.FOREIGN_LEASE,),
            "SpecgovForeignLease",
            "5m",
            "warning",
            "Another holder has had the lease at the engine for five minutes",
        ),
        ((Condition.LEASE_LOST,), "SpecgovLeaseLost", "2m", "warning", "The lease at the engine was lost"),
        ((Condition.PLAN_REJECTED,), "SpecgovPlanRejected", "2m", "warning", "SGLang refuses the plan"),
        ((Condition.RANKS_PENDING,), "SpecgovRankPending", "2m", "critical", "A rank does not take the plan"),
        ((Condition.RANKS_DISAGREE,), "SpecgovRanksDisagree", "0s", "critical", "Ranks ran different depths"),
        ((Condition.HOOK_ERRORS,), "SpecgovHookErrors", "1m", "warning", "The hook failed inside SGLang"),
        ((Condition.STALE_INPUT,), "SpecgovStaleInput", "5m", "warning", "Decisions rest on old figures"),
        (
            (Condition.SUSPECT_INPUT,),
            "SpecgovSuspectInput",
            "10m",
            "warning",
            "SGLang's figures contradict each other",
        ),
        (
            (Condition.SCHEMA,),
            "SpecgovSchemaChanged",
            "10m",
            "warning",
            "SGLang's figures have another form than expected",
        ),
        ((Condition.FALLBACK,), "SpecgovFallback", "5m", "warning", "The fallback decides"),
        ((Condition.POLICY_ERROR,), "SpecgovPolicyError", "2m", "warning", "The policy fails"),
        (
            (Condition.NOT_BUILT,),
            "SpecgovDepthNotBuilt",
            "10m",
            "warning",
            "A depth is asked for that SGLang did not build",
        ),
        (
            (Condition.SWITCH_BUDGET,),
            "SpecgovSwitchBudget",
            "10m",
            "warning",
            "The policy changes its mind too often",
        ),
        (
            (Condition.ROLLED_BACK,),
            "SpecgovRolledBack",
            "30m",
            "info",
            "A change did not bring what was predicted",
        ),
        (
            (Condition.ENGINE_CRASH_LOOP,),
            "SpecgovEngineCrashLoop",
            "0s",
            "critical",
            "SGLang restarts again and again",
        ),
        (
            (Condition.DRIFT,),
            "SpecgovDrift",
            "10m",
            "warning",
            "Acceptance or step time has left what was learned",
        ),
        (
            (Condition.FLEET_OVERRIDE_INVALID,),
            "SpecgovFleetOverrideInvalid",
            "1m",
            "warning",
            "The fleet-wide override file is wrong",
        ),
        (
            (Condition.STORE_DEGRADED,),
            "SpecgovStoreDegraded",
            "5m",
            "warning",
            "Overrides and decisions are not saved",
        ),
        (
            (Condition.ORDERS_UNREAD,),
            "SpecgovOrdersUnread",
            "1m",
            "warning",
            "An order may be unread, so the sidecar governs nothing",
        ),
        (
            (Condition.TOKEN_EMPTY,),
            "SpecgovTokenEmpty",
            "5m",
            "warning",
            "A token file of the sidecar is empty, so nobody can give it an order",
        ),
    )
}

WITHOUT_ALERT: Mapping[Condition, str] = {
    Condition.DRY_RUN: "an operator's choice, shown on the status page and the dashboards",
}


def _behind(reference: str) -> str:
    """By which share of the reference's tokens we are surely behind it (two standard errors)."""

    def hour(metric: str) -> str:
        return f'increase(specgov_{metric}_tokens_total{{against="{reference}"}}[1h])'

    missed = f"{hour('reference')} - {hour('compared')} - 2 * {hour('reference_error')}"
    return f"({missed}) / ({hour('reference')} > 0)"


OTHER_ALERTS = (
    Alert(
        "SpecgovDown",
        'up{job=~".*specgov.*"} == 0',
        "5m",
        "warning",
        "The sidecar cannot be scraped",
        "{{ $labels.instance }}: when its lease has run out, SGLang follows its own choice.",
    ),
    Alert(
        "SpecgovLoopStalled",
        "time() - specgov_last_tick_timestamp_seconds > 60",
        "1m",
        "critical",
        "The control loop does not turn",
        "{{ $labels.instance }}: answers scrapes, but has not taken a turn for over a minute.",
    ),
    Alert(
        "SpecgovEngineRestarts",
        "increase(specgov_engine_restarts_total[15m]) > 2.5",
        "0s",
        "critical",
        "SGLang restarted three times in 15 minutes",
        "{{ $labels.instance }}: look at SGLang's log before anything else.",
    ),
    Alert(
        "SpecgovOverrideEnding",
        "specgov_override_active == 1 and (specgov_override_expiry_timestamp_seconds - time()) < 600",
        "0s",
        "info",
        "An override ends within ten minutes",
        "{{ $labels.instance }}: the policy decides afterwards.",
    ),
    Alert(
        "SpecgovOverrideForgotten",
        "specgov_override_active == 1",
        "24h",
        "warning",
        "An override has been in force for a day",
        "{{ $labels.instance }}: does anybody still want it?",
    ),
    Alert(
        "SpecgovRegretHigh",
        f"{_behind('best_measured')} > 0.10",
        "30m",
        "warning",
        "A tenth of the throughput is given away",
        "{{ $labels.instance }}: another depth was measured to be surely faster over the last hour.",
    ),
    Alert(
        "SpecgovWorseThanOff",
        f"{_behind('always_off')} > 0.05",
        "30m",
        "warning",
        "No speculation at all would have been faster",
        "{{ $labels.instance }}: over the last hour, by the measured speed of depth 0.",
    ),
)

ALERTS: tuple[Alert, ...] = (*OTHER_ALERTS, *CONDITION_ALERTS.values())


def groups() -> dict[str, Any]:
    """A rule file."""
    return {"groups": [{"name": "specgov", "rules": [alert.to_rule() for alert in ALERTS]}]}


def prometheus_rule() -> dict[str, Any]:
    """The same for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "specgov"},
        "spec": groups(),
    }
