"""The simulated engine alone, in a thread: for a sidecar that runs in a process or container of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile
from controller.simulation.server import make_server
from controller.simulation.serving import serve_engine
from tests.e2e.ports import free_port

START_S = 20.0


class LoneEngine:
    """Its address, and what a client and an operator ask it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def generate(self, tokens: int) -> None:
        """One request, answered."""
        body = {"text": "x" * 400, "sampling_params": {"max_new_tokens": tokens}}
        httpx.post(self.url + "/generate", json=body, trust_env=False, timeout=60).raise_for_status()

    def state(self) -> str:
        """`governed` or `fallback`."""
        answer = httpx.get(self.url + "/speculation", trust_env=False, timeout=10)
        return str(answer.raise_for_status().json()["state"])


@contextmanager
def lone_engine() -> Iterator[LoneEngine]:
    """An engine while the context lasts."""
    engine = LoneEngine(free_port())
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(engine, started, stop)), name="lone engine")
    thread.start()
    try:
        assert started.wait(START_S), f"the engine did not start within {START_S} s"
        yield engine
    finally:
        stop.set()
        thread.join(timeout=START_S)


async def _serve(engine: LoneEngine, started: threading.Event, stop: threading.Event) -> None:
    server = make_server(load_profile("h200_llama8b_triton"), parse_acceptance("0.745"))
    async with serve_engine(server, "127.0.0.1", int(engine.url.rpartition(":")[2])):
        started.set()
        await asyncio.to_thread(stop.wait)
