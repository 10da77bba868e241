"""Lets the demo's policy learn beforehand, in virtual time, as on a server that ran yesterday."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from controller.simulation.arrivals import Trace
from controller.simulation.demo.load import draw_arrivals, plan_phases
from controller.simulation.demo.run import DemoSettings
from controller.simulation.replay import Scenario, replay_policy
from controller.simulation.replay_command import guarded
from policies.base import Learner

SECONDS = 240.0


def learns(policy: str) -> bool:
    """Whether the policy of that name has anything to rehearse."""
    return isinstance(guarded(policy)[0], Learner)


def rehearse(settings: DemoSettings) -> Mapping[str, Any] | None:
    """What the policy has learned after `SECONDS` of such a load; `None` for one that does not learn.

    Must not be called inside a running event loop.
    """
    bare, policy = guarded(settings.policy)
    if not isinstance(bare, Learner):
        return None
    seed = settings.seed + 1_000_003  # other arrivals, noise and acceptance than the demo will have
    phases = plan_phases(settings.profile, settings.acceptance, settings.engine, SECONDS)
    trace = Trace("rehearsal", tuple(draw_arrivals(phases, np.random.default_rng(seed))))
    scenario = Scenario(
        settings.profile, trace, settings.acceptance, settings.engine, seed=seed, tick_s=0.5, drain_s=0.0
    )
    replay_policy(scenario, policy)
    return bare.export_state()
