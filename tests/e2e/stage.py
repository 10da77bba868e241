"""The simulated engine and the sidecar beside it, over real HTTP, under a load that the test steers.

Runs in a thread with an event loop of its own, so that tests which block (a browser, Prometheus) can
use it.  From a shell: `python -m tests.e2e.stage` serves it with a load that rises and falls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from controller.knowledge import KnowledgeKeeper
from controller.settings import load, nested
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile
from controller.simulation.server import make_server
from controller.simulation.serving import serve
from controller.wiring import assemble
from tests.e2e.ports import free_port

START_S = 20.0
OUTPUT_TOKENS = 200
PROMPT_TOKENS = 200
PROFILE = "h200_llama8b_triton"
ACCEPTANCE = "0.745"


@dataclass
class Stage:
    """Addresses, and the knob for the load."""

    api_port: int
    engine_port: int
    concurrency: int = 0
    """Requests kept in flight."""
    hangs: bool = False
    """Whether the engine keeps whoever asks it waiting."""
    failures: list[str] = field(default_factory=list)
    fleet: Path | None = None
    """The fleet's override file, where a test watches one."""

    @property
    def url(self) -> str:
        """The sidecar's API."""
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def engine_url(self) -> str:
        """The simulated engine."""
        return f"http://127.0.0.1:{self.engine_port}"

    def get(self, path: str) -> Any:
        """JSON of the sidecar's API."""
        return httpx.get(self.url + path, trust_env=False, timeout=10).raise_for_status().json()

    def put_override(self, body: Mapping[str, Any], token: str | None = None) -> Any:
        """Give an order; the answer's JSON."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = httpx.put(self.url + "/v1/override", json=body, headers=headers, trust_env=False, timeout=10)
        return answer.raise_for_status().json()

    def delete_override(self, token: str | None = None) -> None:
        """End the order that was given over REST."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        httpx.delete(
            self.url + "/v1/override", headers=headers, trust_env=False, timeout=10
        ).raise_for_status()

    def wait_for(self, path: str, condition: Any, within_s: float = 30.0) -> Any:
        """The first answer of `path` that meets `condition`; fails after `within_s`."""
        until = time.monotonic() + within_s
        while True:
            answer = self.get(path)
            if condition(answer):
                return answer
            assert time.monotonic() < until, f"{path} did not come to it within {within_s} s: {answer}"
            time.sleep(0.2)


@contextlib.contextmanager
def stage(
    flags: Mapping[str, Any] | None = None,
    *,
    api_port: int = 0,
    engine_port: int = 0,
    knowledge: Mapping[str, Any] | None = None,
) -> Iterator[Stage]:
    """A running stage; `flags` are settings of the sidecar by dotted key.

    `knowledge`: what its policy learned before, as on a server that ran yesterday; `None`: nothing.
    """
    running = Stage(api_port or free_port(), engine_port or free_port())
    stop, started = threading.Event(), threading.Event()
    arguments = (running, dict(flags or {}), knowledge, started, stop)
    thread = threading.Thread(target=_main, args=arguments, name="stage")
    thread.start()
    try:
        assert started.wait(START_S), f"the stage did not start within {START_S} s: {running.failures}"
        assert not running.failures, running.failures
        yield running
    finally:
        stop.set()
        thread.join(timeout=START_S)


def _main(
    running: Stage,
    flags: dict[str, Any],
    knowledge: Mapping[str, Any] | None,
    started: threading.Event,
    stop: threading.Event,
) -> None:
    try:
        asyncio.run(_run(running, flags, knowledge, started, stop))
    except Exception as error:  # noqa: BLE001  told to the test, which fails with it
        running.failures.append(repr(error))
        started.set()


async def _run(
    running: Stage,
    flags: dict[str, Any],
    knowledge: Mapping[str, Any] | None,
    started: threading.Event,
    stop: threading.Event,
) -> None:
    server = make_server(load_profile(PROFILE), parse_acceptance(ACCEPTANCE))
    settings = {"loop.period_s": 0.5, "engine.url": running.engine_url, "store.path": ":memory:"}
    settings |= {"policy.name": "threshold", **flags}  # what it decides is known beforehand
    assembly = assemble(load(None, nested(settings)))
    ended = asyncio.Event()

    async def engine_app(scope: Any, receive: Any, send: Any) -> None:
        while running.hangs:  # noqa: ASYNC110  the test's thread sets it
            await asyncio.sleep(0.02)
        await server.app(scope, receive, send)

    async with (
        serve(engine_app, "127.0.0.1", running.engine_port, "engine http"),
        serve(assembly.app, "127.0.0.1", running.api_port, "sidecar http"),
    ):
        engine = asyncio.create_task(server.live.run())
        loop = asyncio.create_task(assembly.sidecar.loop.run(ended))
        clients = asyncio.create_task(_clients(running))
        if knowledge is not None:
            await _teach(assembly.knowledge, knowledge)
        started.set()
        await asyncio.to_thread(stop.wait)
        running.concurrency, running.hangs = -1, False
        await clients
        ended.set()
        await loop
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    await assembly.aclose()


async def _teach(keeper: KnowledgeKeeper, knowledge: Mapping[str, Any]) -> None:
    async with asyncio.timeout(START_S):
        while keeper.key is None:  # noqa: ASYNC110  the loop has no event for whom it governs
            await asyncio.sleep(0.05)
    keeper.teach(knowledge)


async def _clients(running: Stage) -> None:
    """Keep `concurrency` requests in flight, until it is negative: then let them end."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with (
        httpx.AsyncClient(base_url=running.engine_url, timeout=60, limits=limits, trust_env=False) as http,
        asyncio.TaskGroup() as group,
    ):
        flying: set[asyncio.Task[None]] = set()
        while running.concurrency >= 0:
            flying = {task for task in flying if not task.done()}
            for _ in range(running.concurrency - len(flying)):
                flying.add(group.create_task(_request(http)))
            await asyncio.sleep(0.02)


async def _request(http: httpx.AsyncClient) -> None:
    body = {"text": "x" * 4 * PROMPT_TOKENS, "sampling_params": {"max_new_tokens": OUTPUT_TOKENS}}
    with contextlib.suppress(httpx.HTTPError):
        await http.post("/generate", json=body)


WAVE = (2, 2, 6, 12, 24, 40, 60, 80, 60, 40, 20, 8, 2, 1)
"""Requests in flight, five seconds each."""


def _serve_forever() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-port", type=int, default=0)
    parser.add_argument("--engine-port", type=int, default=0)
    parser.add_argument("flags", nargs="*", help="settings of the sidecar, e.g. policy.name=threshold")
    given = parser.parse_args()
    flags = dict(flag.split("=", 1) for flag in given.flags)
    with stage(flags, api_port=given.api_port, engine_port=given.engine_port) as running:
        print(f"sidecar {running.url}  engine {running.engine_url}", flush=True)
        for concurrency in itertools.cycle(WAVE):
            running.concurrency = concurrency
            time.sleep(5)


if __name__ == "__main__":
    _serve_forever()
