"""A simulated week of one sidecar: `python -m tests.soak.week [--ticks N] [--seconds S]`.

The whole sidecar (client, observer, goodput policy, guards, steering, metrics, SQLite on disk, API) beside
the tests' engine, one tick a virtual second, with a day's load, and at random: restarts of the engine, faults
of the wire, orders, reads of the API.  Ends with figures, and with an error when memory, file, tasks,
threads or descriptors grew, a turn failed, an acknowledged order was lost or a lease outlived its time.  Says
twice a minute how far it is; SIGTERM and Ctrl-C end it with the figures so far.

Memory is what the process has resident while the sidecar runs, looked at every 1000 turns; all samples are
in the figures.  Neither the median of the last tenth nor the highest may be 1 MB above the warm-up's end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

import controller.cli  # noqa: F401  first of all: it gives BLAS one thread, as `specgov` does
from controller import garbage, wiring
from controller import settings as settings_module
from tests.controller.conftest import Clock
from tests.controller.fake_engine import FakeEngine

WEEK_S = 604_800
PROGRESS_S = 30.0
WARM_UP, WARM_UP_TICKS = 0.2, 4000
"""Share of the run, and ticks at least, before memory is looked at: the status page's half hour fills up."""
MAX_GROWTH_BYTES = 1_000_000
SAMPLE_EVERY_TICKS = 1000
LAST_SHARE = 0.1
STORE_BYTES = 4 << 20
MAX_FILE_BYTES = 3 * STORE_BYTES
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ChangingTransport(httpx.AsyncBaseTransport):
    """The engine's, or a fault in its place."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.fault: Any = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.fault, Exception):
            raise type(self.fault)(str(self.fault))  # one that is raised twice keeps both tracebacks
        if self.fault is not None:
            return httpx.Response(*self.fault, request=request)
        return await self._inner.handle_async_request(request)


FAULTS = (httpx.ConnectError("refused"), httpx.ReadError("reset"), (500,), (200,), (404,), (401,))


@dataclass
class Figures:
    """What the run showed."""

    ticks: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    faults: int = 0
    restarts: int = 0
    orders: int = 0
    orders_lost: int = 0
    api_requests: int = 0
    failed_ticks: int = 0
    plans_pushed: int = 0
    rss_warm_bytes: int = 0
    """At the end of the warm-up; 0: it did not come to that."""
    rss_last_tenth_bytes: int = 0
    """Median of the samples of the last tenth."""
    rss_highest_bytes: int = 0
    """Of all samples after the warm-up."""
    rss_end_bytes: int = 0
    """After the last turn, with all in use."""
    rss_closed_bytes: int = 0
    """When all is closed."""
    rss_samples_bytes: list[int] = field(default_factory=list)
    """Every 1000 turns."""
    file_bytes: int = 0
    tasks: int = 0
    threads: int = 0
    descriptors: int = 0
    descriptors_warm: int = 0
    problems: list[str] = field(default_factory=list)


class Week:
    """One sidecar, one engine, one random course of events."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "state.db"
        self.threads_before = threading.active_count()  # of whatever else runs in this process
        self.clock = Clock()
        self.engine = FakeEngine(self.clock)
        self.transport = ChangingTransport(self.engine.transport())
        self.random = random.Random(seed)
        self.figures = Figures()
        pairs = {
            "store.path": str(self.path),
            "store.max_bytes": STORE_BYTES,
            "policy.name": "goodput",
            "policy.shadow": "threshold",
            "api.max_requests_per_s": 10_000,
        }
        tree = settings_module.load(flags=settings_module.nested(pairs), environ={})
        self.assembly = wiring.assemble(
            tree, transport=self.transport, clock=self.clock, wall_clock=self.clock.wall
        )
        app = httpx.ASGITransport(app=self.assembly.app)
        self.api = httpx.AsyncClient(transport=app, base_url="http://127.0.0.1:9470")
        self.stopped = asyncio.Event()
        """Set it to end early."""
        self._fault_left = 0
        self._order: str | None = None

    async def run(self, ticks: int, seconds: float) -> Figures:
        """So many ticks, or as many as fit into `seconds`."""
        began_s, cpu_s, found = time.monotonic(), time.process_time(), self.figures
        say_s = began_s + PROGRESS_S
        while found.ticks < ticks and time.monotonic() - began_s < seconds and not self.stopped.is_set():
            await self._tick()
            if time.monotonic() >= say_s:
                say_s += PROGRESS_S
                self._say(ticks)
            self._measure(max(found.ticks / ticks, (time.monotonic() - began_s) / seconds))
        found.wall_s, found.cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        await self._end()
        return found

    def _measure(self, done: float) -> None:
        found = self.figures
        if not found.rss_warm_bytes and done >= WARM_UP and found.ticks >= WARM_UP_TICKS:
            found.rss_warm_bytes = found.rss_highest_bytes = _rss_bytes()
            found.descriptors_warm = _descriptors()
        if found.ticks % SAMPLE_EVERY_TICKS:
            return
        found.rss_samples_bytes.append(_rss_bytes())
        if found.rss_warm_bytes:
            found.rss_highest_bytes = max(found.rss_highest_bytes, found.rss_samples_bytes[-1])

    def _say(self, ticks: int) -> None:
        found = self.figures
        grown = (_rss_bytes() - found.rss_warm_bytes) / 1e6 if found.rss_warm_bytes else 0.0
        so_far = f"{found.ticks:,} of {ticks:,} turns, {found.faults} faults, {found.restarts} restarts"
        sys.stderr.write(f"{so_far}, memory {grown:+.2f} MB since the warm-up\n")

    async def _tick(self) -> None:
        found, loop = self.figures, self.assembly.sidecar.loop
        found.ticks += 1
        self.clock.now_s += 1
        day = math.sin(self.clock.now_s / 86_400 * 2 * math.pi)
        size = max(1, round(20 + 18 * day + self.random.gauss(0, 4)))
        self.engine.decode(size, steps=self.random.randint(5, 40), seconds=0.01 + 0.0004 * size)
        self.engine.queue = max(0, size - 32)
        self._wire()
        try:
            await loop.tick(self.clock.now_s)
        except Exception as error:  # noqa: BLE001  any is a finding
            found.failed_ticks += 1
            found.problems.append(repr(error)[:200])
        found.plans_pushed += len(self.engine.puts)
        self.engine.puts.clear()  # the engine of the tests remembers all; that is no growth of the sidecar
        self.engine.deletes.clear()
        if found.ticks % garbage.SWEEP_EVERY_S == 0:
            garbage.sweep()  # as the HTTP server of `specgov run` does
        if found.ticks % 60 == 0:
            await self._operator()

    def _wire(self) -> None:
        if self._fault_left:
            self._fault_left -= 1
            if not self._fault_left:
                self.transport.fault = None
        elif self.random.random() < 1 / 600:
            self._fault_left = self.random.randint(1, 40)
            self.transport.fault = self.random.choice(FAULTS)
            self.figures.faults += 1
        if self.random.random() < 1 / 7200:
            self.engine.start()
            self.figures.restarts += 1

    async def _operator(self) -> None:
        found = self.figures
        if self._order is not None:
            seen = (await self._api("GET", "/v1/override")).json()
            found.orders_lost += seen.get("reason") != self._order
        if self.random.random() < 0.05:
            self._order = f"order {found.orders}"
            body = {"mode": self.random.choice(["off", "on", "no_deeper"]), "reason": self._order}
            answer = await self._api("PUT", "/v1/override", json=body)
            if answer.status_code != 200 or not answer.json()["durable"]:
                found.problems.append(f"order: {answer.status_code} {answer.text[:200]}")
            found.orders += 1
        elif self._order is not None and self.random.random() < 0.2:
            await self._api("DELETE", "/v1/override", params={"reason": "over"})
            self._order = None
        for path in ("/metrics", "/v1/status", "/v1/decisions", "/v1/history", "/v1/benefit", "/v1/policy"):
            answer = await self._api("GET", path)
            found.api_requests += 1
            if answer.status_code != 200:
                found.problems.append(f"{path}: {answer.status_code}")

    async def _api(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One request of an operator, whose answer goes at once: it is no memory of the sidecar."""
        answer = await self.api.request(method, path, **request)
        answer.stream = httpx.ByteStream(b"")  # else the two refer to each other until the collector comes
        return answer

    async def _end(self) -> None:
        found = self.figures
        found.rss_end_bytes = _rss_bytes()
        last = found.rss_samples_bytes[-math.ceil(LAST_SHARE * len(found.rss_samples_bytes)) :]
        found.rss_last_tenth_bytes = round(median(last or [found.rss_end_bytes]))
        await self.assembly.sidecar.loop._scraper.aclose()
        gc.collect()
        found.descriptors = _descriptors()
        found.file_bytes = sum(f.stat().st_size for f in self.path.parent.iterdir())
        found.tasks = len(asyncio.all_tasks()) - 1
        found.threads = threading.active_count() - self.threads_before
        await self.api.aclose()
        await self.assembly.aclose()
        found.rss_closed_bytes = _rss_bytes()


def judge(found: Figures) -> list[str]:
    """What is wrong with the figures; nothing, it is hoped."""
    warm = found.rss_warm_bytes or max(found.rss_last_tenth_bytes, found.rss_highest_bytes)
    growth, most = found.rss_last_tenth_bytes - warm, found.rss_highest_bytes - warm
    return found.problems[:5] + [
        text
        for text, wrong in {
            f"memory grew by {growth} bytes after the warm-up": growth > MAX_GROWTH_BYTES,
            f"memory was up to {most} bytes above the end of the warm-up": most > MAX_GROWTH_BYTES,
            f"the file has {found.file_bytes} bytes": found.file_bytes > MAX_FILE_BYTES,
            f"{found.tasks} tasks are left": found.tasks > 0,
            f"{found.threads} more threads than before": found.threads > 8,
            "descriptors leak": found.descriptors_warm and found.descriptors > found.descriptors_warm + 2,
            f"{found.orders_lost} orders were lost": found.orders_lost > 0,
            f"{found.failed_ticks} turns failed": found.failed_ticks > 0,
        }.items()
        if wrong
    ]


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> None:
    """Run, print the figures, end with 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=WEEK_S)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_run(Path(folder), given))
    wrong = judge(found)
    print(json.dumps(vars(found) | {"virtual_days": found.ticks / 86_400, "wrong": wrong}, indent=2))
    sys.exit(bool(wrong))


async def _run(folder: Path, given: argparse.Namespace) -> Figures:
    week = Week(folder, given.seed)
    garbage.set_aside_start()  # as `specgov run` does
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, week.stopped.set)
    return await week.run(given.ticks, given.seconds)


if __name__ == "__main__":
    main()
