"""Load: a closed loop of so many clients, or arrivals at given times (open loop).

Everything that a load did stays in `records`; windows are cut out of it afterwards (`records.window_stats`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from controller.bench.aborting import abort_running
from controller.bench.client import Client
from controller.bench.prompts import Prompt, PromptSource
from controller.bench.records import RequestRecord

DRAIN_S = 60.0
"""How long an open loop waits for its last answers."""
MAX_CLIENTS = 4096
"""Of one closed loop, which one event loop carries: with 100,000 it no longer heeded SIGTERM."""
PAUSE_AFTER_ERROR_S = 0.2
"""Of a client: a server that refuses at once must not be hammered in a tight loop."""


class ClosedLoop:
    """`concurrency` clients, each sending its next request when the last one ended.

    `stream_every`: of every so many clients one streams (1: all do, 0: none): streams show TTFT, TPOT and
    ITL, and cost the client a hundred times what a whole answer does.
    """

    def __init__(
        self, client: Client, source: PromptSource, rng: random.Random, *, stream_every: int = 1
    ) -> None:
        self._client = client
        self._source = source
        self._rng = rng
        self._stream_every = stream_every
        self._workers: list[asyncio.Task[None]] = []
        self._target = 0
        self._newest: dict[int, RequestRecord] = {}
        self.records: list[RequestRecord] = []

    def use(self, source: PromptSource) -> None:
        """Draw prompts from `source` from now on."""
        self._source = source

    def newest(self) -> list[RequestRecord]:
        """The latest request of each client."""
        return list(self._newest.values())

    @property
    def concurrency(self) -> int:
        """How many clients there are."""
        return self._target

    @property
    def stream_share(self) -> float:
        """Share of the clients that stream, 0..1."""
        if not self._stream_every or not self._target:
            return 0.0
        return -(-self._target // self._stream_every) / self._target

    async def scale(self, concurrency: int) -> None:
        """Add clients, each somewhere inside its first request; or let the last ones end after theirs."""
        self._target = concurrency
        self._workers = [w for w in self._workers if not w.done()]
        for number in range(len(self._workers), concurrency):
            self._workers.append(asyncio.create_task(self._work(number), name=f"client-{number}"))
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Send nothing new and have the server end what runs; then `cancel`."""
        self._target = 0
        await abort_running(self._client, self.newest, self._workers)
        await self.cancel()

    async def cancel(self) -> None:
        """Drop every client at once; the server sees closed connections."""
        self._target = 0
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []

    async def drain(self, limit_s: float) -> None:
        """Send nothing new, wait for what runs, then `cancel` what is left."""
        self._target = 0
        if self._workers:
            await asyncio.wait(self._workers, timeout=limit_s)
        await self.cancel()

    async def _work(self, number: int) -> None:
        prompt = self._source.draw(self._rng).joined_at(self._rng.random())
        streamed = self._stream_every > 0 and number % self._stream_every == 0
        while number < self._target:
            record = RequestRecord(self._client.clock(), streamed)
            self.records.append(record)
            self._newest[number] = record
            await self._client.send(prompt, record)
            if record.error is not None:
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)
            prompt = self._source.draw(self._rng)


class OpenLoop:
    """Requests at given moments, however many run already."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.records: list[RequestRecord] = []

    async def run(self, arrivals: Iterable[tuple[float, Prompt]], *, drain_s: float = DRAIN_S) -> None:
        """Send each prompt `seconds` after now, then wait up to `drain_s` for the last ones."""
        running: set[asyncio.Task[None]] = set()
        try:
            await self._send_all(arrivals, running)
            if running:
                await asyncio.wait(running, timeout=drain_s)
        finally:
            await abort_running(self._client, lambda: self.records, running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send_all(
        self, arrivals: Iterable[tuple[float, Prompt]], running: set[asyncio.Task[None]]
    ) -> None:
        start_s = self._client.clock()
        for at_s, prompt in arrivals:
            await asyncio.sleep(max(0.0, start_s + at_s - self._client.clock()))
            record = RequestRecord(self._client.clock(), streamed=True)
            self.records.append(record)
            task = asyncio.create_task(self._client.send(prompt, record))
            running.add(task)
            task.add_done_callback(running.discard)


class LoopLag:
    """How late the event loop runs: a client that cannot keep up measures itself, not the server."""

    def __init__(self, clock: Callable[[], float], *, every_s: float = 0.05) -> None:
        self._clock = clock
        self._every_s = every_s
        self.samples: list[tuple[float, float]] = []
        """(time, seconds late)."""

    def worst_s(self, from_s: float, to_s: float) -> float | None:
        """The longest delay inside the span; `None` when nothing was sampled."""
        return max((late for at_s, late in self.samples if from_s <= at_s < to_s), default=None)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[LoopLag]:
        """Sample while the block runs."""
        task = asyncio.create_task(self._watch(), name="loop-lag")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        for _ in itertools.count():
            before_s = self._clock()
            await asyncio.sleep(self._every_s)
            after_s = self._clock()
            self.samples.append((after_s, after_s - before_s - self._every_s))
