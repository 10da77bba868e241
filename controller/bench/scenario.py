"""A mixed scenario: phases of load, prompts and (with bench instruments) acceptance, the same for every arm.

[[phase]]
name = "agents"
seconds = 60
concurrency = 64
prompts = "coding"            # encyclopedic, coding, tokens, or a ShareGPT file
state = { "bench.p" = 0.366 } # sent to /set_internal_state at the phase's start; optional
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.bench.load import MAX_CLIENTS

_KEYS = {"name", "seconds", "concurrency", "prompts", "state"}


class InvalidScenarioError(ValueError):
    """A scenario that cannot be run; names the field, the rule and the value."""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many clients with such prompts for so long."""

    name: str
    seconds: float
    concurrency: int
    prompts: str | None = None
    """`None`: those of the command line."""
    state: Mapping[str, float] = field(default_factory=dict)


def parse_scenario(text: str) -> tuple[Phase, ...]:
    """Read a scenario; raises `InvalidScenarioError`."""
    try:
        phases = tomllib.loads(text).get("phase")
    except tomllib.TOMLDecodeError as error:
        raise InvalidScenarioError(f"scenario must be TOML: {error}") from None
    if not isinstance(phases, list) or not phases:
        raise InvalidScenarioError(f"scenario must have at least one [[phase]], got {phases!r}")
    return tuple(_phase(i, raw) for i, raw in enumerate(phases))


def _phase(i: int, raw: Mapping[str, Any]) -> Phase:
    at = f"phase[{i}]"
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise InvalidScenarioError(
            f"{at}.{unknown[0]} must be one of {', '.join(sorted(_KEYS))}, got {unknown[0]!r}"
        )
    seconds, concurrency = raw.get("seconds"), raw.get("concurrency")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86_400:
        raise InvalidScenarioError(
            f"{at}.seconds must be a number above 0 and at most 86400, got {seconds!r}"
        )
    if (
        not isinstance(concurrency, int)
        or isinstance(concurrency, bool)
        or not 1 <= concurrency <= MAX_CLIENTS
    ):
        raise InvalidScenarioError(
            f"{at}.concurrency must be a whole number 1..{MAX_CLIENTS}, got {concurrency!r}"
        )
    state = raw.get("state", {})
    if not isinstance(state, Mapping) or not all(isinstance(v, int | float) for v in state.values()):
        raise InvalidScenarioError(f"{at}.state must map keys to numbers, got {state!r}")
    return Phase(str(raw.get("name", i)), float(seconds), concurrency, raw.get("prompts"), dict(state))
