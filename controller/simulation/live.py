"""The virtual-time engine run against a real clock, for those who wait for its answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

from controller.simulation.engine import Request, VirtualEngine
from controller.simulation.surface import Surface

POLL_S = 0.01
"""How often the engine is brought up to date: two or three decode steps of an 8B model."""


class Ticket:
    """One request as its client sees it."""

    def __init__(self, request: Request, rid: str | None = None) -> None:
        self.request = request
        self.rid = rid
        self.generated = 0
        """Output tokens so far."""
        self.aborted = False
        self._moved = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether all tokens are there."""
        return self.request.finish_s is not None

    def update(self, generated: int) -> None:
        """Take note of the tokens that are there now."""
        if generated > self.generated or self.done:
            self.generated = generated
            self._moved.set()

    def abort(self) -> None:
        """No more tokens will come."""
        self.aborted = True
        self._moved.set()

    async def tokens(self) -> AsyncIterator[int]:
        """How many tokens came since the last time, until all are there or it is aborted."""
        seen = 0
        while True:
            await self._moved.wait()
            self._moved.clear()
            if self.generated > seen:
                yield self.generated - seen
                seen = self.generated
            if self.done or self.aborted:
                return

    async def finished(self) -> None:
        """Wait until all tokens are there, or it is aborted."""
        async for _ in self.tokens():
            pass


class LiveEngine:
    """Lets the engine's time pass with `clock`, `speed` virtual seconds a second."""

    def __init__(
        self, engine: VirtualEngine, surface: Surface, clock: Callable[[], float], *, speed: float = 1.0
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be > 0, got {speed!r}")
        self.engine = engine
        self.surface = surface
        self.submitted: list[Request] = []
        """Every request in order of arrival."""
        self._clock = clock
        self._speed = speed
        self._start_s = clock()
        self._numbers = itertools.count()
        self._tickets: dict[int, Ticket] = {}
        engine.on_finish = self._finish

    @property
    def virtual_s(self) -> float:
        """What the engine's time should be now."""
        return (self._clock() - self._start_s) * self._speed

    def submit(self, prompt_tokens: int, output_tokens: int, rid: str | None = None) -> Ticket:
        """Let a request arrive now; raises `ValueError` for one that could never be served.

        `rid` is its client's name for it, for `abort`.
        """
        limit = self.engine.config.kv_tokens
        if prompt_tokens < 1 or output_tokens < 1 or prompt_tokens + output_tokens > limit:
            raise ValueError(
                f"prompt and output tokens must be >= 1 and at most {limit} together,"
                f" got {prompt_tokens} and {output_tokens}"
            )
        arrival_s = max(self.virtual_s, self.engine.now_s)
        request = Request(next(self._numbers), arrival_s, prompt_tokens, output_tokens)
        ticket = self._tickets[request.index] = Ticket(request, rid)
        self.submitted.append(request)
        self.engine.submit(request)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Its client went away."""
        if self._tickets.pop(ticket.request.index, None) is not None:
            self.engine.cancel(ticket.request.index)

    def abort(self, rid: str) -> None:
        """Its client wants it no more; for one that is unknown, or done, nothing."""
        for ticket in [ticket for ticket in self._tickets.values() if ticket.rid == rid]:
            self.cancel(ticket)
            ticket.abort()

    async def run(self) -> None:
        """Keep the engine up to date until cancelled."""
        while True:
            self.catch_up()
            await asyncio.sleep(POLL_S)

    def catch_up(self) -> None:
        """Bring the engine to now and tell those who wait."""
        self.engine.run_until(self.virtual_s)
        self.engine.log.steps.clear()
        self.engine.finished.clear()
        self.surface.refresh()
        for request, generated in self.engine.progress():
            ticket = self._tickets.get(request.index)
            if ticket is not None:
                ticket.update(generated)

    def _finish(self, request: Request) -> None:
        self.surface.finished(request)
        ticket = self._tickets.pop(request.index, None)
        if ticket is not None:
            ticket.update(request.output_tokens)
