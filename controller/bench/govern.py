"""A sidecar inside the benchmark, for arms like `policy:goodput`.

Its state is kept in a file between windows: the first window of a policy is a cold start, later ones
are warm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from controller import settings as settings_module
from controller.bench.arms import BenchArm
from controller.bench.target import ServerUnderTest
from controller.wiring import assemble


@dataclass(frozen=True, slots=True)
class Governor:
    """Makes sidecars; `config` is a settings file for them, engine and policy aside."""

    state_dir: Path
    config: Path | None = None
    api_key_file: Path | None = None
    admin_api_key_file: Path | None = None

    @asynccontextmanager
    async def __call__(self, server: ServerUnderTest, arm: BenchArm) -> AsyncIterator[None]:
        """Govern `server` by the arm's policy; hands back at the end.  Raises `SettingsError`."""
        flags = settings_module.nested(
            {
                "engine.url": str(server.client.http.base_url).rstrip("/"),
                "engine.api_key_file": self.api_key_file,
                "engine.admin_api_key_file": self.admin_api_key_file,
                "policy.name": arm.policy,
                "lease.holder": f"{server.control.holder}/policy" if server.control else None,
                "store.path": self.state_dir / f"{server.name}.{arm.policy}.db",
            }
        )
        assembly = assemble(settings_module.load(self.config, flags))
        stop = asyncio.Event()
        loop = asyncio.create_task(assembly.sidecar.loop.run(stop), name=f"sidecar {arm.policy}")
        try:
            yield
        finally:
            stop.set()
            await loop
            await assembly.aclose()
