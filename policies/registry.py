"""Policy names, their parameters, and how each is made.

Others add a policy through the entry point group `specgov.policies`: the name of the entry point is the
policy's name, its value a `PolicySpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from policies.bandit import Bandit, BanditParams
from policies.base import Policy
from policies.fixed import Fixed, FixedParams
from policies.goodput import Goodput, GoodputParams
from policies.native import Native, NativeParams
from policies.threshold import Threshold, ThresholdParams

GROUP = "specgov.policies"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's parameters (a frozen dataclass) and the factory that takes them."""

    params: type[Any]
    make: Callable[[Any], Policy]


BUILT_IN: Mapping[str, PolicySpec] = {
    "goodput": PolicySpec(GoodputParams, Goodput),
    "bandit": PolicySpec(BanditParams, Bandit),
    "fixed": PolicySpec(FixedParams, Fixed),
    "threshold": PolicySpec(ThresholdParams, Threshold),
    "native": PolicySpec(NativeParams, lambda _params: Native()),
}


class UnknownPolicyError(ValueError):
    """A policy name that is neither built in nor installed."""


def names() -> list[str]:
    """All known policy names, built-in ones first."""
    return [*BUILT_IN, *(e.name for e in entry_points(group=GROUP) if e.name not in BUILT_IN)]


def find(name: str) -> PolicySpec:
    """The policy called `name`; raises `UnknownPolicyError`, which lists the known ones."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for entry in entry_points(group=GROUP, name=name):
        spec = entry.load()
        if not isinstance(spec, PolicySpec):
            raise UnknownPolicyError(f"entry point {entry.value!r} must be a PolicySpec, got {spec!r}")
        return spec
    raise UnknownPolicyError(f"policy.name must be one of {', '.join(names())}, got {name!r}")
