"""How long one decision of `goodput` takes when all is known: 20 buckets, 8 depths and two gears of off.

    python -m tests.benchmarks.decide_speed

Processor time, so that what other processes take away does not count; aim: under 5 ms.  The first line is of
a tick as they come, the second of one in which all 200 combinations of bucket and arm have run.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
import tracemalloc

from policies.goodput import Goodput
from policies.types import Observation
from tests.policies.test_bounded_memory import full

DECISIONS = 200


def tick(i: int, cells: int) -> Observation:
    """The i-th tick, in which so many combinations of bucket and arm have run."""
    observation = full(1.0 + i)
    return dataclasses.replace(observation, cells=observation.cells[:cells])


def measure(cells: int) -> list[float]:
    """Milliseconds of each of `DECISIONS` decisions."""
    policy = Goodput()
    policy.decide(full(0.0))
    took_ms = []
    for i in range(DECISIONS):
        observation = tick(i, cells)
        start = time.process_time()
        policy.decide(observation)
        took_ms.append(1000 * (time.process_time() - start))
    return took_ms


def memory() -> tuple[int, int]:
    """Bytes that a policy holds after 20 and after `DECISIONS` full ticks."""
    tracemalloc.start()
    policy, held = Goodput(), []
    for i in range(DECISIONS):
        policy.decide(tick(i, 200))
        if i in (19, DECISIONS - 1):
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return held[0], held[1]


def main() -> None:
    """Print both, and the memory."""
    for cells in (10, 200):
        took_ms = measure(cells)
        sys.stdout.write(
            f"one decision, {cells} combinations of bucket and arm in the tick: "
            f"{min(took_ms):.1f} ms at best, {statistics.median(took_ms):.1f} ms in the median\n"
        )
    before, after = memory()
    sys.stdout.write(
        f"memory: {before / 1e6:.2f} MB after 20 ticks, {after / 1e6:.2f} MB after {DECISIONS}\n"
    )


if __name__ == "__main__":
    main()
