"""Leases and ranks over every interleaving of a bounded world; `make soak` looks at larger ones."""

from __future__ import annotations

import dataclasses
import logging
import os

import pytest

from sglang_hooks.control_plane import ControlPlane
from sglang_hooks.rank_control import RankControl
from sglang_hooks.schedule import GEARS
from tests.hooks.interleavings import Bounds, explore

SMALL = [
    Bounds(ranks=2, requests=1, ticks=3, steps=1, faults=1),
    Bounds(ranks=3, requests=1, ticks=2, steps=1, faults=0),
    Bounds(ranks=2, requests=2, ticks=2, steps=0, faults=0),
    Bounds(ranks=2, requests=1, ticks=3, steps=1, faults=0, fallback="hold"),
    Bounds(ranks=2, requests=1, ticks=3, steps=1, faults=1, rank_1_gears=("warm",)),
]
LARGE = [
    Bounds(ranks=2, requests=2, ticks=4, steps=1, faults=1),
    Bounds(ranks=3, requests=2, ticks=3, steps=1, faults=1),
    Bounds(ranks=2, requests=3, ticks=3, steps=1, faults=0),
    Bounds(ranks=2, requests=2, ticks=4, steps=2, faults=0, fallback=0),
]
WORLDS = [*SMALL, *LARGE] if os.environ.get("SPECGOV_SOAK") else SMALL


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of leases end here, each with its line in the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", WORLDS, ids=str)
def test_no_interleaving_parts_the_ranks_or_outlives_a_lease(bounds, capsys):
    """In each state ranks have launched alike, 200 means all have it, and the dead lose control in time.

    From each state on, with every holder dead, all ranks end on the fallback.
    """
    found = explore(bounds)
    with capsys.disabled():
        print(f"\n{bounds}: {found.states} states, {found.transitions} transitions, no violation")
    assert found.states > 20
    can_be_governed = bounds.rank_1_gears == ("warm", "cold")
    assert (found.confirmed > 0) is can_be_governed


APPLY = RankControl.apply
GEAR_KEY, COLD, WARM = "specgov.row.0.gear", GEARS.index("cold"), GEARS.index("warm")


def in_another_gear(rank, flat):
    """Rank 1 acknowledges the command whole, at the depth of the others, and runs warm instead of cold."""
    if rank.topology.tp_rank == 1 and flat.get(GEAR_KEY) == COLD:
        flat = {**flat, GEAR_KEY: WARM}
    return APPLY(rank, flat)


MUTANTS = {
    "nobody watches the lease": (ControlPlane, "_watch_lease", lambda _self: None, Bounds(ticks=1)),
    "only the first rank is asked": (
        ControlPlane,
        "_acknowledged",
        lambda _self, _order: True,
        Bounds(ticks=1),
    ),
    "gears are not compared": (
        ControlPlane,
        "_why_not_acks",
        lambda _self, _reports: None,
        Bounds(ticks=0, rank_1_gears=("warm",)),
    ),
    "a rank runs in another gear": (RankControl, "apply", in_another_gear, Bounds(ticks=1)),
    "a rank does not fall back": (
        RankControl,
        "apply",
        lambda self, flat: flat["specgov.rows"] == 0 or APPLY(self, flat),
        Bounds(ticks=1),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_that_is_put_in_is_found(monkeypatch, name):
    """The search can fail: each of these breaks one rule, and a path to it is shown."""
    owner, method, broken, bounds = MUTANTS[name]
    monkeypatch.setattr(owner, method, broken)
    with pytest.raises(AssertionError, match="after: "):
        explore(dataclasses.replace(bounds, requests=1, faults=0))
