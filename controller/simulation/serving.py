"""Serves the embedded engine and a sidecar inside an event loop that somebody else runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from fastapi import FastAPI

from controller.serving import make_server
from controller.simulation.server import SimulatedServer


@contextlib.asynccontextmanager
async def serve(app: FastAPI, host: str, port: int, name: str) -> AsyncIterator[str]:
    """Serve `app` while the context lasts; gives its URL.  Port 0: any free one.  Raises `OSError`."""
    listener = socket.create_server((host, port))
    bound = listener.getsockname()[1]
    server = make_server(app)
    task = asyncio.create_task(server.serve([listener]), name=name)
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield f"http://{host}:{bound}"
    finally:
        server.stop()
        await task
        listener.close()


@contextlib.asynccontextmanager
async def serve_engine(server: SimulatedServer, host: str, port: int) -> AsyncIterator[str]:
    """Serve an embedded engine and let its time pass while the context lasts; gives its URL."""
    time = asyncio.create_task(server.live.run(), name="simulated engine")
    try:
        async with serve(server.app, host, port, "simulated engine http") as url:
            yield url
    finally:
        time.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await time
