"""Memory at full size: 20 buckets, 8 depths and two gears of off, all of them known."""

from __future__ import annotations

import pytest

from policies.goodput import Goodput
from policies.step_cost import KNOTS
from policies.types import OFF_COLD, OFF_WARM, Arm, CellDelta, Observation

BUILT = (OFF_COLD, OFF_WARM, *(Arm(depth) for depth in range(1, 9)))


def full(now_s: float) -> Observation:
    """Every bucket and arm has run since the last tick."""
    cells = tuple(
        CellDelta(
            k, arm, 10, 10 * k, 10 * k, (10 * k, *[0] * arm.depth), (0,) * (arm.depth + 1), 10,
            0.1 + 0.01 * arm.depth, 0.0011, 10 * k, 3000 * k,
        )
        for k in KNOTS for arm in BUILT
    )  # fmt: skip
    return Observation(
        now_s=now_s, built=BUILT, batch_size=64, queue_reqs=0, cells=cells, decode_steps=2000, in_use=Arm(4)
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_time() -> None:
    """After 20 and after 100 decisions the exported state has the same number of rows."""
    policy, sizes = Goodput(), []
    for i in range(100):
        policy.decide(full(float(i)))
        if i in (19, 99):
            sizes.append(len(policy.export_state()["step_cost"]["cells"]))
    assert sizes == [200, 200]
