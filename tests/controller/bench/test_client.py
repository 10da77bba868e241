"""One request through both dialects, in virtual time."""

import asyncio
import json

import httpx
import pytest

from controller.bench.client import Client, Dialect
from controller.bench.prompts import Prompt
from controller.bench.records import Lost, RequestRecord
from tests.controller.bench.fake_server import FakeServer, Stream, http

pytestmark = pytest.mark.looptime


async def sent(transport, *, streamed=True, dialect=Dialect.SGLANG):
    """The record of one request."""
    clock = asyncio.get_running_loop().time
    async with http(transport) as client:
        record = RequestRecord(clock(), streamed)
        await Client(client, clock, dialect, "m").send(Prompt(6, text="hi"), record)
    return record


def openai(*events):
    """A transport that streams these payloads, one every 0.1 s."""

    async def chunks():
        for event in events:
            await asyncio.sleep(0.1)
            yield (
                b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\r\n\r\n"
            )

    return httpx.MockTransport(lambda request: httpx.Response(200, stream=Stream(chunks())))


async def test_a_stream_is_stamped_event_by_event():
    """Depth 2 gives 3 tokens every 20 ms: 6 tokens in two events."""
    server = FakeServer()
    server.depth, server.gear = 2, "on"
    record = await sent(server)
    assert [tokens for _, tokens in record.events] == [3, 6]
    assert record.ttft_s == pytest.approx(0.020)
    assert record.tpot_s == pytest.approx(0.020 / 3)


async def test_a_whole_answer_has_one_event_at_its_end():
    """6 tokens at 10 ms each."""
    record = await sent(FakeServer(), streamed=False)
    assert record.events == [(pytest.approx(0.060), 6)]
    assert record.ttft_s is None


async def test_openai_usage_in_every_chunk_counts_tokens_not_chunks():
    """Under speculation a chunk holds several tokens; continuous usage says how many."""
    usage = [{"choices": [{"text": "ab"}], "usage": {"completion_tokens": n}} for n in (3, 5)]
    record = await sent(openai(*usage, b"[DONE]"), dialect=Dialect.OPENAI)
    assert [tokens for _, tokens in record.events] == [3, 5]
    assert (record.guessed, record.settled) == (False, False)


async def test_openai_usage_only_at_the_end_is_spread_over_the_chunks():
    """4 chunks, 10 tokens in the end: the prefill's one token, then 3 a chunk, not 1."""
    chunks = [{"choices": [{"text": "x"}]} for _ in range(4)]
    last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 10}}
    record = await sent(openai(*chunks, last, b"[DONE]"), dialect=Dialect.OPENAI)
    assert [tokens for _, tokens in record.events] == [1, 4, 7, 10]
    assert (record.guessed, record.settled) == (False, True)


async def test_sglang_may_tell_the_tokens_at_the_end_too():
    """3 chunks without a count, and one with it."""
    chunks = [{"text": "x" * n, "meta_info": {}} for n in (1, 2, 3)]
    last = {"text": "xyz", "meta_info": {"completion_tokens": 10}}
    record = await sent(openai(*chunks, last, b"[DONE]"))
    assert [tokens for _, tokens in record.events] == [1, 4, 7, 10]
    assert (record.guessed, record.settled) == (False, True)


async def test_an_event_without_text_is_no_first_token():
    """Some servers begin with an empty one, as soon as they have the request; the token comes 0.1 s later."""
    chunks = [{"choices": [{"text": ""}]}, {"choices": [{"text": "x"}]}, {"choices": [{"text": "y"}]}]
    record = await sent(openai(*chunks, b"[DONE]"), dialect=Dialect.OPENAI)
    assert record.ttft_s == pytest.approx(0.2)
    assert record.output_tokens == 2


async def test_without_any_usage_the_tokens_of_a_chunk_stay_a_guess():
    """One a chunk, and marked as such."""
    chunks = [{"choices": [{"text": "xyz"}]} for _ in range(4)]
    record = await sent(openai(*chunks, b"[DONE]"), dialect=Dialect.OPENAI)
    assert (record.error, record.output_tokens, record.guessed) == (None, 4, True)


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_stream_that_is_cut_off_is_an_error(dialect):
    """It ends in good order, and is half an answer."""
    usage = {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 3}}
    record = await sent(openai(usage), dialect=dialect)
    assert record.error == "BadAnswerError: the stream ended without [DONE]"


@pytest.mark.parametrize(("tokens", "short"), [(6, False), (5, True)])
async def test_an_answer_of_fewer_tokens_than_were_asked_for_is_short(tokens, short):
    """Six were asked for."""
    usage = {"choices": [{"text": "ab"}], "usage": {"completion_tokens": tokens}}
    record = await sent(openai(usage, b"[DONE]"), dialect=Dialect.OPENAI)
    assert (record.error, record.asked_tokens, record.is_short) == (None, 6, short)


