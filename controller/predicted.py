"""What a policy expects of its own choice, wherever its evidence says so.  Pure."""

from __future__ import annotations

from policies.types import Decision


def predicted_tok_s(decision: Decision) -> float | None:
    """Tokens per second at the present batch size; `None` when the policy does not say."""
    evidence = decision.evidence
    chosen = evidence.get("chosen")
    found = chosen.get("predicted_tok_s") if isinstance(chosen, dict) else evidence.get("predicted_tok_s")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
