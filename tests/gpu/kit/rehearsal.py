"""A plan rehearsed without an engine: every verb runs, in virtual time, against a server that only answers.

What it proves: the plan calls what exists, ends, and starts servers whose arguments can then be checked
(`arguments.py`).  It measures nothing, and nothing that it journals is a result.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from controller.bench.engine import EngineControl
from kit.engines import Engine
from kit.server import Server
from kit.session import Kit
from kit.setups import Setup
from kit.sidecar import Sidecar

REQUEST_S = 300.0
WHOLE_BATCH_S = 2.0
"""Virtual seconds of a request: long, so that a rehearsal of hundreds of clients is cheap."""


class Stub:
    """Answers like a server with the plugin: the depth asked for is the depth in use."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._row = {"depth": max(setup.depths or (0,)), "gear": "on"}
        self._sequence = 0
        self._holder: str | None = None
        self.calls: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.calls.append(f"{request.method} {path}")
        if path == "/speculation":
            return self._speculation(request.method, body)
        if path == "/generate":
            whole_batch = bool(body.get("input_ids")) and isinstance(body["input_ids"][0], list)
            await asyncio.sleep(WHOLE_BATCH_S if whole_batch else REQUEST_S)
            sampling = body["sampling_params"]
            tokens = (sampling[0] if isinstance(sampling, list) else sampling)["max_new_tokens"]
            answer = {"text": "{}", "output_ids": [1] * tokens, "meta_info": {"completion_tokens": tokens}}
            if not body["stream"]:
                return httpx.Response(200, json=answer)
            return httpx.Response(200, content=f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode())
        return httpx.Response(200, json=[True])

    def _speculation(self, method: str, body: dict[str, Any]) -> httpx.Response:
        if not self._setup.hook:
            return httpx.Response(404)
        if method == "PUT":
            for i, row in enumerate(body["schedule"]):
                if row["depth"] not in self._setup.depths:
                    error = {"field": f"schedule[{i}].depth", "message": "must be a built depth"}
                    return httpx.Response(422, json={"error": error})
            self._sequence, self._holder = body["sequence"], body["holder"]
            self._row = {"depth": body["schedule"][0]["depth"], "gear": body["schedule"][0].get("gear", "on")}
        if method == "DELETE":
            self._holder = None
        cell = {"tokens": 0, "request_steps": 0}
        telemetry = [{**self._row, "decode_steps": 0, "cells": [cell]}]
        state = {"state": "governed" if self._holder else "native", "holder": self._holder}
        return httpx.Response(200, json={"sequence": self._sequence, "telemetry": telemetry, **state})


class RehearsedServer(Server):
    """No process: the answers come from a `Stub`."""

    def __init__(
        self, setup: Setup, port: int, engine: Engine, out: Path, clock: Callable[[], float]
    ) -> None:
        super().__init__(setup, port, engine, out, clock)
        self.stub = Stub(setup)
        self.http = httpx.AsyncClient(base_url=self.url, transport=httpx.MockTransport(self.stub))
        self.control = EngineControl(self.http, clock, self.control.holder)
        self.command = engine.command(setup, port, out)
        self.environment = engine.environment(setup, out)

    async def start(self, limit_s: float) -> float:
        """At once."""
        return 0.0

    async def stop(self) -> None:
        """Nothing runs but the load."""
        if self.load is not None:
            await self.load.cancel()


class RehearsedSidecar(Sidecar):
    """No process."""

    async def start(self, *, limit_s: float = 30.0, watch_every_s: float = 0.25) -> float:
        """At once."""
        return 0.0

    async def stop(self, **_: Any) -> None:
        """Nothing to stop."""


class Rehearsal(Kit):
    """Keeps every server that the plan ever started in `seen`."""

    server_class = RehearsedServer
    sidecar_class = RehearsedSidecar
    rehearsed = True

    def __init__(self, engine: Engine, out: Path, seconds: float, now: Callable[[], float]) -> None:
        super().__init__(engine, out, seconds, now)
        self.seen: list[Server] = []

    async def _start(self, setups: Sequence[Setup], limit_s: float) -> dict[Server, float | BaseException]:
        """As the real one."""
        results = await super()._start(setups, limit_s)
        self.seen += results
        return results

    def failures(self) -> list[dict[str, Any]]:
        """What the journal says went wrong."""
        lines = (self.out / "records.jsonl").read_text().splitlines()
        return [r for r in map(json.loads, lines) if r["kind"] == "failed"]
