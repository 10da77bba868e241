"""Serves the status page and the two views that only it needs, and what was learned.

The page is static: HTML, CSS and JavaScript modules from this package, a closed set read once at the
start.  It needs nothing from elsewhere, and its policy allows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.params import Depends

from controller import knowledge_file
from controller.benefit_recorder import BenefitRecorder
from controller.history import History
from controller.knowledge import KnowledgeKeeper

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


def add_page(app: FastAPI) -> None:
    """`/` and its files under `/ui/`.  Open to all: the page itself holds no data."""
    for name, content in _files().items():
        path = "/" if name == "index.html" else f"/ui/{name}"
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        send = _sender(content, media_type)
        app.add_api_route(path, send, methods=["GET", "HEAD"], include_in_schema=False)


def add_records(app: FastAPI, history: History, benefit: BenefitRecorder, guard: Sequence[Depends]) -> None:
    """`/v1/history` and `/v1/benefit`."""

    @app.get("/v1/history", tags=["views"], dependencies=guard)
    async def past(
        since_unix_s: Annotated[
            float, Query(allow_inf_nan=False, description="Only samples after this")
        ] = 0.0,
    ) -> dict[str, Any]:
        """Load, depth in use and throughput of the last half hour, a sample a second, oldest first."""
        return history.to_json(since_unix_s)

    @app.get("/v1/benefit", tags=["views"], dependencies=guard)
    async def brought() -> dict[str, Any]:
        """Tokens against always off, on and the best measured; the `share` of which that is known; speeds."""
        return benefit.to_json()


def add_knowledge(app: FastAPI, keeper: KnowledgeKeeper, guard: Sequence[Depends]) -> None:
    """`/v1/knowledge`."""

    @app.get("/v1/knowledge", tags=["views"], dependencies=guard)
    async def knowledge() -> dict[str, Any]:
        """What was learned, by deployment; a file that other pods can start from (`store.seed`)."""
        return knowledge_file.to_json(keeper.export())


def _files() -> dict[str, bytes]:
    folder = resources.files("controller") / "ui"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.is_file() and file.name.rpartition(".")[2] in MEDIA_TYPES
    }


def _sender(content: bytes, media_type: str) -> Callable[[], Response]:
    def send() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return send
