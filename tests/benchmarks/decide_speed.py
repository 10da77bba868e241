"""How long one decision of `goodput` takes at full size: 20 buckets, 8 depths and two gears of off.

    python -m tests.benchmarks.decide_speed

Processor time, so that what other processes take away does not count; aim: under 5 ms.
"""

from __future__ import annotations

import statistics
import sys
import time

from policies.goodput import Goodput
from tests.policies.test_bounded_memory import full


def main() -> None:
    """Print the fastest and the median of 100 decisions."""
    policy = Goodput()
    policy.decide(full(0.0))
    took_ms = []
    for i in range(100):
        observation = full(1.0 + i)
        start = time.process_time()
        policy.decide(observation)
        took_ms.append(1000 * (time.process_time() - start))
    sys.stdout.write(
        f"one decision: {min(took_ms):.1f} ms at best, {statistics.median(took_ms):.1f} ms in the median\n"
    )


if __name__ == "__main__":
    main()
