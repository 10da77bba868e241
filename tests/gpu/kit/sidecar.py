"""The project's sidecar, governing one server of the kit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from kit.engines import HERE, PRODUCT
from kit.journal import Journal

SPECGOV = [os.environ.get("SPECGOV_PYTHON", sys.executable), "-c", "from controller.cli import main; main()"]
"""The command line of the product, which is not installed there."""

PORT_TAKEN = "must be free to listen on"
"""What `specgov run` says when another process has its port."""


def specgov_environment(out: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """Where `python -m controller.cli` finds the product; settings as `SPECGOV_*`, none inherited."""
    root = PRODUCT if PRODUCT.is_dir() else HERE.parent.parent
    site = Path(os.environ.get("SG", "/tmp/sg")) / "site"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPECGOV_")}
    ours = {f"SPECGOV_{k.upper().replace('.', '__')}": str(v) for k, v in settings.items()}
    return (
        inherited
        | ours
        | {"PYTHONPATH": f"{root}:{site}", "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(out / "state")}
    )


class SidecarFailedError(Exception):
    """It did not get ready; the message ends with its log.  `port_taken`: another port may do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.port_taken = PORT_TAKEN in message


class Sidecar:
    """`specgov run` as a process of its own, with its state in the output folder."""

    def __init__(
        self, name: str, port: int, out: Path, journal: Journal, settings: Mapping[str, object]
    ) -> None:
        self.name = name
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5, trust_env=False)
        self._out = out
        self._pid_file = out / f"{name}.pid"
        """For whoever must end it when the driver could not."""
        self._journal = journal
        self._args = [*SPECGOV, "run"]
        self._env = specgov_environment(out, {**settings, "api.port": port})
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, *, limit_s: float = 30.0, watch_every_s: float = 0.25) -> float:
        """Returns the seconds until it was ready; its status is journalled from then on.

        Raises `SidecarFailedError`.
        """
        with self._out.joinpath(f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                self._args,
                env=self._env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._out,
            )
        self._pid_file.write_text(str(self._process.pid))
        began_s = time.time()
        while time.time() - began_s < limit_s and self._process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await self.http.get("/readyz")).status_code == httpx.codes.OK:
                    self._watch = asyncio.create_task(self._follow(watch_every_s))
                    return time.time() - began_s
            await asyncio.sleep(0.1)
        tail = self._out.joinpath(f"{self.name}.log").read_text(errors="replace")[-800:]
        raise SidecarFailedError(f"{self.name} not ready (exit status {self._process.poll()}): {tail}")

    async def stop(self, *, by: int = signal.SIGTERM) -> None:
        """End it; SIGTERM lets it hand the engine back."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(Exception):
                self._journal.record("decisions", sidecar=self.name, body=await self.get("/v1/decisions"))
            self._process.send_signal(by)
            try:
                await asyncio.wait_for(asyncio.to_thread(self._process.wait), 10)
            except TimeoutError:
                self._process.kill()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    async def get(self, path: str) -> Any:
        """The JSON of one of its endpoints."""
        return (await self.http.get(path)).raise_for_status().json()

    async def override(self, **body: Any) -> Any:
        """PUT /v1/override."""
        return (await self.http.put("/v1/override", json=body)).raise_for_status().json()

    async def _follow(self, every_s: float) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                self._journal.record("status", sidecar=self.name, body=await self.get("/v1/status"))
            await asyncio.sleep(every_s)
