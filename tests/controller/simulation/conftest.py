"""Small engines whose every step can be added up by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.controls import FixedControl
from controller.simulation.cost_profile import CostProfile, parse_profile
from controller.simulation.engine import EngineConfig, VirtualEngine

PROFILE: dict[str, Any] = {
    "schema": 1,
    "name": "tiny",
    "gpu": "none",
    "step_ms": {
        "plain": {"1": 10, "2": 12, "4": 16},
        "depth_0": {"1": 14, "2": 20, "4": 32},
        "depth_1": {"1": 15, "2": 24, "4": 42},
        "depth_2": {"1": 16, "2": 28, "4": 52},
    },
    "prefill": {"fixed_ms": 5, "ms_per_1k_tokens": 10, "draft_ms_per_request": 0},
}


@pytest.fixture(scope="session")
def profile() -> CostProfile:
    return parse_profile(PROFILE)


@pytest.fixture(scope="session")
def make_engine(profile: CostProfile) -> Callable[..., VirtualEngine]:
    """An engine without noise and switch cost; acceptance 0 and 1 leave nothing to chance."""

    def make(control: Any = None, acceptance: str = "1", seed: int = 1, **config: Any) -> VirtualEngine:
        quiet = EngineConfig(**{"noise": 0.0, "switch_s": 0.0, **config})
        rng = np.random.default_rng(seed)
        return VirtualEngine(
            profile, parse_acceptance(acceptance), control or FixedControl((0, "cold")), rng, quiet
        )

    return make
