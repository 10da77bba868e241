"""One running SGLang server: its process, its load, its step log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from controller.bench.client import Client
from controller.bench.connections import LoadTransport
from controller.bench.engine import EngineControl, holder_of
from controller.bench.load import ClosedLoop
from controller.bench.prompts import PromptSource
from controller.bench.records import RequestRecord
from kit.engines import Engine
from kit.setups import Setup

HEALTH_POLL_S = 0.4


class ServerFailedError(Exception):
    """The server did not start, or died; the message holds what its log says."""


class Server:
    """Started by `start`, ended by `stop`; `control` speaks to its /speculation."""

    def __init__(
        self, setup: Setup, port: int, engine: Engine, out: Path, clock: Callable[[], float]
    ) -> None:
        self.setup = setup
        self.name = setup.name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(
            base_url=self.url, timeout=httpx.Timeout(300, connect=5), transport=LoadTransport()
        )
        holder = holder_of(secrets.token_hex(4), socket.gethostname(), os.getpid())
        self.control = EngineControl(self.http, clock, holder)
        self._clock = clock
        self.load: ClosedLoop | None = None
        self._engine = engine
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._dumps = 0

    async def start(self, limit_s: float) -> float:
        """Returns the seconds until it was healthy; raises `ServerFailedError`."""
        self._out.joinpath("steps").mkdir(exist_ok=True)
        with self._out.joinpath(f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                self._engine.command(self.setup, self.port, self._out),
                env=self._engine.environment(self.setup, self._out),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._out,
            )
        # for whoever must end it when the driver could not
        self._out.joinpath(f"{self.name}.pid").write_text(str(self._process.pid))
        started_s = time.time()
        while time.time() - started_s < limit_s and self._process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await self.http.get("/health", timeout=2)).status_code == httpx.codes.OK:
                    return time.time() - started_s
            await asyncio.sleep(HEALTH_POLL_S)
        rc = self._process.poll()
        await self.stop()
        raise ServerFailedError(f"{self.name} did not start (exit status {rc}): {self.complaint()}")

    async def stop(self) -> None:
        """End its whole process group, which is ours: it was started in a session of its own."""
        if self.load is not None:
            await self.load.cancel()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
            self._process = None
            self._out.joinpath(f"{self.name}.pid").unlink(missing_ok=True)
        await asyncio.sleep(1.0)

    def complaint(self) -> str:
        """The lines of its log around the first error."""
        lines = self._out.joinpath(f"{self.name}.log").read_text(errors="replace").splitlines()
        at = next(
            (i for i, line in enumerate(lines) if "Error" in line and not line.startswith("[")), len(lines)
        )
        return " | ".join(line.strip()[:160] for line in lines[max(0, at - 7) : at + 2])

    def pids(self) -> list[int]:
        """Its processes: those of its session."""
        leader = self._process.pid if self._process else -1
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if os.getsid(int(entry.name)) == leader:
                    found.append(int(entry.name))
        return found

    def pin(self, cpus: Sequence[int]) -> None:
        """Keep all its threads on these CPUs, so that one server's busy loop does not slow another."""
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), cpus)

    async def begin(self, source: PromptSource, concurrency: int, *, stream_every: int, seed: int) -> None:
        """Put a closed loop of so many clients on it."""
        client = Client(self.http, self._clock)
        self.load = ClosedLoop(client, source, random.Random(seed), stream_every=stream_every)
        await self.load.scale(concurrency)

    async def end(self) -> list[str]:
        """Drop the load at once, keep its requests and the server's step log; returns client errors."""
        load, self.load = self.load, None
        if load is None:
            return []
        await load.cancel()
        with contextlib.suppress(httpx.HTTPError):
            await self.http.post("/abort_request", json={"abort_all": True, "rid": ""})
        with self._out.joinpath(f"{self.name}.requests.jsonl").open("a") as file:
            file.writelines(json.dumps(_brief(r)) + "\n" for r in load.records)
        await asyncio.sleep(0.3)
        await self.dump()
        return [r.error for r in load.records if r.error is not None]

    async def internal(self, values: dict[str, float]) -> bool:
        """POST /set_internal_state; true when every value was taken (HTTP 200 alone does not say so)."""
        answer = await self.http.post("/set_internal_state", json={"server_args": values})
        return answer.status_code == httpx.codes.OK and "true" in answer.text.lower()

    async def dump(self) -> None:
        """Have the step recorder write what it has and start anew."""
        self._dumps += 1
        with contextlib.suppress(httpx.HTTPError):
            await self.internal({"bench.dump": self._dumps})


def _brief(record: RequestRecord) -> dict[str, Any]:
    """A request as it is kept: a stream's events only as first, last and gaps."""
    brief = asdict(record) | {"events": record.events[:1] + record.events[-1:] if record.events else []}
    if record.streamed:
        brief["gaps_s"] = [[round(at_s, 4), round(gap_s, 5)] for at_s, gap_s in record.itl_s()]
    return brief
