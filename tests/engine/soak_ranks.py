"""Rank agreement on the real engine, TP 2: `python -m tests.engine.soak_ranks [--switches N] [--seconds S]`.

Random schedules, random probes, leases that end, hand-backs and aborts under load, until both ranks have
switched depth so many times.  Afterwards the launches that each rank wrote down by itself must be the same
sequence, and every output token of every request must be right.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.engine import step_log
from tests.engine.environment import engine_python, models_folder
from tests.engine.load import Load
from tests.engine.server import Server

SWITCHES = 20_000
RANKS = ((0, 0), (0, 1))


def plan(draw: random.Random, sequence: int) -> dict[str, object]:
    """A random table of one to three rows and, mostly, a probe that makes most steps a switch."""
    starts = [1, *sorted(draw.sample(range(2, 6), draw.randint(0, 2)))]
    depths = [draw.randint(0, 3) for _ in starts]
    gears = [{"gear": draw.choice(["warm", "cold", "frozen"])} if depth == 0 else {} for depth in depths]
    rows = [
        {"min_batch_size": start, "depth": depth, **gear}
        for start, depth, gear in zip(starts, depths, gears, strict=True)
    ]
    every = draw.randint(2, 3)
    other = draw.choice([depth for depth in range(4) if depth != depths[0]])
    probe = {"depth": other, "every_steps": every, "burst_steps": 1} | (
        {"gear": "warm"} if other == 0 else {}
    )
    return {
        "schedule": rows,
        "probe": probe if draw.random() < 0.9 else None,
        "lease_s": 1 if draw.random() < 0.1 else 30,
        "sequence": sequence,
        "holder": "soak",
    }


async def drive(server: Server, switches: int, seconds: float, seed: int) -> dict[str, object]:
    """Steer until there were `switches`, or the time is over; the figures."""
    draw, codes, agree = random.Random(seed), collections.Counter(), collections.Counter()
    began_s, done, aborted, state = time.monotonic(), 0, 0, {}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        sequence = (await state_of(client))["sequence"] or 0
        async with Load(client, concurrency=5) as load:
            while done < switches and time.monotonic() - began_s < seconds:
                sequence += 1
                answer = await client.put("/speculation", json=plan(draw, sequence))
                codes[answer.status_code] += 1
                agree[str(answer.json().get("ranks_agree"))] += 1
                await asyncio.sleep(draw.choice([0.0, 0.05, 0.3, 1.3 if draw.random() < 0.1 else 0.1]))
                if draw.random() < 0.05:
                    await client.delete("/speculation")
                if draw.random() < 0.05:
                    aborted += 1
                    await abort_one(client, f"doomed {aborted}")
                state = await state_of(client)
                agree[str(state["ranks_agree"])] += 1
                done = state["telemetry"][0]["switches"]
        await client.delete("/speculation")
        await asyncio.sleep(3)
        state = await state_of(client)
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "puts": dict(codes),
        "ranks_agree": dict(agree),
        "aborts": aborted,
        "requests_checked": load.done,
        "leases_expired": state["lease"]["expired"],
        "hook_errors": state["telemetry"][0]["hook_errors"],
    }


async def state_of(client: httpx.AsyncClient) -> dict[str, Any]:
    """`GET /speculation`; on a slow machine a scheduler may take longer than the 5 s that it waits: 504."""
    while (answer := await client.get("/speculation")).status_code == httpx.codes.GATEWAY_TIMEOUT:
        await asyncio.sleep(0.5)
    state: dict[str, Any] = answer.raise_for_status().json()
    return state


async def abort_one(client: httpx.AsyncClient, rid: str) -> None:
    """Start a long request and abort it."""
    body = {"rid": rid, "input_ids": [7], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    doomed = asyncio.create_task(client.post("/generate", json=body))
    await asyncio.sleep(0.1)
    await client.post("/abort_request", json={"rid": rid})
    await doomed


def compare(folder: Path) -> dict[str, object]:
    """The launches of both ranks, as each wrote them down."""
    logs = step_log.read(folder)
    first, second = (logs[rank] for rank in RANKS)
    differ = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return {
        "launches": [len(first), len(second)],
        "switches": sum(a[1] != b[1] for a, b in itertools.pairwise(first)),
        "first_difference": differ,
    }


def main() -> None:
    """Start a server, drive it, compare, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switches", type=int, default=SWITCHES)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    python = engine_python(print)
    with tempfile.TemporaryDirectory() as folder:
        server = Server("tp2", python, models_folder(python), Path(folder)).start()
        try:
            found = asyncio.run(drive(server, given.switches, given.seconds, given.seed))
            found |= compare(Path(folder))
            found["alive"] = server.alive()
        finally:
            server.stop()
    print(json.dumps(found, indent=2))
    same = found["first_difference"] is None and len(set(found["launches"])) == 1
    good = same and found["alive"] and not found["hook_errors"] and "False" not in found["ranks_agree"]
    sys.exit(not good)


if __name__ == "__main__":
    main()
