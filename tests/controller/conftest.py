"""A sidecar around a fake engine, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller import settings as settings_module
from controller import wiring
from controller.loop import TickResult
from tests.controller.fake_engine import FakeEngine


class Clock:
    """Monotonic seconds that move when told to; wall time runs beside it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now_s


@dataclass
class Bench:
    """A sidecar, its engine, its API."""

    clock: Clock
    engine: FakeEngine
    assembly: wiring.Assembly
    api: httpx.AsyncClient

    @property
    def loop(self) -> Any:
        return self.assembly.sidecar.loop

    async def tick(self, seconds: float = 1.0) -> TickResult:
        """One turn, after `seconds`."""
        self.clock.now_s += seconds
        return await self.loop.tick(self.clock.now_s)

    async def run(self, ticks: int, batch_size: int | None = None, seconds: float = 1.0) -> TickResult:
        """So many turns, decoding before each when a batch size is given."""
        for _ in range(ticks):
            if batch_size is not None:
                self.engine.decode(batch_size)
            result = await self.tick(seconds)
        return result

    def conditions(self) -> set[str]:
        return {str(active.condition) for active in self.loop.last.conditions}


@pytest.fixture
def clock() -> Clock:
    """Virtual time."""
    return Clock()


@pytest.fixture
async def make(clock: Clock, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    """Makes benches; keys are settings with `__` for the dot."""
    made: list[Bench] = []

    async def build(engine: FakeEngine | None = None, **settings: Any) -> Bench:
        engine = engine or FakeEngine(clock)
        pairs = {"store.path": str(tmp_path / "state.db"), "policy.name": "fixed", "policies.fixed.depth": 2}
        pairs |= {key.replace("__", "."): value for key, value in settings.items()}
        tree = settings_module.load(flags=settings_module.nested(pairs), environ={})
        assembly = wiring.assemble(tree, transport=engine.transport(), clock=clock, wall_clock=clock.wall)
        api = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=assembly.app, raise_app_exceptions=False),
            base_url="http://127.0.0.1:9470",
        )
        made.append(Bench(clock, engine, assembly, api))
        return made[-1]

    yield build
    for bench in made:
        await bench.api.aclose()
        await bench.loop._scraper.aclose()
        await bench.assembly.aclose()


@pytest.fixture
def fake_state() -> dict[str, Any]:
    """The body of `GET /speculation` of an idle engine."""
    return FakeEngine(lambda: 0.0).state()
