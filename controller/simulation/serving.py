"""Serves ASGI apps inside an event loop that somebody else runs, on a port that is free."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to who runs the event loop."""
        yield


@contextlib.asynccontextmanager
async def serve(app: FastAPI, host: str, port: int, name: str) -> AsyncIterator[str]:
    """Serve `app` while the context lasts; gives its URL.  Port 0: any free one.  Raises `OSError`."""
    listener = socket.create_server((host, port))
    bound = listener.getsockname()[1]
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]), name=name)
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield f"http://{host}:{bound}"
    finally:
        server.should_exit = True
        await task
        listener.close()
