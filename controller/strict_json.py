"""Reads request bodies as the engine's endpoint does: one unambiguous JSON value, or a 400 that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute


class RepeatedKeyError(ValueError):
    """An object has a key twice, and who wrote it meant one of the two."""


def parse(body: bytes) -> Any:
    """The value; raises `HTTPException` 400 on what is not JSON, or has a key twice in one object."""
    try:
        text = body.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        at, why = error.start, "not UTF-8"
    except json.JSONDecodeError as error:
        at, why = len(text[: error.pos].encode()), error.msg
    except RepeatedKeyError as error:
        raise HTTPException(400, str(error)) from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply: an order is one flat object") from None
    except ValueError as error:
        raise HTTPException(400, f"the body cannot be read: {str(error)[:200]}") from None
    raise HTTPException(400, f"the body is not JSON at byte {at}: {why}")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for `json.loads`; raises `RepeatedKeyError`."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise RepeatedKeyError(f"an object has the key {key[:64]!r} twice: leave one out")
        fields[key] = value
    return fields


class StrictRequest(Request):
    """A request whose `json` is `parse`."""

    async def json(self) -> Any:
        """The body."""
        return parse(await self.body())


class StrictRoute(APIRoute):
    """A route that is given a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, on our request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict
