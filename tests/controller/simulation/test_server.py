"""The embedded engine over HTTP, in process and in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from controller.control_state import parse_control_state
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.engine import EngineConfig
from controller.simulation.server import SimulatedServer, make_server

PLAN = {"schedule": [{"min_batch_size": 1, "depth": 1}], "lease_s": 15, "sequence": 1, "holder": "test"}


class Clock:
    """Seconds that move when told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Client:
    """Sends requests and lets the engine's time pass until they are answered."""

    http: httpx.AsyncClient
    server: SimulatedServer
    clock: Clock

    async def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        answer = asyncio.create_task(self.http.request(method, path, json=body))
        while not answer.done():
            await asyncio.wait({answer}, timeout=0)
            self.clock.now_s += 0.001
            self.server.live.catch_up()
        return answer.result()

    async def post(self, path: str, body: object) -> httpx.Response:
        return await self.send("POST", path, body)

    async def get(self, path: str) -> httpx.Response:
        return await self.send("GET", path)


@pytest.fixture
async def client(profile) -> AsyncIterator[Client]:
    clock = Clock()
    config = EngineConfig(noise=0.0, switch_s=0.0, kv_tokens=10_000)
    server = make_server(profile, parse_acceptance("1"), config, clock=clock, wall_clock=clock)
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None) as http:
        yield Client(http, server, clock)


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_generate_answers_after_the_time_that_the_engine_takes(client):
    """10 tokens at depth 2, all accepted: 5 + 0.1 ms of prefill and 3 steps of 16 ms are 53 ms."""
    body = {"input_ids": [1] * 10, "sampling_params": {"max_new_tokens": 10}}
    answer = (await client.post("/generate", body)).json()
    assert answer["meta_info"]["completion_tokens"] == 10
    assert answer["meta_info"]["prompt_tokens"] == 10
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 10}
    assert answer["meta_info"]["e2e_latency"] == pytest.approx(0.0531, abs=1e-6)
    assert len(answer["output_ids"]) == 10


async def test_a_request_is_aborted_by_the_name_that_its_client_gave_it(client):
    """Of two of 1000 tokens the one leaves the batch at once, and is told so; the other goes on."""
    body = {"text": "x", "sampling_params": {"max_new_tokens": 1000}}
    both = [asyncio.create_task(client.post("/generate", {**body, "rid": rid})) for rid in ("mine", "other")]
    for _ in range(100):
        await asyncio.sleep(0)
    assert client.server.live.engine.running == 2
    await client.post("/abort_request", {"rid": "mine"})
    answer = (await both[0]).json()["meta_info"]
    assert (answer["id"], answer["finish_reason"]) == ("mine", {"type": "abort"})
    assert answer["completion_tokens"] < 1000
    assert client.server.live.engine.running == 1
    assert (await both[1]).json()["meta_info"]["completion_tokens"] == 1000


async def test_a_stream_of_generate_is_cumulative_like_sglangs(client):
    """Each event holds all tokens so far; the last one holds the finish reason."""
    body = {"text": "x" * 40, "sampling_params": {"max_new_tokens": 30}, "stream": True}
    seen = events((await client.post("/generate", body)).text)
    counts = [event["meta_info"]["completion_tokens"] for event in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 30
    assert len(counts) > 3
    assert [bool(event["meta_info"]["finish_reason"]) for event in seen] == [False] * (len(seen) - 1) + [True]


async def test_openai_completions_and_chat_count_their_tokens(client):
    """As many words as tokens, and the usage beside them, streamed or not."""
    whole = (await client.post("/v1/completions", {"prompt": "x" * 40, "max_tokens": 7})).json()
    assert whole["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    assert len(whole["choices"][0]["text"].split()) == 7
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    seen = events((await client.post("/v1/chat/completions", body)).text)
    text = "".join(choice["delta"]["content"] for event in seen for choice in event["choices"])
    assert len(text.split()) == 7
    assert seen[-1]["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", {"text": 5}, "text"),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 20_000}}, "at most 10000 together"),
        ("/v1/completions", {"prompt": ["a"]}, "prompt"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
    ],
)
async def test_a_bad_request_gets_400_and_the_field(client, path, body, field):
    """Nothing of it reaches the engine."""
    answer = await client.post(path, body)
    assert answer.status_code == 400
    assert field in answer.json()["detail"]


async def test_a_plan_is_put_in_force_by_the_hooks_own_endpoint(client):
    """200 with the acknowledged state; the next request runs at the depth asked for."""
    answer = await client.send("PUT", "/speculation", PLAN)
    assert answer.status_code == 200
    await client.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 10}})
    state = parse_control_state((await client.get("/speculation")).json())
    assert (state.state, state.holder, state.sequence) == ("governed", "test", 1)
    assert {cell.arm.depth for cell in state.telemetry[0].cells} == {1}
    assert state.built_depths == (0, 1, 2)
    assert state.plain_decode is True


async def test_a_hostile_plan_gets_422_and_the_field(client):
    """The hook's own validation: a depth that is not built changes nothing."""
    bad = {**PLAN, "schedule": [{"min_batch_size": 1, "depth": 9}]}
    answer = await client.send("PUT", "/speculation", bad)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "schedule[0].depth"
    assert (await client.get("/speculation")).json()["state"] == "native"


async def test_a_lease_that_is_not_renewed_ends(client):
    """15 s later the engine is on its fallback."""
    await client.send("PUT", "/speculation", PLAN)
    client.clock.now_s += 15
    assert (await client.get("/speculation")).json()["state"] == "fallback"


async def test_the_pages_that_sglang_has_are_there(client):
    """Health, models, loads, metrics, server info."""
    for path in ("/health", "/v1/models", "/model_info", "/v1/loads", "/metrics", "/server_info"):
        assert (await client.get(path)).status_code == 200, path
