"""A mixed scenario: phases of load, prompts and (with bench instruments) acceptance, the same for every arm.

[[phase]]
name = "agents"
seconds = 60
concurrency = 64
prompts = "coding"            # encyclopedic, coding, tokens, or a ShareGPT file
state = { "bench.p" = 0.366 } # sent to /set_internal_state at the phase's start; optional
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.bench.load import MAX_CLIENTS

_KEYS = {"name", "seconds", "concurrency", "prompts", "state"}
MIN_PHASE_S = 0.1
MAX_PHASE_S = 86_400.0


class InvalidScenarioError(ValueError):
    """A scenario that cannot be run; names the field, the rule and the value."""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many clients with such prompts for so long."""

    name: str
    """`phase 1`, ... where none is given."""
    seconds: float
    concurrency: int
    prompts: str | None = None
    """`None`: those of the command line."""
    state: Mapping[str, float] = field(default_factory=dict)


def parse_scenario(text: str) -> tuple[Phase, ...]:
    """Read a scenario; raises `InvalidScenarioError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidScenarioError(f"scenario must be TOML: {error}") from None
    raw: Any = document.get("phase")
    _check(raw != [] and isinstance(raw, list), "scenario must have at least one [[phase]]", raw)
    unknown = sorted(set(document) - {"phase"})
    _check(not unknown, "scenario must hold nothing but [[phase]]", ", ".join(unknown))
    phases = tuple(_phase(number, each) for number, each in enumerate(raw, start=1))
    names: set[str] = set()
    for i, phase in enumerate(phases):
        rule = f"phase[{i}].name must be its own: phases of one name cannot be told apart in the figures"
        _check(phase.name not in names, rule, phase.name)
        names.add(phase.name)
    return phases


def _check(good: object, rule: str, value: object) -> None:
    if not good:
        raise InvalidScenarioError(f"{rule}, got {value!r:.200}")


def _phase(number: int, raw: object) -> Phase:
    at = f"phase[{number - 1}]"
    if not isinstance(raw, Mapping):
        raise InvalidScenarioError(f"{at} must be a table, written as [[phase]], got {raw!r:.200}")
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise InvalidScenarioError(
            f"{at}.{unknown[0]} must be one of {', '.join(sorted(_KEYS))}, got {unknown[0]!r}"
        )
    name, seconds, concurrency = _values(raw, "name", "seconds", "concurrency")
    name = f"phase {number}" if name is None else name
    named = isinstance(name, str) and name.isprintable() and name.strip()
    _check(named, f"{at}.name must be printable text, or left out", name)
    _check(
        _is_number(seconds) and MIN_PHASE_S <= seconds <= MAX_PHASE_S,
        f"{at}.seconds must be a number {MIN_PHASE_S:g} to {MAX_PHASE_S:g}",
        seconds,
    )
    _check(
        _is_number(concurrency) and isinstance(concurrency, int) and 1 <= concurrency <= MAX_CLIENTS,
        f"{at}.concurrency must be a whole number 1..{MAX_CLIENTS}",
        concurrency,
    )
    prompts, state = raw.get("prompts"), raw.get("state", {})
    _check(prompts is None or isinstance(prompts, str), f"{at}.prompts must be a text", prompts)
    numbers = isinstance(state, Mapping) and all(
        _is_number(value) and math.isfinite(value) for value in state.values()
    )
    _check(numbers, f"{at}.state must map keys to finite numbers", state)
    return Phase(name, float(seconds), concurrency, prompts, dict(state))


def _values(raw: Mapping[str, Any], *keys: str) -> list[Any]:
    return [raw.get(key) for key in keys]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
