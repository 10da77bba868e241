"""The only place that talks to the engine: bounded, timed, typed, never following a redirect."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from controller.control_state import ControlState, Plan, parse_control_state, plan_to_json
from controller.errors import (
    EngineBadAnswerError,
    EngineConflictError,
    EngineError,
    EngineImpossibleError,
    EngineNotFoundError,
    EngineRefusedError,
    EngineRejectedPlanError,
    EngineTimeoutError,
    EngineUnauthorizedError,
    EngineUnreachableError,
)
from controller.exposition import LoadSample, ServerInfo, parse_loads, parse_metrics, parse_server_info
from controller.tokens import TokenSource

_Record = TypeVar("_Record")

_REFUSALS: Mapping[int, type[EngineRefusedError]] = {
    400: EngineRejectedPlanError,
    401: EngineUnauthorizedError,
    403: EngineUnauthorizedError,
    404: EngineNotFoundError,
    409: EngineConflictError,
    413: EngineRejectedPlanError,
    422: EngineRejectedPlanError,
    503: EngineImpossibleError,
}


@dataclass(frozen=True, slots=True)
class ClientParams:
    """Where and how long; see `EngineSettings`."""

    url: str
    connect_timeout_s: float
    request_timeout_s: float
    put_timeout_s: float
    metrics_timeout_s: float
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class PutAnswer:
    """What came of a `PUT`."""

    state: ControlState
    complete: bool
    """Whether every rank that can be seen acknowledged; `False`: some had not after 2 s (202)."""


class EngineClient:
    """One SGLang server over HTTP.  All methods raise `EngineError`."""

    def __init__(
        self,
        params: ClientParams,
        *,
        api_key: TokenSource,
        admin_key: TokenSource,
        transport: httpx.AsyncBaseTransport | None = None,
        trust: ssl.SSLContext | bool = True,
    ) -> None:
        self._params = params
        self._api_key = api_key
        self._admin_key = admin_key
        self._http = httpx.AsyncClient(
            base_url=params.url,
            transport=transport,
            verify=trust,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(params.put_timeout_s, connect=params.connect_timeout_s),
            limits=httpx.Limits(max_connections=8, max_keepalive_connections=4),
            headers={"accept-encoding": "identity", "user-agent": "specgov"},
        )

    async def loads(self) -> LoadSample:
        """`GET /v1/loads`."""
        return _known(parse_loads(await self._json("GET", "/v1/loads")), "/v1/loads")

    async def metrics(self) -> LoadSample:
        """`GET /metrics`: the gauges that stand in for `/v1/loads`."""
        _, body = await self._request("GET", "/metrics", self._params.metrics_timeout_s)
        return _known(parse_metrics(body.decode("utf-8", "replace")), "/metrics")

    async def server_info(self) -> ServerInfo:
        """`GET /server_info`."""
        timeout_s = self._params.metrics_timeout_s
        return _known(parse_server_info(await self._json("GET", "/server_info", timeout_s)), "/server_info")

    async def control_state(self) -> ControlState:
        """`GET /speculation`."""
        return _known(parse_control_state(await self._json("GET", "/speculation")), "/speculation")

    async def put(self, plan: Plan, *, lease_s: float, sequence: int, holder: str) -> PutAnswer:
        """`PUT /speculation`."""
        content = json.dumps(plan_to_json(plan, lease_s=lease_s, sequence=sequence, holder=holder)).encode()
        timeout_s = self._params.put_timeout_s
        status, body = await self._request("PUT", "/speculation", timeout_s, content=content)
        state = _known(parse_control_state(_decoded(body, "/speculation")), "/speculation")
        return PutAnswer(state, complete=status == httpx.codes.OK)

    async def revoke(self, holder: str) -> ControlState:
        """`DELETE /speculation`: hand back at once."""
        timeout_s = self._params.put_timeout_s
        answer = await self._json("DELETE", "/speculation", timeout_s, params={"holder": holder})
        return _known(parse_control_state(answer), "/speculation")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _json(
        self, method: str, path: str, timeout_s: float | None = None, params: Mapping[str, str] | None = None
    ) -> Any:
        timeout_s = timeout_s or self._params.request_timeout_s
        _, body = await self._request(method, path, timeout_s, params=params)
        return _decoded(body, path)

    async def _request(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of a 2xx answer, all of it within `timeout_s`."""
        at = f"{method} {path}"
        try:
            async with asyncio.timeout(timeout_s):
                headers = self._headers(path, content)
                async with self._http.stream(
                    method, path, content=content, params=params, headers=headers
                ) as answer:
                    body = await self._body(answer, at)
                    status = answer.status_code
                answer.stream = httpx.ByteStream(b"")  # it refers to the answer: a cycle for the collector
        except (TimeoutError, httpx.TimeoutException):
            raise EngineTimeoutError(f"{at}: no complete answer within {timeout_s:g} s") from None
        except httpx.TransportError as error:
            raise EngineUnreachableError(f"{at}: {type(error).__name__}: {error}"[:300]) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise EngineBadAnswerError(f"{at}: {type(error).__name__}: {error}"[:300]) from None
        if not httpx.codes.is_success(status):
            raise _refusal(status, body, at)
        return status, body

    def _headers(self, path: str, content: bytes | None) -> dict[str, str]:
        headers = {"content-type": "application/json"} if content is not None else {}
        key = self._api_key.get()
        if path == "/speculation":
            key = self._admin_key.get() or key
        if key:
            headers["authorization"] = f"Bearer {key}"
        return headers

    async def _body(self, answer: httpx.Response, at: str) -> bytes:
        """The body as sent: encodings were not asked for, and a small one may unpack to anything."""
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise EngineBadAnswerError(f"{at}: content-encoding {encoding[:40]!r} was not asked for")
        limit, chunks, size = self._params.max_body_bytes, [], 0
        async for chunk in answer.aiter_bytes():
            size += len(chunk)
            if size > limit:
                raise EngineBadAnswerError(f"{at}: the answer is above {limit} bytes")
            chunks.append(chunk)
        return b"".join(chunks)


def _decoded(body: bytes, path: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise EngineBadAnswerError(f"{path}: the answer is not JSON: {_excerpt(body)}") from None


def _known(record: _Record | None, path: str) -> _Record:
    if record is None:
        raise EngineBadAnswerError(f"{path}: the answer is not one of SGLang's")
    return record


def _excerpt(body: bytes) -> str:
    """The beginning of an answer that nobody can parse, on one line and without control characters."""
    words = " ".join(body[:120].decode("utf-8", "replace").split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return f'it begins "{shown[:60]}"' if shown else "it is empty"


def _refusal(status: int, body: bytes, at: str) -> EngineError:
    try:
        error = json.loads(body).get("error")
        said = error.get("message") if isinstance(error, dict) else error
    except (ValueError, RecursionError, AttributeError):
        said = None
    message = f"{at}: HTTP {status}: {said if isinstance(said, str) else _excerpt(body)}"[:400]
    if status in _REFUSALS:
        return _REFUSALS[status](status, message)
    if httpx.codes.is_redirect(status) or status < 400:
        return EngineBadAnswerError(message)
    return EngineRefusedError(status, message)
