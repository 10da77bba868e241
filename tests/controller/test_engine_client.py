"""What the engine, or whatever answers in its place, may do to the client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import weakref

import httpx
import pytest

from controller import settings as settings_module
from controller import wiring
from controller.control_state import Plan
from controller.errors import (
    EngineBadAnswerError,
    EngineConflictError,
    EngineImpossibleError,
    EngineNotFoundError,
    EngineRefusedError,
    EngineRejectedPlanError,
    EngineTimeoutError,
    EngineUnauthorizedError,
    EngineUnreachableError,
)
from policies.types import Arm, Gear, Probe, Row, Schedule

PLAN = Plan(
    Schedule((Row(1, Arm(3)), Row(64, Arm(0, Gear.COLD)))),
    Probe(Arm(2), every_steps=400, burst_steps=8, min_batch_size=16, max_batch_size=31, bursts=4),
)


def client(handler, **engine):
    flags = {"engine": {"max_body_bytes": 2000, "request_timeout_s": 0.05, **engine}}
    settings = settings_module.load(flags=flags, environ={})
    return wiring.make_client(settings.engine, httpx.MockTransport(handler))


def answering(*args, **kwargs):
    return lambda request: httpx.Response(*args, **kwargs)


async def test_a_plan_is_sent_as_the_protocol_says(fake_state):
    """Gear with depth 0 only, probe with its range, lease, sequence, holder."""
    sent = []

    def handler(request):
        sent.append(request)
        return httpx.Response(200, json=fake_state)

    answer = await client(handler).put(PLAN, lease_s=15.0, sequence=42, holder="me")
    assert answer.complete
    assert (sent[0].method, sent[0].url.path) == ("PUT", "/speculation")
    assert json.loads(sent[0].content) == {
        "schedule": [{"min_batch_size": 1, "depth": 3}, {"min_batch_size": 64, "depth": 0, "gear": "cold"}],
        "probe": {
            "depth": 2,
            "every_steps": 400,
            "burst_steps": 8,
            "min_batch_size": 16,
            "max_batch_size": 31,
            "bursts": 4,
        },
        "lease_s": 15.0,
        "sequence": 42,
        "holder": "me",
    }


async def test_accepted_is_not_complete(fake_state):
    """202: some rank has not acknowledged."""
    made = client(answering(202, json=fake_state))
    assert not (await made.put(PLAN, lease_s=15.0, sequence=1, holder="me")).complete


async def test_the_admin_key_goes_to_speculation_only(fake_state):
    """SGLang refuses the api key there and the admin key elsewhere."""
    sent = {}

    def handler(request):
        sent[request.url.path] = request.headers.get("authorization")
        return httpx.Response(200, json=fake_state)

    made = client(handler, api_key="user", admin_api_key="admin")
    await made.control_state()
    with pytest.raises(EngineBadAnswerError):
        await made.loads()
    assert sent == {"/speculation": "Bearer admin", "/v1/loads": "Bearer user"}
    made = client(handler, api_key="user")
    await made.control_state()
    assert sent["/speculation"] == "Bearer user"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, EngineRejectedPlanError),
        (401, EngineUnauthorizedError),
        (403, EngineUnauthorizedError),
        (404, EngineNotFoundError),
        (409, EngineConflictError),
        (413, EngineRejectedPlanError),
        (422, EngineRejectedPlanError),
        (500, EngineRefusedError),
        (503, EngineImpossibleError),
        (302, EngineBadAnswerError),
    ],
)
async def test_each_status_has_its_error_with_what_was_said(status, error):
    """A redirect is not followed: who sent it is not SGLang."""
    body = {"error": {"field": "schedule[0].depth", "message": "must be a built depth"}}
    made = client(answering(status, json=body, headers={"location": "http://169.254.169.254/"}))
    with pytest.raises(error, match="must be a built depth"):
        await made.put(PLAN, lease_s=15.0, sequence=1, holder="me")


@pytest.mark.parametrize(
    "response",
    [
        {"html": "<html><body>It works!</body></html>"},
        {"json": {"detail": "something else"}},
        {"json": []},
        {"content": b""},
        {"content": b"\xff\xfe"},
        {"content": b"[" * 1900},
        {"content": b"x" * 2001},
        {"content": gzip.compress(b'{"controllable": true}'), "headers": {"content-encoding": "gzip"}},
    ],
    ids=["html", "other json", "list", "empty", "not text", "deep", "too large", "gzip"],
)
async def test_what_is_not_an_answer_of_sglang_is_a_bad_answer(response):
    """HTML, another service, nothing, too much, a compressed answer that nobody asked for."""
    with pytest.raises(EngineBadAnswerError):
        await client(answering(200, **response)).control_state()


async def test_a_body_that_never_ends_is_not_read_to_its_end():
    """Reading stops at the limit."""
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 100
            yield b"x" * 100

    with pytest.raises(EngineBadAnswerError, match="above 2000 bytes"):
        await client(answering(200, content=endless())).metrics()
    assert sent < 3000


async def test_an_answer_that_drips_runs_out_of_time():
    """The limit is for the whole answer, not for each piece."""

    async def dripping():
        while True:
            await asyncio.sleep(0.01)
            yield b" "

    with pytest.raises(EngineTimeoutError, match=r"GET /speculation: no complete answer within 0.05 s"):
        await client(answering(200, content=dripping())).control_state()


@pytest.mark.parametrize("fault", [httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError])
async def test_a_broken_connection_is_unreachable(fault):
    """Refused, reset, half an answer."""

    def handler(request):
        raise fault("no")

    with pytest.raises(EngineUnreachableError, match=fault.__name__):
        await client(handler).control_state()


async def test_keys_stand_in_no_error():
    """Whatever goes wrong."""
    made = client(answering(401, json={"error": "Unauthorized"}), api_key="hunter2")
    with pytest.raises(EngineUnauthorizedError) as caught:
        await made.control_state()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_leaves_nothing_for_the_collector(fake_state, status):
    """httpx ties answer and stream to each other: with bodies of megabytes, garbage that waits counts."""
    answers = []

    def handler(request):
        answer = httpx.Response(status, json=fake_state)
        answers.append(weakref.ref(answer))
        return answer

    made = client(handler)
    gc.disable()
    try:
        with contextlib.suppress(EngineRefusedError):
            await made.control_state()
        assert [answer() for answer in answers] == [None]
    finally:
        gc.enable()