async def test_every_request_to_sglang_has_an_id_of_its_own():
    """By which it can be aborted without touching the requests of others; OpenAI's API has none."""
    server = FakeServer()
    records = [await sent(server) for _ in range(3)]
    assert server.rids == [record.rid for record in records]
    assert len({rid.removeprefix("specgov-bench-") for rid in server.rids}) == 3
    assert (await sent(openai(b"[DONE]"), dialect=Dialect.OPENAI)).rid is None


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_refusal_is_recorded_with_its_status(streamed):
    """HTTP 503 is an error of the request, not of the benchmark."""
    record = await sent(httpx.MockTransport(lambda _: httpx.Response(503, text="loading")), streamed=streamed)
    assert record.error is not None
    assert "HTTP 503" in record.error
    assert record.ended_s is not None


async def test_an_error_inside_a_stream_is_an_error():
    """HTTP 200 is not an answer."""
    record = await sent(openai({"error": {"message": "out of memory"}}), dialect=Dialect.OPENAI)
    assert record.error is not None
    assert "out of memory" in record.error


CHAT = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"reasoning_content": "x"}}]},
    {"choices": [{"delta": {"content": "y"}}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}]},
]


async def test_chat_begins_with_its_first_text_not_with_the_role():
    """The role after 0.1 s, a thought after 0.2 s, a word after 0.3 s; 6 tokens by the usage at the end."""
    usage = {"choices": [], "usage": {"completion_tokens": 6}}
    record = await sent(openai(*CHAT, usage, b"[DONE]"), dialect=Dialect.CHAT)
    assert record.events == [(pytest.approx(0.2), 1), (pytest.approx(0.3), 6)]
    assert (record.error, record.settled) == (None, True)


async def test_chat_asks_with_a_message():
    """At its own path."""
    asked = []

    def answer(request):
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"usage": {"completion_tokens": 6}})

    record = await sent(httpx.MockTransport(answer), streamed=False, dialect=Dialect.CHAT)
    ((path, body),) = asked
    assert (path, body["messages"]) == ("/v1/chat/completions", [{"role": "user", "content": "hi"}])
    assert (record.error, record.output_tokens) == (None, 6)


def whole(answer):
    """A transport that sends this JSON at once, whatever was asked for."""

    async def chunks():
        yield json.dumps(answer).encode()

    return httpx.MockTransport(lambda request: httpx.Response(200, stream=Stream(chunks())))


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_with_http_200_is_told_in_the_servers_words(streamed):
    """Some say 200 and then what is wrong."""
    overloaded = whole({"error": {"message": "overloaded"}})
    record = await sent(overloaded, streamed=streamed, dialect=Dialect.OPENAI)
    assert record.error.startswith("BadAnswerError: HTTP 200 with an error: ")
    assert "overloaded" in record.error


async def test_a_server_that_does_not_stream_is_told_so():
    """A whole answer is no cut-off stream."""
    answer = {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 6}}
    record = await sent(whole(answer), dialect=Dialect.OPENAI)
    assert "the server does not stream, it sent a whole answer (--stream-every 0 takes those)" in record.error


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_of_no_tokens_by_its_own_count_says_0(streamed):
    """Nothing was left out: the server said how many."""
    usage = {"choices": [], "usage": {"completion_tokens": 0}}
    transport = openai(usage, b"[DONE]") if streamed else whole(usage)
    record = await sent(transport, streamed=streamed)
    assert record.error == "the answer tells 0 output tokens (completion_tokens)"


@pytest.mark.parametrize(
    ("problem", "how"),
    [(httpx.ConnectError, Lost.REFUSED), (httpx.ReadError, Lost.BROKEN), (ValueError, None)],
)
async def test_a_request_that_lost_its_server_is_told_from_one_that_failed(problem, how):
    """The first shows that the server was away."""

    def fail(_):
        raise problem("no")

    record = await sent(httpx.MockTransport(fail))
    assert (record.lost, record.error) == (how, f"{problem.__name__}: no")


async def test_an_answer_without_tokens_is_an_error():
    """A server that says nothing must not look infinitely fast."""
    record = await sent(openai(b"[DONE]"))
    assert record.error == "the answer tells no output tokens (completion_tokens)"


@pytest.mark.parametrize("last", [b"[DONE]", b'{"error": "aborted"}'])
async def test_a_request_that_was_aborted_is_no_failure_however_the_server_ends_it(last):
    """Without a token, or with an error: it was told to."""
    clock = asyncio.get_running_loop().time
    record = RequestRecord(clock(), streamed=True, aborted=True)
    async with http(openai(last)) as client:
        await Client(client, clock).send(Prompt(6, text="hi"), record)
    assert (record.error, record.lost, record.given_up) == (None, None, True)
