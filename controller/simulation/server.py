"""The embedded engine: the simulated engine behind the HTTP surface of SGLang.

`/speculation` is the hook's own router and control plane.  Text in and out means nothing: a prompt
counts a token for every four characters, and an answer is as many words as tokens were asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from controller.simulation.acceptance import Acceptance
from controller.simulation.arms import arm_rows
from controller.simulation.controls import HookControl, RankLink
from controller.simulation.cost_profile import CostProfile
from controller.simulation.engine import EngineConfig, VirtualEngine
from controller.simulation.live import LiveEngine, Ticket
from controller.simulation.surface import SGLANG_VERSION, Surface, server_info
from sglang_hooks.ack_board import MAX_SLOTS, SLOT_BYTES, AckBoard
from sglang_hooks.control_plane import ControlPlane
from sglang_hooks.endpoint import add_routes

DEFAULT_OUTPUT_TOKENS = 128
CHARACTERS_PER_TOKEN = 4
WORD = " token"


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """An embedded engine, ready to be served."""

    app: FastAPI
    live: LiveEngine
    control: HookControl


def make_server(
    profile: CostProfile,
    acceptance: Acceptance,
    config: EngineConfig | None = None,
    *,
    seed: int = 1,
    speed: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> SimulatedServer:
    """An engine with this profile whose time starts now; run `live.run()` beside the app.

    Must be called inside the event loop that serves it.  `clock` is monotonic; `wall_clock` goes into
    timestamps only.
    """
    config = config or EngineConfig()
    arms = list(arm_rows(profile, plain_decode=config.plain_decode))
    board = AckBoard(bytearray(MAX_SLOTS * SLOT_BYTES))
    control = HookControl(arms, started_unix_s=wall_clock(), board=board)
    engine = VirtualEngine(profile, acceptance, control, np.random.default_rng(seed), config)
    model = f"simulated/{profile.name}"
    surface = Surface(engine, wall_clock, model)
    live = LiveEngine(engine, surface, clock, speed=speed)
    plane = ControlPlane(RankLink(control.rank), board, sglang_version=SGLANG_VERSION, clock=clock)
    return SimulatedServer(_make_app(live, plane, profile, model), live, control)


def _make_app(live: LiveEngine, plane: ControlPlane, profile: CostProfile, model: str) -> FastAPI:
    app = FastAPI(title="Simulated SGLang", version=SGLANG_VERSION)
    add_routes(app, plane, mark_read=lambda f: f, mark_write=lambda f: f)
    _add_state_routes(app, live, profile, model)
    _add_generate_routes(app, live, model)
    return app


def _add_state_routes(app: FastAPI, live: LiveEngine, profile: CostProfile, model: str) -> None:
    @app.get("/health")
    @app.get("/health_generate")
    async def health() -> Response:
        return Response(status_code=200)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(live.surface.metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/loads")
    async def loads() -> dict[str, Any]:
        return live.surface.loads()

    @app.get("/server_info")
    async def info() -> dict[str, Any]:
        return server_info(live.engine, model, {"name": profile.name, **profile.about})

    @app.get("/model_info")
    async def model_info() -> dict[str, Any]:
        return {"model_path": model, "tokenizer_path": model, "is_generation": True}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "simulated"}]}


def _add_generate_routes(app: FastAPI, live: LiveEngine, model: str) -> None:
    @app.post("/generate")
    async def generate(body: dict[str, Any]) -> Response:
        ids = body.get("input_ids")
        prompt = len(ids) if isinstance(ids, list) else _count_tokens(body.get("text"), "text")
        sampling = body.get("sampling_params") or {}
        output = _whole(
            sampling.get("max_new_tokens", DEFAULT_OUTPUT_TOKENS), "sampling_params.max_new_tokens"
        )
        ticket = _submit(live, prompt, output, body.get("rid"))
        if body.get("stream"):
            return _stream(live, ticket, lambda n: _generated(ticket, n))
        await _finished(live, ticket)
        return JSONResponse(_generated(ticket, ticket.generated))

    @app.post("/abort_request")
    async def abort(body: dict[str, Any]) -> Response:
        live.abort(str(body.get("rid")))
        return Response(status_code=200)

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any]) -> Response:
        prompt = _count_tokens(body.get("prompt"), "prompt")
        return await _openai(live, body, prompt, _Shape("cmpl", "text_completion", model, chat=False))

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Response:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise HTTPException(
                400, f"messages must be a list with at least one message, got {messages!r:.60}"
            )
        text = " ".join(str(m.get("content")) for m in messages if isinstance(m, dict))
        shape = _Shape("chatcmpl", "chat.completion", model, chat=True)
        return await _openai(live, body, _count_tokens(text, "messages"), shape)


async def _openai(live: LiveEngine, body: dict[str, Any], prompt: int, shape: _Shape) -> Response:
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_OUTPUT_TOKENS
    ticket = _submit(live, prompt, _whole(asked, "max_tokens"))
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        last = [shape.usage_chunk(ticket)] if usage else []
        return _stream(live, ticket, lambda n: shape.chunk(ticket, n), last)
    await _finished(live, ticket)
    return JSONResponse(shape.whole(ticket))


def _stream(
    live: LiveEngine, ticket: Ticket, event: Any, last: list[dict[str, Any]] | None = None
) -> Response:
    async def events() -> AsyncIterator[str]:
        try:
            async for new in ticket.tokens():
                yield f"data: {json.dumps(event(new))}\n\n"
            for extra in last or []:
                yield f"data: {json.dumps(extra)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            live.cancel(ticket)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _finished(live: LiveEngine, ticket: Ticket) -> None:
    try:
        await ticket.finished()
    finally:
        live.cancel(ticket)


def _submit(live: LiveEngine, prompt: int, output: int, rid: object = None) -> Ticket:
    try:
        return live.submit(prompt, output, None if rid is None else str(rid))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def _count_tokens(text: object, field: str) -> int:
    if not isinstance(text, str):
        raise HTTPException(400, f"{field} must be a string, got {text!r:.60}")
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def _whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HTTPException(400, f"{field} must be a whole number >= 1, got {value!r:.60}")
    return value


def _generated(ticket: Ticket, new: int) -> dict[str, Any]:
    """One answer (or stream event, which is cumulative too) of SGLang's `/generate`."""
    del new
    request = ticket.request
    reason: dict[str, Any] | None = None
    if ticket.aborted:
        reason = {"type": "abort"}
    elif ticket.done:
        reason = {"type": "length", "length": request.output_tokens}
    meta: dict[str, Any] = {
        "id": ticket.rid or f"sim-{request.index}",
        "finish_reason": reason,
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": ticket.generated,
        "cached_tokens": 0,
    }
    if request.finish_s is not None:
        meta["e2e_latency"] = request.finish_s - request.arrival_s
    return {"text": WORD * ticket.generated, "output_ids": [0] * ticket.generated, "meta_info": meta}


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the two OpenAI endpoints write the same thing."""

    prefix: str
    kind: str
    model: str
    chat: bool

    def whole(self, ticket: Ticket) -> dict[str, Any]:
        text = WORD * ticket.generated
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": "length"}
        return {**self._head(ticket, self.kind), "choices": [choice], "usage": _usage(ticket)}

    def chunk(self, ticket: Ticket, new: int) -> dict[str, Any]:
        content = {"delta": {"content": WORD * new}} if self.chat else {"text": WORD * new}
        choice = {"index": 0, **content, "finish_reason": "length" if ticket.done else None}
        return {**self._head(ticket, self._chunk_kind), "choices": [choice]}

    def usage_chunk(self, ticket: Ticket) -> dict[str, Any]:
        usage = _usage(ticket) | {
            "completion_tokens": ticket.request.output_tokens,
            "total_tokens": ticket.request.prompt_tokens + ticket.request.output_tokens,
        }
        return {**self._head(ticket, self._chunk_kind), "choices": [], "usage": usage}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else self.kind

    def _head(self, ticket: Ticket, kind: str) -> dict[str, Any]:
        number = ticket.request.index
        return {"id": f"{self.prefix}-sim-{number}", "object": kind, "created": 0, "model": self.model}


def _usage(ticket: Ticket) -> dict[str, int]:
    prompt, output = ticket.request.prompt_tokens, ticket.generated
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
