"""Which row of a cost profile stands for which way of running the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from controller.simulation.cost_profile import (
    OWN_OFF,
    PLAIN,
    PLAIN_DECODE,
    SKIP_DRAFT_EXTEND,
    WARM,
    CostProfile,
)

Arm: TypeAlias = tuple[int, str]
"""Draft depth and gear (`on`, `warm`, `cold`, `frozen`), as the hook's schedule names them."""

OFF_WARM: Arm = (0, "warm")
OFF_COLD: Arm = (0, "cold")
OFF_FROZEN: Arm = (0, "frozen")


def arm_rows(profile: CostProfile, *, plain_decode: bool = True) -> dict[Arm, str]:
    """The arms that an engine with this profile has, each with its row; raises `ValueError` for none.

    With the hook's plain decoding in force (`plain_decode`) off and cold is `plain` (where there is no such
    row, `depth_0_plain_decode`), and off and warm is `off_warm`; without it they are
    `depth_0_skip_draft_extend` and `depth_0`, SGLang's own off.  A profile that never measured the hook's
    warm gear has SGLang's own instead.  Frozen decodes as cold does; only the hook's plain decoding has it.
    """
    rows: dict[Arm, str] = {}
    warm = WARM if plain_decode and WARM in profile.rows else OWN_OFF
    if warm in profile.rows:
        rows[OFF_WARM] = warm
    plain = PLAIN if PLAIN in profile.rows else PLAIN_DECODE
    cold = plain if plain_decode else SKIP_DRAFT_EXTEND
    if cold in profile.rows:
        rows[OFF_COLD] = cold
        if plain_decode:
            rows[OFF_FROZEN] = cold
    rows |= {(depth, "on"): f"depth_{depth}" for depth in profile.depths}
    if not rows:
        raise ValueError(f"profile {profile.name!r} has no row that an engine could run")
    return rows


@dataclass(frozen=True, slots=True)
class ArmCost:
    """Noise-free step time of one arm: `base_s[batch] + per_token_s * (context - batch * mean_context)`."""

    base_s: npt.NDArray[np.float64]
    """Seconds, by batch size 0..max."""
    per_token_s: float
    mean_context: float

    def seconds(
        self, batch: npt.NDArray[np.int64], context: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Seconds of steps at these batch sizes and total context tokens; at least a tenth of the base."""
        base = self.base_s[batch]
        return np.maximum(0.1 * base, base + self.per_token_s * (context - batch * self.mean_context))


def arm_costs(profile: CostProfile, rows: dict[Arm, str], max_batch_size: int) -> dict[Arm, ArmCost]:
    """The cost of every arm up to `max_batch_size` requests."""
    mean = profile.context.per_request_tokens
    return {
        arm: ArmCost(profile.step_seconds(row, max_batch_size), profile.context_seconds_per_token(row), mean)
        for arm, row in rows.items()
    }
