"""The sidecar's own HTTP API.  Reads are views of the latest turn; only overrides change anything."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from controller.api_docs import docs_page
from controller.api_models import DecisionPage, DecisionRow, ErrorBody, Kind, OverrideBody
from controller.errors import OverrideError
from controller.limits import add_limits
from controller.order_text import MAX_SHOWN, Printable, in_full
from controller.refusals import refusal
from controller.sidecar import Sidecar
from controller.strict_json import StrictRoute
from controller.tokens import TokenSource
from sglang_hooks import __version__

REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody, "description": text}
    for code, text in {
        400: "The body is not one unambiguous JSON value",
        401: "The bearer token is missing or wrong",
        409: "The order cannot be carried out by a sidecar that runs dry",
        422: "A field breaks its rule",
    }.items()
}
LIMITS: dict[int | str, str] = {
    403: "Without a token: the Host or Origin is of another site",
    408: "The body takes too long",
    413: "The body is too large",
    429: "Too many requests; `retry-after` says when to come again",
}
NEXT_PAGE = {
    "operationId": "decisions_v1_decisions_get",
    "parameters": {"before": "$response.body#/next_before"},
    "description": "The page after this one, unless `next_before` is null",
}
log = logging.getLogger(__name__)
Protect = Callable[[Request], Awaitable[None]]


def create_app(sidecar: Sidecar) -> FastAPI:
    """The API of `sidecar`."""
    app = FastAPI(
        title="specgov",
        version=__version__,
        summary="Decides, live, how deep an SGLang server should speculate",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": ErrorBody, "description": text} for code, text in LIMITS.items()},
    )
    app.router.route_class = StrictRoute
    _add_errors(app)
    add_limits(app, sidecar.settings.api, sidecar.clock, lambda request: _shows(request, sidecar.token))
    _add_probes(app, sidecar)
    reads = _reads(sidecar)
    _add_views(app, sidecar, reads)
    _add_override(app, sidecar, reads, _bearer(sidecar.token))
    return app


def reads_guard(sidecar: Sidecar) -> params.Depends:
    """What every view depends on: the token, where reading is protected."""
    found: params.Depends = Depends(_reads(sidecar))
    return found


async def _open(_request: Request) -> None:
    """No token is asked for."""


def _reads(sidecar: Sidecar) -> Protect:
    if not sidecar.settings.api.protect_reads:
        return _open
    return _bearer(sidecar.token, sidecar.read_token)


def _bearer(*accepted: TokenSource) -> Protect:
    """Ask for one of the tokens; none is asked for where none is configured, an empty file opens nothing."""

    async def check(request: Request) -> None:
        if not any(token.configured for token in accepted):
            return
        shown = [_shows(request, token) for token in accepted]  # all of them: it takes the same time
        if not any(shown):
            raise HTTPException(401, "a valid bearer token is needed: Authorization: Bearer TOKEN")

    return check


def _shows(request: Request, token: TokenSource) -> bool:
    """Whether the request carries the token."""
    scheme, _, presented = request.headers.get("authorization", "").partition(" ")
    return token.matches(presented.strip()) and scheme.lower() == "bearer"


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(_request: Request, fault: HTTPException) -> JSONResponse:
        return refusal(fault.status_code, str(fault.detail))

    @app.exception_handler(OverrideError)
    async def impossible(_request: Request, fault: OverrideError) -> JSONResponse:
        return refusal(409 if fault.field is None else 422, str(fault), fault.field)

    @app.exception_handler(Exception)
    async def failed(_request: Request, fault: Exception) -> JSONResponse:
        log.error("a request failed", exc_info=fault, extra={"repeat_key": "request"})
        return refusal(500, "this is a fault of the sidecar; see its log")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, fault: RequestValidationError) -> JSONResponse:
        first = fault.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])[:MAX_SHOWN] or None
        if first["loc"] == ("body",) and not _is_json(content_type := request.headers.get("content-type")):
            return refusal(422, f"Content-Type must be application/json, got {content_type!r}")
        if first["loc"] == ("body",):
            return refusal(422, "the body must be a JSON object")
        return refusal(422, f"{field or 'body'}: {in_full(first)}", field)


def _is_json(content_type: str | None) -> bool:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _add_probes(app: FastAPI, sidecar: Sidecar) -> None:
    @app.get("/healthz", tags=["probes"], responses={503: {"model": ErrorBody}})
    async def healthz() -> Response:
        """200 while the control loop turns, whatever the engine does."""
        if not sidecar.healthy():
            return refusal(503, "the control loop does not turn")
        return JSONResponse({"ok": True})

    @app.get("/readyz", tags=["probes"], responses={503: {"model": ErrorBody}})
    async def readyz() -> Response:
        """200 once the first turn is done, also while SGLang is away."""
        return JSONResponse({"ok": True}) if sidecar.loop.last else refusal(503, "no turn is done yet")

    for path, probe in (("/healthz", healthz), ("/readyz", readyz)):
        app.head(path, include_in_schema=False)(probe)

    @app.get("/metrics", tags=["probes"], response_class=Response)
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(generate_latest(sidecar.registry), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))


def _add_views(app: FastAPI, sidecar: Sidecar, reads: Protect) -> None:
    guard = [Depends(reads)]

    @app.get("/v1/status", tags=["views"], dependencies=guard, responses={401: REFUSALS[401]})
    async def status() -> dict[str, Any]:
        """Mode, since when and why; the guard that rules; load, depth, lease, engine, conditions."""
        return sidecar.status()

    @app.get("/v1/explain", tags=["views"], dependencies=guard, responses={401: REFUSALS[401]})
    async def explain() -> dict[str, Any]:
        """Why this depth now, with the numbers, and what would change it."""
        return sidecar.explain()

    @app.get("/v1/policy", tags=["views"], dependencies=guard, responses={401: REFUSALS[401]})
    async def policy() -> dict[str, Any]:
        """The policy in force, its parameters and schedule; the shadow policy, and how far it is from it."""
        return sidecar.policy()

    @app.get(
        "/v1/decisions",
        tags=["views"],
        dependencies=guard,
        responses={401: REFUSALS[401], 200: {"links": {"next": NEXT_PAGE}}},
    )
    def decisions(
        before: Annotated[
            int | None, Query(ge=1, le=2**53, description="Only rows older than this id")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=500, description="Rows at most, 1 to 500")] = 50,
        kind: Annotated[Kind | None, Query(description="Only `decision`, `override` or `event`")] = None,
        reason: Annotated[str | None, Query(max_length=64, description="Only this reason")] = None,
        since_unix_s: Annotated[
            float | None, Query(ge=0, description="Only rows not older than this")
        ] = None,
    ) -> DecisionPage:
        """The decision log, newest first."""
        rows = sidecar.decisions(
            before=before, limit=limit, kind=kind, reason=reason, since_unix_s=since_unix_s
        )
        shown = [
            DecisionRow(id=r.id, at_unix_s=r.at_unix_s, kind=r.kind, reason=r.reason, body=dict(r.body))
            for r in rows
        ]
        return DecisionPage(decisions=shown, next_before=rows[-1].id if len(rows) == limit else None)


def _add_override(app: FastAPI, sidecar: Sidecar, reads: Protect, writes: Protect) -> None:
    @app.get("/v1/override", tags=["override"], dependencies=[Depends(reads)], responses={401: REFUSALS[401]})
    async def override() -> dict[str, Any]:
        """The order; mode `auto` when there is none. `obstacle`: why it cannot be in force now, or null.

        `unconfirmed`: why it is not known to be, or null: the engine was seen to follow, since
        `in_force_since_unix_s`, last not in `gap_unix_s`. `remedy`: what removes the obstacle.
        `after_restart`: what a restart would put in force instead of one that is not on disk, or null.
        `scope`: `pod`, `fleet`, or `sidecar`: an order may be unread. `suspends`: the fleet's order, or null.
        """
        return sidecar.override()

    @app.put("/v1/override", tags=["override"], dependencies=[Depends(writes)], responses=REFUSALS)
    async def put_override(body: OverrideBody) -> dict[str, Any]:
        """Give an order, instead of the one before; 200: kept. In force: see `unconfirmed`, `obstacle`."""
        return await sidecar.set_override(body.request())

    without_body = {code: text for code, text in REFUSALS.items() if code not in (400, 409)}

    @app.delete("/v1/override", tags=["override"], dependencies=[Depends(writes)], responses=without_body)
    async def delete_override(
        reason: Annotated[Printable, Query(description="Why, for the decision log")] = "",
        actor: Annotated[Printable, Query(description="Who, for the decision log")] = "",
    ) -> dict[str, Any]:
        """End this pod's order, and a crash loop's pin; a fleet's is obeyed then. Idempotent."""
        return await sidecar.clear_override(reason, actor)
