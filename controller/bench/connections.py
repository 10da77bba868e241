"""HTTP connections of a load: with hundreds of clients a request costs no more than with one.

The pool of `httpx` (httpcore) looks at every connection it has at each request and at each answer, and asks
the kernel about the idle ones.  From about 200 clients on that takes the event loop longer than the server
takes to answer: requests wait for seconds to be sent, the server runs empty, and what is measured is the
client (`tests/benchmarks/client_cost.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import cast

import httpx

_KEEP_ALIVE_S = 2.0
"""Servers close idle connections after 5 s (uvicorn); reused at that moment, one ends in a `ReadError`."""


class LoadTransport(httpx.AsyncBaseTransport):
    """As many transports of one connection as there are requests at the same time, found without a search."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport] | None = None) -> None:
        """`make` makes one that carries one request at a time; default: plain `httpx`."""
        self._make = make or _of_one_connection()
        self._idle: list[httpx.AsyncBaseTransport] = []
        self._all: list[httpx.AsyncBaseTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send over the connection that was idle last; it is free again once the answer is closed."""
        transport = self._idle.pop() if self._idle else self._add()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self._idle.append(transport)
            raise
        body = cast(httpx.AsyncByteStream, response.stream)
        response.stream = _Lent(body, lambda: self._idle.append(transport))
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._all:
            await transport.aclose()

    def _add(self) -> httpx.AsyncBaseTransport:
        transport = self._make()
        self._all.append(transport)
        return transport


class _Lent(httpx.AsyncByteStream):
    """The body of an answer; gives its connection back when it is closed."""

    def __init__(self, body: httpx.AsyncByteStream, give_back: Callable[[], None]) -> None:
        self._body = body
        self._give_back: Callable[[], None] | None = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            give_back, self._give_back = self._give_back, None
            if give_back is not None:
                give_back()


def _of_one_connection() -> Callable[[], httpx.AsyncBaseTransport]:
    certificates = httpx.create_ssl_context(trust_env=False)  # slow to make, so all share one
    limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
    return lambda: httpx.AsyncHTTPTransport(verify=certificates, trust_env=False, limits=limits)
