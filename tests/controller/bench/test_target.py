"""What a server under test is told at the end of a load, and when its clients count as served."""

import asyncio
import random

import pytest

from controller.bench.arms import parse_arm
from controller.bench.client import Client
from controller.bench.load import OpenLoop
from controller.bench.offered import offered
from controller.bench.prompts import Prompt, RandomTokens
from controller.bench.records import window_stats
from controller.bench.target import ServerUnderTest, Target
from tests.controller.bench.fake_server import FakeServer, http

pytestmark = pytest.mark.looptime
SOURCE = RandomTokens((8, 8), (100, 100), (1, 9))
LONG = RandomTokens((8, 8), (10_000, 10_000), (1, 9))


async def test_only_the_benchs_own_requests_are_aborted_at_the_end():
    """Others may have requests on the server: each of the four that run is named, and no more."""
    server = FakeServer()
    async with http(server) as client:
        target = ServerUnderTest("engine", Client(client, asyncio.get_running_loop().time))
        await target.begin(SOURCE, random.Random(1), stream_every=2).scale(4)
        await asyncio.sleep(3)
        running = server.rids[-4:]
        await target.end()
    assert len(server.rids) > 4
    assert sorted(body["rid"] for body in server.aborted) == sorted(running)
    assert all(set(body) == {"rid"} for body in server.aborted)


@pytest.mark.parametrize("lost", [0, 4])
async def test_no_request_outlives_its_client(lost):
    """Ended by the server, not only let go of; an order that came before its request is given again."""
    server = FakeServer()
    server.heeds_aborts_after = lost
    async with http(server) as client:
        target = ServerUnderTest("engine", Client(client, asyncio.get_running_loop().time))
        loop = target.begin(LONG, random.Random(1), stream_every=2)
        await loop.scale(4)
        await asyncio.sleep(0.1)
        await target.end()
        assert server.running == 0
    assert not any(record.cancelled for record in loop.records)
    assert len(server.aborted) == 4 + lost


async def test_a_server_that_heeds_no_abort_is_left_all_the_same():
    """Three orders, 0.3 s apart, then the connections are closed."""
    server = FakeServer({0: 36.0})
    server.heeds_aborts_after = 1000
    clock = asyncio.get_running_loop().time
    async with http(server) as client:
        target = ServerUnderTest("engine", Client(client, clock))
        await target.begin(SOURCE, random.Random(1), stream_every=1).scale(2)
        await asyncio.sleep(0.1)
        await target.end()
    assert len(server.aborted) == 6
    assert clock() == pytest.approx(1.0)


async def test_the_requests_that_a_trace_waits_for_in_vain_are_aborted_too():
    """One of 36 s a token, after 1 s."""
    server = FakeServer({0: 36.0})
    async with http(server) as client:
        load = OpenLoop(Client(client, asyncio.get_running_loop().time))
        await load.run([(0.0, Prompt(100, text="a"))], drain_s=1.0)
    assert [body["rid"] for body in server.aborted][:1] == server.rids


@pytest.mark.parametrize(("step_s", "tokens"), [(0.1, 9), (0.9, 1)])
async def test_a_request_that_the_server_ends_for_us_is_dropped_neither_answered_nor_failed(step_s, tokens):
    """At 1 s it had some of its tokens, which count; the server then ends its stream as if it were whole."""
    server = FakeServer({0: step_s})
    async with http(server) as client:
        load = OpenLoop(Client(client, asyncio.get_running_loop().time))
        await load.run([(0.0, Prompt(100, text="a"))], drain_s=0.95)
    (record,) = load.records
    assert (record.aborted, record.error, record.is_short) == (True, None, False)
    assert record.output_tokens in (tokens, tokens + 1)
    assert offered(load.records).unanswered == 1
    stats = window_stats(load.records, 0.0, 10.0)
    assert (stats.finished, stats.errors, stats.short) == (0, 0, 0)


async def test_a_request_that_was_answered_before_the_order_came_is_answered():
    """Told to end at 0.95 s, it has its 10 tokens at 1 s."""
    server = FakeServer({0: 0.1})
    server.heeds_aborts_after = 1
    async with http(server) as client:
        load = OpenLoop(Client(client, asyncio.get_running_loop().time))
        await load.run([(0.0, Prompt(10, text="a"))], drain_s=0.95)
    (record,) = load.records
    assert (record.output_tokens, record.given_up, record.error) == (10, False, None)
    assert len(server.aborted) == 1


async def test_a_server_without_a_load_is_told_nothing():
    server = FakeServer()
    async with http(server) as client:
        await ServerUnderTest("engine", Client(client, asyncio.get_running_loop().time)).end()
    assert server.aborted == []


async def test_a_server_as_it_is_is_called_as_it_was_asked_for():
    """`as-is` of --arms by that name, a whole server by its own; other arms are called the same."""
    async with http(FakeServer()) as client:
        server = ServerUnderTest("engine", Client(client, asyncio.get_running_loop().time))
    as_is, off = parse_arm("as-is"), parse_arm("off-cold")
    assert [Target(server, as_is, asked=asked).label for asked in (True, False)] == ["as-is", "engine"]
    assert [Target(server, off, asked=asked).label for asked in (True, False)] == ["off-cold", "off-cold"]
