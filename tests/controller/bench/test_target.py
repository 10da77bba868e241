"""What a server under test is told at the end of a load, and when its clients count as served."""

import asyncio
import random

import pytest

from controller.bench.client import Client
from controller.bench.prompts import RandomTokens
from controller.bench.target import ServerUnderTest
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
