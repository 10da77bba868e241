"""The numbers behind a choice, for a person: JSON-ready, units in the keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from policies.surface import Indices, Models, Outlook, size_index
from policies.types import Forecast, Gear


def explain(outlook: Outlook, models: Models, chosen: Indices, batch: float) -> dict[str, Any]:
    """What is expected at the present batch size, of the chosen arm and the best of the others."""
    g = size_index(batch)
    best = int(chosen[g])
    others = [a for a in np.argsort(-outlook.log_worth[g]) if a != best and outlook.known[a]]
    fit = models.prefill.fit(models.load.step_s)
    p, variance = models.survival.conditional(outlook.yields.gradient.shape[1])
    return {
        "batch_size": batch,
        "chosen": _arm(outlook, g, best, batch),
        "runner_up": _arm(outlook, g, int(others[0]), batch) if others else None,
        "acceptance_by_position": [round(float(x), 4) for x in p],
        "acceptance_se": [round(float(x) ** 0.5, 4) for x in variance],
        "context_tokens_per_request": round(models.cost.context, 1),
        "prefill_adds_s": round(fit.per_spell_s, 5),
        "prefill_adds_se_s": round(fit.error_s, 5),
        "frozen_spares_s": round(fit.spared_s, 5),
        "batch_is_held": round(models.prefill.held.share, 3),
        "loss_per_rise_from_cold_s": round(models.ledger.loss_s(Gear.COLD, models.load.step_s), 4),
        "loss_per_rise_from_frozen_s": round(models.ledger.loss_s(Gear.FROZEN, models.load.step_s), 4),
        "resting_arms": [str(arm) for a, arm in enumerate(outlook.arms) if outlook.barred[g, a]],
        "unknown_arms": [
            str(arm) for arm, known in zip(outlook.arms, outlook.known, strict=True) if not known
        ],
        "acceptance_alarms": models.survival.alarms,
        "step_time_alarms": models.cost.alarms,
        "acceptance_changes_per_hour": round(3600 * models.survival.changes.per_s, 3),
    }


def _arm(outlook: Outlook, g: int, a: int, batch: float) -> dict[str, Any]:
    """All `None` but its name before it was ever timed: what a prior says is nobody's measurement."""
    if not outlook.known[a]:
        return {
            "arm": str(outlook.arms[a]),
            "predicted_tok_s": None,
            "se_tok_s": None,
            "prefills_cost": None,
            "tokens_per_step": None,
        }
    rate = batch * math.exp(float(outlook.log_rate[g, a]))
    return {
        "arm": str(outlook.arms[a]),
        "predicted_tok_s": round(rate, 3),
        "se_tok_s": round(rate * float(outlook.own_error[g, a]), 3),
        "prefills_cost": round(float(np.expm1(outlook.log_rate[g, a] - outlook.log_worth[g, a])), 4),
        "tokens_per_step": round(math.exp(float(outlook.yields.log_tokens[a])), 4),
    }


def forecast(outlook: Outlook) -> tuple[Forecast, ...]:
    """What is expected of every arm that was ever timed, at every size of the grid."""
    found = []
    for a, arm in enumerate(outlook.arms):
        for g, size in enumerate(outlook.sizes):
            if outlook.known[a]:
                rate = size * math.exp(float(outlook.log_rate[g, a]))
                found.append(Forecast(arm, size, rate, rate * float(outlook.own_error[g, a])))
    return tuple(found)


def describe(evidence: dict[str, Any], batch: float, changed: bool) -> str:
    """One sentence, which must also be true behind a guard's "held": chosen is not yet put in force.

    Its rates are of decode steps; what the server emits is less, for it prefills in between.
    """
    chosen, other = evidence["chosen"], evidence["runner_up"]
    verb = "chosen" if changed else "kept"
    text = f"depth {chosen['arm']} {verb} at batch size {batch:g}: {_rate(chosen)}"
    text += "" if chosen["predicted_tok_s"] is None else " while decoding"
    if other is not None:
        rests = other["arm"] in evidence["resting_arms"]
        ahead = _worth(other) > _worth(chosen)
        faster = other["predicted_tok_s"] > (chosen["predicted_tok_s"] or 0.0)
        rank = "is second best, prefills hold it up more" if faster else "is second best"
        rank = "may be better, not surely" if ahead else rank
        rank = "rests after it failed" if rests else rank
        text += f"; depth {other['arm']} {rank}: {_rate(other)}"
    unknown = [arm for arm in evidence["unknown_arms"] if arm != chosen["arm"]]
    if unknown:
        nor = ", nor is" if chosen["predicted_tok_s"] is None and other is None else "; not measured yet:"
        text += f"{nor} depth {', '.join(unknown)}"
    return text


def _worth(arm: dict[str, Any]) -> float:
    """Its rate, less what its prefills cost more than another arm's."""
    return float((arm["predicted_tok_s"] or 0.0) / (1.0 + (arm["prefills_cost"] or 0.0)))


def _rate(arm: dict[str, Any]) -> str:
    if arm["predicted_tok_s"] is None:
        return "not measured yet"
    return f"{arm['predicted_tok_s']:.0f} +- {arm['se_tok_s']:.0f} tok/s"
