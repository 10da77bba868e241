"""`/speculation` over HTTP: status codes, bodies and limits, as `docs/protocol.md` promises them."""

import asyncio

import fastapi
import httpx
import pytest

from sglang_hooks.control_plane import ControlPlane
from sglang_hooks.endpoint import add_routes
from tests.hooks.fakes import FakeEngine


def plan(sequence=1, **changes):
    body = {
        "schedule": [{"min_batch_size": 1, "depth": 3}, {"min_batch_size": 8, "depth": 0}],
        "lease_s": 15,
        "sequence": sequence,
        "holder": "a",
    }
    body.update(changes)
    return body


class Server:
    """The router on an app, over a fake engine."""

    def __init__(self, engine):
        self.engine = engine
        app = self.app = fastapi.FastAPI()
        plane = ControlPlane(engine, engine.board, sglang_version="0.5.23")
        add_routes(app, plane, mark_read=self.mark("read"), mark_write=self.mark("write"))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://engine")

    def mark(self, level):
        def decorate(function):
            function.level = level
            return function

        return decorate

    async def put(self, body):
        kind = "content" if isinstance(body, str | bytes) else "json"
        return await self.client.put("/speculation", **{kind: body})

    async def state(self):
        return (await self.client.get("/speculation")).json()


@pytest.fixture
async def server():
    """A server with two TP ranks."""
    server = Server(FakeEngine(tp_size=2))
    async with server.client:
        yield server


async def test_put_get_and_delete(server):
    """The way of a plan: in force, seen, handed back."""
    answer = await server.put(plan(42))
    assert answer.status_code == 200
    state = await server.state()
    assert (state["protocol"], state["state"], state["sequence"]) == (1, "governed", 42)
    assert state["schedule"] == [
        {"min_batch_size": 1, "depth": 3},
        {"min_batch_size": 8, "depth": 0, "gear": "warm"},
    ]
    assert state["ranks_agree"] is True
    answer = await server.client.delete("/speculation", params={"holder": "a"})
    assert (answer.status_code, answer.json()["state"]) == (200, "fallback")


async def test_an_answer_has_every_field_of_the_protocol(server):
    """Readers may rely on the names in `docs/protocol.md`; absent values are null, never left out."""
    state = await server.state()
    assert list(state) == [
        "protocol", "plugin_version", "sglang_version", "controllable", "reason", "built_depths", "gears",
        "initial_depth", "fallback", "state", "schedule", "probe", "sequence", "holder", "lease",
        "plain_decode", "chain_verify", "ranks", "ranks_agree", "telemetry",
    ]  # fmt: skip
    assert list(state["telemetry"][0]) == [
        "dp_rank", "started_unix_s", "decode_steps", "prefill_batches", "switches", "probe_steps",
        "probe_bursts", "hook_errors", "depth", "gear", "batch_size", "cells",
    ]  # fmt: skip
    assert list(state["ranks"][0]) == ["dp_rank", "tp_rank", "sequence", "order", "decode_steps", "digest"]


HOSTILE = {
    "unknown depth": (plan(43, schedule=[{"min_batch_size": 1, "depth": 9}]), 422, "schedule[0].depth"),
    "gap": (plan(43, schedule=[{"min_batch_size": 4, "depth": 1}]), 422, "schedule[0].min_batch_size"),
    "negative": (plan(43, schedule=[{"min_batch_size": 1, "depth": -1}]), 422, "schedule[0].depth"),
    "string": (plan(43, schedule=[{"min_batch_size": 1, "depth": "1"}]), 422, "schedule[0].depth"),
    "huge table": (
        plan(43, schedule=[{"min_batch_size": i + 1, "depth": 1} for i in range(1000)]),
        422,
        "schedule",
    ),
    "old sequence": (plan(42), 409, "sequence"),
    "other holder": (plan(43, holder="b"), 409, "holder"),
    "not a number": ('{"schedule": [], "lease_s": NaN, "sequence": 43, "holder": "a"}', 422, "schedule"),
    "NaN lease": (
        '{"schedule": [{"min_batch_size": 1, "depth": 1}], "lease_s": NaN, "sequence": 43, "holder": "a"}',
        422,
        "lease_s",
    ),
    "deep JSON": ('{"schedule":' + "[" * 20_000 + "]" * 20_000 + "}", 400, None),
    "a megabyte": ("[" + "1," * 500_000 + "1]", 413, None),
    "the same key twice": ('{"sequence": 43, "sequence": 44}', 400, None),
    "a very long number": ('{"sequence": 1' + "0" * 5000 + "}", 400, None),
    "not JSON": ("depth=1", 400, None),
    "not UTF-8": (b"\xff\xfe{", 400, None),
    "empty": ("", 400, None),
    "list": ("[]", 422, "body"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
async def test_a_hostile_put_is_refused_by_name_and_changes_nothing(server, name):
    """4xx with the field; the plan in force stays in force, on the ranks too."""
    await server.put(plan(42))
    body, status, field = HOSTILE[name]
    answer = await server.put(body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
    assert answer.json()["error"]["message"]
    state = await server.state()
    assert (state["state"], state["sequence"], state["holder"]) == ("governed", 42, "a")
    assert len(server.engine.sent) == 1


async def test_a_server_that_cannot_be_governed_says_so():
    """503 with the reason, and the state stays readable."""
    server = Server(FakeEngine(reason="speculation is off"))
    async with server.client:
        answer = await server.put(plan())
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": {"field": None, "message": "speculation is off"}},
        )
        assert (await server.state())["controllable"] is False


async def test_reading_and_writing_carry_their_own_access_level(server):
    """SGLang looks for a mark on the endpoint among the routes of the app itself, and nowhere deeper."""
    levels = {
        method: route.endpoint.level
        for route in server.app.router.routes
        if getattr(route, "path", None) == "/speculation"
        for method in route.methods
    }
    assert levels == {"GET": "read", "PUT": "write", "DELETE": "write"}


async def test_plans_that_race_come_out_in_order(server):
    """Twenty at once from one holder: the ranks end with the newest that was accepted, all alike."""
    answers = await asyncio.gather(
        *[server.put(plan(n, schedule=[{"min_batch_size": 1, "depth": n % 4}])) for n in range(1, 21)]
    )
    accepted = [n for n, answer in enumerate(answers, 1) if answer.status_code == 200]
    assert accepted
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert server.engine.depths_at(1) == [accepted[-1] % 4] * 2


async def test_a_client_that_goes_away_during_a_put_is_not_answered_and_leaves_no_traceback(server, caplog):
    """Nothing is done and SGLang's log has no line of it, but at debug."""
    sent = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    scope = {"type": "http", "method": "PUT", "path": "/speculation", "query_string": b"", "headers": []}

    async def receive():
        return next(sent)

    async def send(_message):
        pass

    await server.app(scope, receive, send)
    assert not [record for record in caplog.records if record.levelname in ("INFO", "WARNING", "ERROR")]
    assert (await server.state())["state"] == "native"


@pytest.mark.parametrize(("depth", "gear"), [(0, "on"), (0, "idle"), (0, 7), (2, "warm")])
async def test_a_gear_that_does_not_go_is_refused_with_those_that_may_be_asked_for(server, depth, gear):
    """`on` is what depth above 0 means, and is asked of nobody."""
    answer = await server.put(plan(schedule=[{"min_batch_size": 1, "depth": depth, "gear": gear}]))
    assert answer.status_code == 422
    rule = "schedule[0].gear must be warm, cold or frozen at depth 0 and is left out at depth > 0, got"
    assert answer.json()["error"]["message"] == f"{rule} {gear!r}"
