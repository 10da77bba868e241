"""What a server under test is told at the end of a load, and when its clients count as served."""

import asyncio
import random

import httpx
import pytest

from controller.bench.client import Client
from controller.bench.load import ClosedLoop
from controller.bench.prompts import RandomTokens
from controller.bench.target import ServerUnderTest, until_flowing
from tests.controller.bench.fake_server import FakeServer, http

pytestmark = pytest.mark.looptime
SOURCE = RandomTokens((8, 8), (100, 100), (1, 9))


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


async def test_a_server_without_a_load_is_told_nothing():
    server = FakeServer()
    async with http(server) as client:
        await ServerUnderTest("engine", Client(client, asyncio.get_running_loop().time)).end()
    assert server.aborted == []


@pytest.mark.parametrize(
    ("stream_every", "transport", "waited_s"),
    [
        (1, FakeServer(step_s={0: 0.5}, tokens_per_step={0: 1}), 0.5),
        (0, FakeServer(step_s={0: 0.5}, tokens_per_step={0: 1}), 0.0),
        (1, httpx.MockTransport(lambda _: httpx.Response(503, text="busy")), 0.0),
        (1, FakeServer(step_s={0: 99.0}, tokens_per_step={0: 1}), 30.0),
    ],
    ids=["first tokens after half a second", "no client streams", "every request fails", "silence"],
)
async def test_a_window_waits_for_first_tokens_only_where_they_can_come(stream_every, transport, waited_s):
    """Whole answers show none before their end, and a request that failed shows none any more."""
    clock = asyncio.get_running_loop().time
    async with http(transport) as client:
        loop = ClosedLoop(Client(client, clock), SOURCE, random.Random(1), stream_every=stream_every)
        await loop.scale(4)
        began_s = clock()
        await until_flowing(loop, clock, 30.0)
        assert clock() - began_s == pytest.approx(waited_s, abs=0.1)
        await loop.cancel()
