"""What a client of the API may do to the sidecar: how much, how often, how slowly, and from which page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from controller.order_rules import AGENT
from controller.refusals import refusal
from controller.settings import ApiSettings, is_address

PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Never limited: a flood must not get the pod restarted, nor hide it."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BURST_S = 2.0
"""Requests of this many seconds may come at once."""


class Allowance:
    """A token bucket: `per_s` requests a second, `BURST_S` seconds' worth at once."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._most = max(1.0, per_s * BURST_S)
        self._left = self._most
        self._at_s = clock()

    def take(self) -> float:
        """0 when the request may pass, else the seconds until one may."""
        now_s = self._clock()
        self._left = min(self._most, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_s


class Allowances:
    """An `Allowance` for whoever holds the token, and one for each kind of request, from here and elsewhere.

    A flood of reads then leaves room for the order to turn off, one of strangers for the operator, one over
    the network for whoever asks on this machine, in this pod or through its port-forward, and one of
    dashboards for whoever types `specgov status`.  That a client is a command is its own word: it keeps
    what runs away by mistake apart, and what lies about it draws on a bucket as bounded as the others.
    """

    def __init__(
        self, per_s: float, clock: Callable[[], float], is_holder: Callable[[Request], bool]
    ) -> None:
        places = (_Place(kind, here=here) for kind in _Kind for here in (False, True))
        self._by_place = {place: Allowance(per_s, clock) for place in places}
        self._holders = Allowance(per_s, clock)
        self._is_holder = is_holder

    def of(self, request: Request) -> Allowance:
        """The one that `request` draws on."""
        if self._is_holder(request):
            return self._holders
        here = request.client is not None and _is_loopback(request.client.host)
        return self._by_place[_Place(_kind(request), here=here)]


class _Kind(Enum):
    ORDER = auto()
    COMMAND = auto()
    READ = auto()


class _Place(NamedTuple):
    kind: _Kind
    here: bool


def _kind(request: Request) -> _Kind:
    if request.method not in SAFE_METHODS:
        return _Kind.ORDER
    return _Kind.COMMAND if request.headers.get("user-agent") == AGENT else _Kind.READ


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a socket without an address
        return False


def add_limits(
    app: FastAPI,
    settings: ApiSettings,
    clock: Callable[[], float],
    is_holder: Callable[[Request], bool] = lambda _: False,
) -> None:
    """Refuse what is too much before anything else looks at it; `is_holder`: it shows the API's token."""
    allowances = Allowances(settings.max_requests_per_s, clock, is_holder)

    @app.middleware("http")
    async def bounded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _too_often(request, allowances) or _from_elsewhere(request, settings)
        answer = answer or await _too_much(request, settings) or await call_next(request)
        answer.headers["cache-control"] = "no-store"
        answer.headers["x-content-type-options"] = "nosniff"
        return answer


def _too_often(request: Request, allowances: Allowances) -> Response | None:
    if request.url.path in PROBES or not (wait_s := allowances.of(request).take()):
        return None
    answer = refusal(
        429,
        "too many requests: api.max_requests_per_s is the limit of all clients together; reads, orders,"
        " specgov's commands, clients on this machine and requests with the API's token each have their own",
    )
    answer.headers["retry-after"] = str(int(wait_s) + 1)
    return answer


def _from_elsewhere(request: Request, settings: ApiSettings) -> Response | None:
    """Without a token, refuse what the page of another site makes a browser on this machine send.

    A page whose name was rebound to 127.0.0.1 is of the same origin for its browser; its Host gives it away.
    An address cannot be rebound, so any may be the Host.
    """
    if settings.has_token:
        return None
    host = request.headers.get("host", "")
    name, named = _name(host), {each.lower() for each in settings.allowed_hosts}
    if not (is_address(name) or name == "localhost" or name in named):
        return refusal(
            403, "without api.token_file the Host must be an IP, localhost or of api.allowed_hosts"
        )
    origin = request.headers.get("origin")
    if request.method in SAFE_METHODS or origin is None:
        return None
    authority = origin.partition("://")[2].lower()
    if authority == host.lower() or _name(authority) in named:
        return None
    return refusal(403, "without api.token_file orders are not taken from pages of another Origin")


def _name(authority: str) -> str:
    """The host of `HOST[:PORT]`, without brackets; empty when it is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


async def _too_much(request: Request, settings: ApiSettings) -> Response | None:
    """Read the body, within its bounds of size and time."""
    chunks, size, limit = [], 0, settings.max_body_bytes
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    return refusal(413, f"the body must be at most {limit} bytes")
                chunks.append(chunk)
    except ClientDisconnect:
        return refusal(408, "the client went away before its body was there")  # which nobody reads
    except TimeoutError:
        return refusal(408, f"the body must arrive within {settings.body_timeout_s:g} s")
    request._body = b"".join(chunks)  # noqa: SLF001  where Starlette keeps a body that was read
    return None
