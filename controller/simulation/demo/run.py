"""Runs the demo: embedded engine and sidecar over real HTTP, and the clients that load the engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from controller.errors import SpecgovError
from controller.loop import TickResult
from controller.settings import load, nested
from controller.simulation.acceptance import Acceptance
from controller.simulation.arrivals import Arrival
from controller.simulation.cost_profile import CostProfile
from controller.simulation.demo.outcome import Trajectory
from controller.simulation.engine import EngineConfig, Request
from controller.simulation.live import LiveEngine
from controller.simulation.server import CHARACTERS_PER_TOKEN, SimulatedServer, make_server
from controller.simulation.serving import serve, serve_engine
from controller.wiring import Assembly, assemble

SAMPLE_S = 0.05
DRAIN_S = 15.0
READY_WITHIN_S = 20.0
CLIENT_TIMEOUT_S = 60.0


class DemoError(SpecgovError):
    """The demo's own engine, sidecar or clients failed."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What is simulated, who decides, and where it listens."""

    profile: CostProfile
    acceptance: Acceptance
    engine: EngineConfig
    policy: str
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parameters by policy name, as in the sidecar's settings."""
    knowledge: Mapping[str, Any] | None = None
    """What the policy has learned before; `None`: nothing."""
    seed: int = 1
    host: str = "127.0.0.1"
    engine_port: int = 0
    api_port: int = 0


def check_ports(settings: DemoSettings) -> None:
    """Raise `ValueError`, naming the option, unless both ports can be listened on now."""
    ports = {"--engine-port": settings.engine_port, "--api-port": settings.api_port}
    if settings.engine_port and settings.engine_port == settings.api_port:
        raise ValueError(f"--engine-port and --api-port must differ, got {settings.api_port} for both")
    for option, port in ports.items():
        try:
            socket.create_server((settings.host, port)).close()
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ValueError(
                f"{option} must be a free port, got {port} ({reason}); give another, or 0 for any"
            ) from None


@dataclass(frozen=True, slots=True)
class Stage:
    """Engine and sidecar, running."""

    server: SimulatedServer
    assembly: Assembly
    engine_url: str
    api_url: str

    @property
    def live(self) -> LiveEngine:
        """The engine."""
        return self.server.live

    @property
    def last(self) -> TickResult | None:
        """The sidecar's latest turn."""
        return self.assembly.sidecar.loop.last


@contextlib.asynccontextmanager
async def set_up(settings: DemoSettings) -> AsyncIterator[Stage]:
    """Start the engine and the sidecar; both are gone, and the lease given back, when the context ends."""
    server = make_server(settings.profile, settings.acceptance, settings.engine, seed=settings.seed)
    async with contextlib.AsyncExitStack() as stack:
        engine_url = await stack.enter_async_context(
            serve_engine(server, settings.host, settings.engine_port)
        )
        flags = nested(
            {
                "engine.url": engine_url,
                "policy.name": settings.policy,
                "policies": settings.policies,
                "store.path": Path(":memory:"),
                "loop.period_s": 0.5,
            }
        )
        assembly = assemble(load(None, flags))
        stack.push_async_callback(assembly.aclose)
        stop = asyncio.Event()
        loop = asyncio.create_task(assembly.sidecar.loop.run(stop), name="sidecar loop")
        stack.push_async_callback(_end, stop, loop)
        api_url = await stack.enter_async_context(
            serve(assembly.app, settings.host, settings.api_port, "sidecar http")
        )
        stage = Stage(server, assembly, engine_url, api_url)
        await _ready(stage)
        if settings.knowledge is not None:
            assembly.knowledge.teach(settings.knowledge)
        yield stage


async def _ready(stage: Stage) -> None:
    """Wait until the sidecar knows whom it governs; raises `DemoError` when it does not come to know."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while stage.assembly.knowledge.key is None:  # noqa: ASYNC110 the loop has no event for it
                await asyncio.sleep(SAMPLE_S)
    except TimeoutError:
        seen = f"its link is {stage.last.link.link}" if stage.last else "it has not done a turn"
        raise DemoError(
            f"the demo's sidecar must know its engine within {READY_WITHIN_S:.0f} s, but {seen}:"
            " is this machine very busy? Try again"
        ) from None


async def _end(stop: asyncio.Event, loop: asyncio.Task[None]) -> None:
    stop.set()
    await loop


async def drive(
    live: LiveEngine, url: str, arrivals: Sequence[Arrival], end_s: float, watch: Callable[[float], None]
) -> Trajectory:
    """Send `arrivals` to the engine at `url` over HTTP, wait for the answers, and sample what it emits.

    `watch` is called with the seconds since the start, many times a second.  Raises `DemoError`.
    """
    start_s = time.monotonic()
    offset_s, before = live.virtual_s, live.engine.emitted_tokens
    first = len(live.submitted)
    samples = [(0.0, 0)]
    clients = asyncio.create_task(_send_all(url, arrivals, start_s), name="demo clients")
    try:
        while not clients.done() or time.monotonic() - start_s < end_s:
            elapsed_s = time.monotonic() - start_s
            samples.append((live.engine.now_s - offset_s, live.engine.emitted_tokens - before))
            watch(elapsed_s)
            if elapsed_s > end_s + DRAIN_S:
                break
            await asyncio.sleep(SAMPLE_S)
        if clients.done():
            clients.result()
    except* httpx.HTTPError as errors:
        raise DemoError(f"the engine did not answer: {errors.exceptions[0]!r}") from None
    finally:
        clients.cancel()
        await asyncio.gather(clients, return_exceptions=True)
    sent = [_shifted(request, -offset_s) for request in live.submitted[first:]]
    return Trajectory(sent, [at_s for at_s, _ in samples], [tokens for _, tokens in samples])


def _shifted(request: Request, by_s: float) -> Request:
    """A copy on the demo's own time axis."""
    times = (request.arrival_s, request.first_token_s, request.finish_s)
    arrival_s, first_token_s, finish_s = (None if at_s is None else at_s + by_s for at_s in times)
    return dataclasses.replace(
        request, arrival_s=arrival_s or 0.0, first_token_s=first_token_s, finish_s=finish_s
    )


async def _send_all(url: str, arrivals: Sequence[Arrival], start_s: float) -> None:
    # A connection for each: on a busy machine one would be used again just as the server closes it.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    client = httpx.AsyncClient(base_url=url, timeout=CLIENT_TIMEOUT_S, limits=limits, trust_env=False)
    async with client, asyncio.TaskGroup() as group:
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, start_s + arrival.arrival_s - time.monotonic()))
            group.create_task(_send(client, arrival), name="demo request")


async def _send(client: httpx.AsyncClient, arrival: Arrival) -> None:
    body = {
        "text": "x" * (arrival.prompt_tokens * CHARACTERS_PER_TOKEN),
        "sampling_params": {"max_new_tokens": arrival.output_tokens},
    }
    answer = await client.post("/generate", json=body)
    answer.raise_for_status()
