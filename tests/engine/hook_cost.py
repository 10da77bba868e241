"""What the hook costs a decode step inside the real engine on CPU: `python -m tests.engine.hook_cost`.

One server with overlap scheduling, closed loops of 1, 4 and 8 requests, each speculating (depth 2),
off-cold and handed back to SGLang's own rule.  Prints JSON: the median of microseconds per decode step on
the scheduler's thread, without SGLang's own work (`hook_timer.py`), in all and by hooked function, what the
stopwatch itself adds to each of these, and beside it the time that a whole step takes.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from tests.engine import hook_timer
from tests.engine.environment import engine_python, models_folder
from tests.engine.load import Load
from tests.engine.server import Server

CONCURRENCIES = (1, 4, 8)
ARMS = {
    "depth 2": {"min_batch_size": 1, "depth": 2},
    "off-cold": {"min_batch_size": 1, "depth": 0, "gear": "cold"},
    "native": None,
}
WINDOW_S = 15.0


async def measure(server: Server, folder: Path) -> list[dict[str, object]]:
    """One entry for every arm and concurrency."""
    found = []
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        for sequence, (arm, row) in enumerate(ARMS.items(), start=1):
            await steer(client, sequence, row)
            for concurrency in CONCURRENCIES:
                known = len(hook_timer.read(folder))
                began_s = time.monotonic()
                async with Load(client, concurrency):
                    await asyncio.sleep(WINDOW_S)
                spent_s = time.monotonic() - began_s
                steps = hook_timer.read(folder)[known:]
                here = [step["us"] for step in steps if step["batch_size"] == concurrency]
                found.append(summary(arm, concurrency, here, 1e6 * spent_s / len(steps)))
                print(found[-1], flush=True)
    return found


async def steer(client: httpx.AsyncClient, sequence: int, row: dict[str, object] | None) -> None:
    """Put a schedule of one row, or hand back."""
    if row is None:
        answer = await client.delete("/speculation")
    else:
        answer = await client.put(
            "/speculation",
            json={"sequence": sequence, "lease_s": 300, "holder": "hook_cost", "schedule": [row]},
        )
    answer.raise_for_status()


def summary(arm: str, batch_size: int, steps_us: list[dict[str, float]], step_us: float) -> dict[str, object]:
    """One line of the result; costs of the steps that ran at exactly this batch size."""
    names = sorted({name for step in steps_us for name in step})
    by_hook = {name: statistics.median(step.get(name, 0.0) for step in steps_us) for name in names}
    floor_us = by_hook.pop("stopwatch")
    totals = [sum(us for name, us in step.items() if name != "stopwatch") for step in steps_us]
    return {
        "arm": arm,
        "batch_size": batch_size,
        "steps": len(steps_us),
        "hook_us_median": round(statistics.median(totals), 2),
        "stopwatch_us_median": round(floor_us, 2),
        "by_hook_us_median": {name: round(us, 2) for name, us in by_hook.items() if us},
        "step_us_mean": round(step_us),
    }


def main() -> None:
    """Start a server, measure, print."""
    python = engine_python(print)
    with tempfile.TemporaryDirectory() as folder:
        server = Server("overlap", python, models_folder(python), Path(folder), plugin=hook_timer.__name__)
        server.start()
        try:
            found = asyncio.run(measure(server, Path(folder)))
        finally:
            server.stop()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
