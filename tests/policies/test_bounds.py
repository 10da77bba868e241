"""The range of a parameter is written at its field, and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from policies.bounds import Bound, Count, Positive, Share, bounds_of, check_bounds
from policies.drift import DriftParams
from policies.probing import ProbeParams


@dataclass(frozen=True)
class Params:
    """One field of each kind."""

    wait_s: Positive = 1.0
    share: Share = 0.5
    times: Count = 1
    depth: Annotated[int | None, Bound(at_least=0)] = None
    sizes: Annotated[tuple[int, ...], Bound(at_least=4)] = (4,)
    free: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ValueError`."""
        check_bounds(self)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wait_s": 0.0}, "wait_s must be > 0, got 0.0"),
        ({"wait_s": float("nan")}, "wait_s must be > 0, got nan"),
        ({"wait_s": float("inf")}, "wait_s must be > 0 and finite, got inf"),
        ({"share": 1.01}, "share must be within 0..1, got 1.01"),
        ({"share": -0.01}, "share must be within 0..1, got -0.01"),
        ({"times": 0}, "times must be >= 1, got 0"),
        ({"depth": -1}, "depth must be >= 0 or left out, got -1"),
        ({"sizes": (4, 3)}, r"sizes must be >= 4 each, got (4, 3)"),
    ],
)
def test_what_is_out_of_range_is_refused_with_field_rule_and_value(given, message) -> None:
    """The first that is found."""
    with pytest.raises(ValueError, match=message.split()[0]) as refused:
        Params(**given)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "given",
    [
        {"wait_s": 1e-9},
        {"share": 0.0},
        {"share": 1.0},
        {"times": 1},
        {"depth": 0},
        {"depth": None},
        {"free": -1},
    ],
)
def test_the_limits_themselves_are_within(given) -> None:
    """`above` excludes its limit, the others include theirs; a field without a bound is free."""
    Params(**given)


def test_bounds_are_found_by_field_and_say_whether_it_may_be_left_out() -> None:
    """What the reference prints."""
    assert bounds_of(Params)["depth"] == (Bound(at_least=0), True)
    assert bounds_of(Params)["share"] == (Bound(at_least=0, at_most=1), False)
    assert "free" not in bounds_of(Params)


@pytest.mark.parametrize("given", [{"allowance": -0.1}, {"threshold": 0.0}, {"clip": 0.5}])
def test_a_drift_alarm_that_could_never_or_always_ring_is_refused(given) -> None:
    """A clip of 0.5 at an allowance of 0.5 lets no sum grow."""
    with pytest.raises(ValueError, match=next(iter(given))):
        DriftParams(**given)


def test_a_prober_needs_a_burst() -> None:
    """No burst, no probe."""
    with pytest.raises(ValueError, match="bursts must be at least one step count"):
        ProbeParams(bursts=())
