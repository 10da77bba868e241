"""A server that refuses what it does not know is asked for less."""

import asyncio
import json

import httpx
import pytest

from controller.bench import extras, report
from controller.bench.client import Client, Dialect
from controller.bench.outcome import Outcome
from controller.bench.prompts import Prompt
from tests.controller.bench.fake_server import http

pytestmark = pytest.mark.looptime
PROMPT = Prompt(900, text="hi")


class Strict(httpx.AsyncBaseTransport):
    """Refuses any request with a field of `unknown`, on whatever level."""

    def __init__(self, unknown, status=400):
        self.unknown, self.status, self.asked = unknown, status, []

    async def handle_async_request(self, request):
        body = json.loads(await request.aread())
        self.asked.append(body)
        fields = set(body) | set(body.get("stream_options", {}))
        return httpx.Response(self.status if fields & self.unknown else 200, text="data: [DONE]\n\n")


async def tried(transport, *, streamed=True):
    """What is left out for a server, and in how many requests that was found."""
    async with http(transport) as client:
        asks = Client(client, asyncio.get_running_loop().time, Dialect.CHAT, "m")
        return sorted(await extras.refused(asks, PROMPT, streamed=streamed))


@pytest.mark.parametrize(
    ("unknown", "status", "left_out", "requests"),
    [
        (set(), 400, [], 1),
        ({"continuous_usage_stats"}, 400, ["continuous_usage_stats"], 2),
        ({"ignore_eos"}, 422, ["ignore_eos"], 3),
        ({"continuous_usage_stats", "ignore_eos"}, 400, ["continuous_usage_stats", "ignore_eos"], 4),
        ({"stream_options"}, 422, ["stream_options"], 5),
        ({"stream_options", "ignore_eos"}, 400, ["ignore_eos", "stream_options"], 6),
    ],
)
async def test_as_little_is_left_out_as_the_server_refuses(unknown, status, left_out, requests):
    """Found with requests of one token."""
    server = Strict(unknown, status)
    assert await tried(server) == left_out
    assert [body["max_tokens"] for body in server.asked] == [1] * requests
    assert not (set(server.asked[-1]) | set(server.asked[-1].get("stream_options", {}))) & unknown


@pytest.mark.parametrize(("unknown", "status"), [({"model"}, 400), ({"ignore_eos"}, 500)])
async def test_what_is_refused_for_another_reason_is_asked_as_ever(unknown, status):
    """The warm-up then fails, with the server's own words."""
    assert await tried(Strict(unknown, status)) == []


async def test_whole_answers_are_not_asked_for_what_only_streams_have():
    server = Strict({"ignore_eos"})
    assert await tried(server, streamed=False) == ["ignore_eos"]
    assert not any("stream_options" in body for body in server.asked)


async def test_a_server_that_does_not_answer_in_time_has_refused_nothing():
    """30 s, once."""
    server = Strict(set())

    async def never(request):
        await asyncio.sleep(3600)

    server.handle_async_request = never
    assert await tried(server) == []
    assert asyncio.get_running_loop().time() == pytest.approx(30)


async def test_a_server_that_is_not_there_is_told_at_once():
    def nobody(request):
        raise httpx.ConnectError("no")

    with pytest.raises(httpx.ConnectError):
        await tried(httpx.MockTransport(nobody))


async def test_what_was_left_out_is_said_with_what_it_costs():
    outcome = Outcome({"refused": {"other": ["continuous_usage_stats", "ignore_eos"]}}, [])
    assert list(report.warnings(outcome)) == [
        (
            "other refuses continuous_usage_stats and ignore_eos (HTTP 400 or 422) and was asked without: "
            "tokens of a stream are told at its end, those of running ones estimated by the others; "
            "answers may be shorter than asked for."
        )
    ]
