"""Runs a sidecar: the control loop and the HTTP server side by side, until a signal ends both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from controller.errors import SettingsError, SpecgovError
from controller.garbage import SWEEP_EVERY_S, sweep
from controller.settings import ApiSettings
from controller.tls import ServerTls
from controller.wiring import Assembly

log = logging.getLogger("specgov")
SHUT_DOWN_WITHIN_S = 10.0
NOTE_WITHIN_S = 2.0


class Server(uvicorn.Server):
    """Leaves signals to us: the lease is given back before the process ends."""

    def __init__(self, config: uvicorn.Config, tls: ServerTls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take no more connections, end soon."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes ten times a second: that was a sixth of the sidecar's processor time."""
        seconds = 0
        while not await self.on_tick(10 * seconds):  # it counts tenths
            seconds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; once a minute, a renewed certificate is found and garbage is swept."""
        if counter % (10 * SWEEP_EVERY_S) == 0:
            sweep()
            if self._tls is not None:
                self._tls.refresh()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None are: `serve` has them."""
        yield


def listen(settings: ApiSettings) -> socket.socket:
    """The API's socket; raises `SettingsError` when it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        at = f"{settings.host}:{settings.port}"
        raise SettingsError(f"api.host and api.port must be free to listen on, got {at}: {error}") from None


async def serve(assembly: Assembly, listener: socket.socket, *, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or `stop`; raises `SpecgovError` when a part ends by itself."""
    stop = stop or asyncio.Event()
    server = make_server(assembly.app, assembly.tls)
    assembly.sidecar.note_start()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    parts = [
        asyncio.create_task(assembly.sidecar.loop.run(stop), name="control loop"),
        asyncio.create_task(server.serve(sockets=[listener]), name="HTTP server"),
    ]
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait([*parts, stopped], return_when=asyncio.FIRST_COMPLETED)
        unexpected = [part for part in parts if part.done() and not stop.is_set()]
    finally:
        stop.set()
        server.stop()
        stopped.cancel()
        await _end(parts)
        for number in handled:
            asyncio.get_running_loop().remove_signal_handler(number)
        await _note_stop(assembly)
        await assembly.aclose()
    for part in unexpected:
        raise SpecgovError(f"the {part.get_name()} ended by itself") from part.exception()


def make_server(app: FastAPI, tls: ServerTls | None = None) -> Server:
    """The HTTP server, without access log; with `tls`, https."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    if tls is not None:
        config.load()
        config.ssl = tls.context
    return Server(config, tls)


async def _note_stop(assembly: Assembly) -> None:
    """A disk that hangs must not keep a pod from ending."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NOTE_WITHIN_S):
            await asyncio.to_thread(assembly.sidecar.note_stop)


async def _end(parts: list[asyncio.Task[None]]) -> None:
    _, late = await asyncio.wait(parts, timeout=SHUT_DOWN_WITHIN_S)
    for part in late:
        log.error("the %s did not end within %g s", part.get_name(), SHUT_DOWN_WITHIN_S)
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)
