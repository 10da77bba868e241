"""Rank agreement on the real engine, TP 2: `python -m tests.engine.soak_ranks [--switches N] [--seconds S]`.

Random schedules, random probes, leases that end, hand-backs and aborts under load, until both ranks have
switched depth so many times.  Afterwards the launches that each rank wrote down by itself must be the same
sequence, and every output token of every request must be right.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
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
DEPTHS = range(4)
RANKS = ((0, 0), (0, 1))
REPORT_EVERY_S = 15
SHORT_LEASE_S, LEASE_S = 1, 30


def plan(draw: random.Random, sequence: int) -> dict[str, object]:
    """A random table of one to three rows and, mostly, a probe that makes most steps a switch."""
    starts = [1, *sorted(draw.sample(range(2, 6), draw.randint(0, 2)))]
    depths = [draw.choice(DEPTHS) for _ in starts]
    gears = [{"gear": draw.choice(["warm", "cold", "frozen"])} if depth == 0 else {} for depth in depths]
    rows = [
        {"min_batch_size": start, "depth": depth, **gear}
        for start, depth, gear in zip(starts, depths, gears, strict=True)
    ]
    return {
        "schedule": rows,
        "probe": probe(draw, depths) if draw.random() < 0.9 else None,
        "lease_s": SHORT_LEASE_S if draw.random() < 0.05 else LEASE_S,
        "sequence": sequence,
        "holder": "soak",
    }


def probe(draw: random.Random, depths: list[int]) -> dict[str, object]:
    """One step in two or three at another depth: mostly one that no row has, so that every probe switches."""
    taken = depths if draw.random() < 0.8 else depths[:1]
    depth = draw.choice([depth for depth in DEPTHS if depth not in taken])
    gear = {"gear": "warm"} if depth == 0 else {}
    return {"depth": depth, "every_steps": draw.choice([2, 2, 3]), "burst_steps": 1, **gear}


@dataclasses.dataclass
class Tally:
    """What was asked of the engine and what it said, so far."""

    puts: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    ranks_agree: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    hand_backs: int = 0
    aborts: int = 0


async def turn(client: httpx.AsyncClient, draw: random.Random, sequence: int, tally: Tally) -> dict[str, Any]:
    """One plan, a while under it, at times a hand-back or an abort; the state afterwards."""
    body = plan(draw, sequence)
    answer = await client.put("/speculation", json=body)
    tally.puts[answer.status_code] += 1
    tally.ranks_agree[str(answer.json().get("ranks_agree"))] += 1
    ends = body["lease_s"] == SHORT_LEASE_S
    await asyncio.sleep(SHORT_LEASE_S + 0.3 if ends else draw.choice([0.0, 0.05, 0.1, 0.3, 0.6]))
    if draw.random() < 0.05:
        tally.hand_backs += 1
        await client.delete("/speculation")
    if draw.random() < 0.05:
        tally.aborts += 1
        await abort_one(client, f"doomed {tally.aborts}")
    state = await state_of(client)
    tally.ranks_agree[str(state["ranks_agree"])] += 1
    return state


async def drive(server: Server, switches: int, seconds: float, seed: int) -> dict[str, object]:
    """Steer until there were `switches`, or the time is over; the figures."""
    draw, tally, report = random.Random(seed), Tally(), Progress(server.folder, switches)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        state = await state_of(client)
        sequences = itertools.count((state["sequence"] or 0) + 1)
        async with Load(client, concurrency=5) as load:
            while report.switches < switches and report.seconds() < seconds:
                state = await turn(client, draw, next(sequences), tally)
                load.raise_if_wrong()
                report.show(state, load.done)
        await client.delete("/speculation")
        await asyncio.sleep(3)
        state = await state_of(client)
    return {
        "seconds": round(report.seconds(), 1),
        **vars(tally),
        "requests_checked": load.done,
        "leases_expired": state["lease"]["expired"],
        "hook_errors": [rank["hook_errors"] for rank in state["telemetry"]],
    }


class Progress:
    """Every `REPORT_EVERY_S`, counts in what rank 0 wrote down; says on standard error how far the soak is.

    The hook's own counter would not do: a change of gear is a switch to it.
    """

    def __init__(self, folder: Path, goal: int) -> None:
        self.switches = 0
        self._folder, self._goal = folder, goal
        self._began_s = self._said_s = time.monotonic()

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began_s

    def show(self, state: dict[str, Any], requests: int) -> None:
        """Count, and say so, if it is time."""
        if time.monotonic() - self._said_s < REPORT_EVERY_S:
            return
        self._said_s = time.monotonic()
        launches = step_log.read(self._folder)[RANKS[0]]
        self.switches = switches_of(launches)
        print(
            f"{self.seconds():.0f} s: {self.switches} of {self._goal} switches in {len(launches)} launches, "
            f"plan {state['sequence']}, {state['lease']['expired']} leases ended, {requests} requests right",
            file=sys.stderr,
            flush=True,
        )


def switches_of(launches: list[tuple[int, int]]) -> int:
    """Launches at another depth than the one before."""
    return sum(before[1] != after[1] for before, after in itertools.pairwise(launches))


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
        "switches": switches_of(first),
        "first_difference": differ,
    }


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with the figures; nothing when the soak has passed."""
    wrong = {
        "the ranks launched different steps": found["first_difference"] is not None,
        "one rank launched more steps": len(set(found["launches"])) > 1,
        "the server died": not found["alive"],
        "the hook had errors": any(found["hook_errors"]),
        "ranks said that they disagree": "False" in found["ranks_agree"],
        "a plan was refused": not set(found["puts"]) <= {200, 202},  # 202: a rank took longer than 2 s
    }
    return [what for what, is_so in wrong.items() if is_so]


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
            found |= compare(Path(folder)) | {"alive": server.alive()}
        except BaseException:
            print(server.log()[-3000:], file=sys.stderr)
            raise
        finally:
            server.stop()
    print(json.dumps(found | {"faults": faults(found)}, indent=2))
    sys.exit(bool(faults(found)))


if __name__ == "__main__":
    main()
