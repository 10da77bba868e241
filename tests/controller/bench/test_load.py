"""Closed and open loop in virtual time."""

import asyncio
import random

import pytest

from controller.bench.client import Client
from controller.bench.load import ClosedLoop, LoopLag, OpenLoop
from controller.bench.prompts import Prompt, RandomTokens
from controller.bench.records import window_stats
from tests.controller.bench.fake_server import FakeServer, http

pytestmark = pytest.mark.looptime
SHORT = RandomTokens((4, 4), (100, 100))


def loop_on(client, **options):
    """A closed loop of 100-token answers: 1 s each at depth 0."""
    return ClosedLoop(Client(client, asyncio.get_running_loop().time), SHORT, random.Random(1), **options)


async def test_a_closed_loop_holds_its_concurrency():
    """8 clients at 100 tokens/s each: 800 tokens/s in any window, once running."""
    server = FakeServer()
    async with http(server) as client:
        load = loop_on(client)
        await load.scale(8)
        await asyncio.sleep(5)
        assert server.running == 8
        await load.cancel()
    assert server.running == 0
    assert window_stats(load.records, 2.0, 4.0).output_tok_s == pytest.approx(800, rel=0.02)


async def test_first_requests_start_somewhere_in_their_middle():
    """100 clients that began together end one by one: within the first second, not all at its end."""
    async with http(FakeServer()) as client:
        load = loop_on(client)
        await load.scale(100)
        await asyncio.sleep(1.05)
        await load.cancel()
    ends = sorted(r.ended_s for r in load.records[:100])
    assert ends[10] < 0.25
    assert 0.3 < ends[50] < 0.7


async def test_scaling_down_lets_requests_end():
    """Nobody is cut off: 4 clients become 1, no request is cancelled."""
    server = FakeServer()
    async with http(server) as client:
        load = loop_on(client)
        await load.scale(4)
        await asyncio.sleep(0.1)
        await load.scale(1)
        await asyncio.sleep(2)
        assert server.running == 1
        assert not any(r.cancelled for r in load.records)
        await load.drain(5)
    assert all(r.ended_s is not None for r in load.records)


async def test_one_client_in_so_many_streams():
    """`stream_every` 4 of 8 clients: two streams."""
    async with http(FakeServer()) as client:
        load = loop_on(client, stream_every=4)
        await load.scale(8)
        await asyncio.sleep(0.01)
        assert sum(r.streamed for r in load.newest()) == 2
        assert load.stream_share == 0.25
        await load.cancel()


async def test_open_loop_sends_at_the_given_times_whatever_runs():
    """Three arrivals, the third while two are running."""
    async with http(FakeServer()) as client:
        load = OpenLoop(Client(client, asyncio.get_running_loop().time))
        await load.run(
            [(0.0, Prompt(100, text="a")), (0.5, Prompt(100, text="b")), (0.7, Prompt(10, text="c"))]
        )
    assert [r.started_s for r in load.records] == [0.0, 0.5, 0.7]
    assert [r.ended_s for r in load.records] == [pytest.approx(1.0), pytest.approx(1.5), pytest.approx(0.8)]


async def test_a_loop_that_is_not_late_shows_no_lag():
    """Virtual time is never late; outside of what was sampled nothing is known."""
    async with LoopLag(asyncio.get_running_loop().time).watching() as lag:
        await asyncio.sleep(1.02)
    assert lag.worst_s(0, 2) == pytest.approx(0.0, abs=1e-9)
    assert lag.worst_s(5, 6) is None
