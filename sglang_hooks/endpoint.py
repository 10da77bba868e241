"""`GET/PUT/DELETE /speculation` on a FastAPI app; everything behind it is in `control_plane`."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from sglang_hooks.control_plane import ControlError, ControlPlane
from sglang_hooks.schedule import InvalidPlanError

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 64 * 1024

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]


def add_routes(app: FastAPI, plane: ControlPlane, *, mark_read: Mark, mark_write: Mark) -> None:
    """Add the three routes to `app` itself.

    `mark_read` and `mark_write` decorate the endpoints with the host's access level.  SGLang looks it up
    among the app's own routes: in FastAPI releases that keep an included router as one route, it would
    not find the endpoints of a router and would let the API key steer.
    """

    @mark_read
    async def get_speculation() -> JSONResponse:
        async def get() -> tuple[int, dict[str, Any]]:
            return 200, await plane.state()

        return await _answer(get)

    @mark_write
    async def put_speculation(request: Request) -> Response:
        async def put() -> tuple[int, dict[str, Any]]:
            return await plane.put(parse_json(await read_body(request)))

        try:
            return await _answer(put)
        except ClientDisconnect:
            log.debug("PUT /speculation: the client went away before its body was there")
            return Response(status_code=499)  # nobody reads it; what nginx calls this

    @mark_write
    async def delete_speculation(holder: str | None = None) -> JSONResponse:
        return await _answer(lambda: plane.delete(holder))

    app.add_api_route("/speculation", get_speculation, methods=["GET"])
    app.add_api_route("/speculation", put_speculation, methods=["PUT"])
    app.add_api_route("/speculation", delete_speculation, methods=["DELETE"])


async def read_body(request: Request) -> bytes:
    """The body, read no further than `MAX_BODY_BYTES`; raises `ControlError` 413."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ControlError(413, f"body must be at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


def parse_json(body: bytes) -> object:
    """Raises `ControlError` 400 on anything that is not one unambiguous JSON value."""
    try:
        return json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ControlError(400, f"body must be JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same key twice")
    return fields


async def _answer(call: Callable[[], Awaitable[tuple[int, dict[str, Any]]]]) -> JSONResponse:
    try:
        status, content = await call()
    except InvalidPlanError as error:
        status, content = 422, {"error": {"field": error.field, "message": str(error)}}
    except ControlError as error:
        status, content = error.status, {"error": {"field": error.field, "message": str(error)}}
    return JSONResponse(content, status_code=status)
