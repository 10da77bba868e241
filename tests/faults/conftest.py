"""A sidecar, an engine, and something between them that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from controller.effect import Effect
from tests.controller.conftest import Bench, clock, make
from tests.controller.fake_engine import FakeEngine

__all__ = ["clock", "make"]
Fault = Callable[[httpx.Request], Awaitable[httpx.Response]]
EVERYTHING = "*"
ALLOWED = {
    ("GET", "/v1/loads"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("GET", "/speculation"),
    ("PUT", "/speculation"),
    ("DELETE", "/speculation"),
}
"""All that a sidecar may ever ask of an engine."""


class Interposer(httpx.AsyncBaseTransport):
    """Passes requests on, or lets a fault answer in the engine's place."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.faults: dict[str, Fault] = {}
        """By `*`, path, or method and path."""
        self.seen: set[tuple[str, str]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.seen.add((request.method, path))
        for name in (f"{request.method} {path}", path, EVERYTHING):
            if name in self.faults:
                return await self.faults[name](request)
        await asyncio.sleep(0)  # sent, not arrived
        answer = await self._inner.handle_async_request(request)
        await asyncio.sleep(0)  # answered, not read
        return answer


class FaultyEngine(FakeEngine):
    """The fake engine behind an `Interposer`."""

    def transport(self) -> httpx.AsyncBaseTransport:
        self.between = Interposer(super().transport())
        return self.between


class Trial:
    """One sidecar through one fault."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.engine: Any = bench.engine

    @property
    def faults(self) -> dict[str, Fault]:
        return self.engine.between.faults

    async def governed(self) -> None:
        """Until the plan is seen at work."""
        result = await self.bench.run(4, batch_size=4)
        assert result.effect.effect is Effect.APPLIED
        assert self.bench.conditions() == set()

    async def run(self, ticks: int) -> set[str]:
        """So many turns under load, in each of which the engine does what it may; the conditions then."""
        for _ in range(ticks):
            self.engine.decode(4)
            self.served_as_told()
            await self.bench.tick()
            self.served_as_told()
        return self.bench.conditions()

    def served_as_told(self) -> None:
        """Depth in use: of the plan whose lease is live, else the engine's own; nothing in between."""
        self.engine._expire()
        plan = self.engine.plan
        if plan is not None:
            assert self.engine.clock() < self.engine.expires_s
            assert {row["depth"] for row in plan["schedule"]} <= set(self.engine.built_depths)

    async def recovers(self, ticks: int = 16) -> None:
        """Control comes back by itself, nothing is left to complain of, and nothing else was asked for."""
        for _ in range(ticks):
            await self.run(1)
            applied = self.bench.loop.last.effect.effect is Effect.APPLIED
            if applied and not self.bench.conditions():
                break
        assert self.bench.loop.last.effect.effect is Effect.APPLIED, self.bench.loop.last.effect
        assert self.bench.conditions() == set()
        assert self.engine.between.seen <= ALLOWED
        assert self.bench.loop.failed_ticks == 0

    async def order(self, **order: Any) -> dict[str, Any]:
        """An operator's order; its answer."""
        answer = await self.bench.api.put("/v1/override", json={"reason": "incident 7", **order})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def trial(make, clock):
    """Makes trials; keys are settings with `__` for the dot."""

    async def build(engine: FaultyEngine | None = None, **settings: Any) -> Trial:
        timeouts = {
            "engine__request_timeout_s": 0.25,
            "engine__put_timeout_s": 0.25,
            "engine__metrics_timeout_s": 0.25,
        }
        return Trial(await make(engine or FaultyEngine(clock), **timeouts | settings))

    return build
