"""The wait for a load to be under way, in virtual time."""

import asyncio
import random

import httpx
import pytest

from controller.bench.arms import parse_arm
from controller.bench.client import Client
from controller.bench.courses import run_scenario, run_trace
from controller.bench.flowing import SlowStart, until_flowing
from controller.bench.load import ClosedLoop
from controller.bench.prompts import Prompt, RandomTokens
from controller.bench.scenario import Phase
from controller.bench.target import Target
from tests.controller.bench.fake_server import FakeServer, Stream, http
from tests.controller.bench.test_campaign import campaign, server

pytestmark = pytest.mark.looptime
SHORT = RandomTokens((4, 4), (100, 100))


class Failing(FakeServer):
    """Answers 503 after a time."""

    def __init__(self, after_s):
        super().__init__(hook=False)
        self.after_s = after_s

    async def _generate(self, body):
        await asyncio.sleep(self.after_s)
        return httpx.Response(503, text="full")


class Silent(FakeServer):
    """Lets the first `speaking` requests have their tokens, and the others wait."""

    def __init__(self, speaking):
        super().__init__(hook=False)
        self.speaking = speaking

    async def _generate(self, body):
        if self.generated > self.speaking:
            await asyncio.sleep(3600)
        return httpx.Response(200, stream=Stream(self._events(10_000)))


async def waited(fake, clients, **options):
    """Seconds waited for a load on a server, and what was found."""
    clock = asyncio.get_running_loop().time
    async with http(fake) as client:
        load = ClosedLoop(Client(client, clock), SHORT, random.Random(1), **options)
        await load.scale(clients)
        start_s = clock()
        found = await until_flowing(load, clock, 30.0)
        took_s = clock() - start_s
        await load.cancel()
    return took_s, found


async def test_it_ends_with_the_first_tokens():
    """The first token of each of 4 clients comes after 10 ms."""
    assert await waited(FakeServer(), 4) == (pytest.approx(0.02, abs=0.021), None)


async def test_a_server_that_stands_is_waited_for_until_the_limit_and_told():
    """3 of 8 clients have their first token after 30 s."""
    assert await waited(Silent(3), 8) == (pytest.approx(30.0, abs=0.03), (3, 8))


async def test_a_client_whose_request_failed_is_not_waited_for():
    """Each fails after 2 s, again and again: there is nothing to wait for."""
    assert await waited(Failing(2.0), 8) == (pytest.approx(2.0, abs=0.03), None)


async def test_clients_that_were_served_in_turn_all_count():
    """One request at a time, each of about 1 s: with 3 clients the third begins within 3 s, not after 30."""

    class OneByOne(FakeServer):
        turn = asyncio.Lock()

        async def _events(self, wanted, rid=None):
            async with self.turn:
                async for event in super()._events(wanted, rid):
                    yield event

    took_s, found = await waited(OneByOne(hook=False), 3)
    assert found is None
    assert took_s < 3.0


async def test_without_streams_it_waits_for_the_first_whole_answer_of_every_client():
    """100 clients somewhere inside answers of 1 s: 95 have theirs before 1 s is over, not after 30."""
    took_s, found = await waited(FakeServer(), 100, stream_every=0)
    assert found is None
    assert 0.8 < took_s < 1.05


async def test_whole_answers_that_do_not_come_are_told_like_streams_that_stand():
    """None of an hour each within 30 s."""
    slow = FakeServer({0: 36.0, 2: 36.0})
    assert await waited(slow, 4, stream_every=0) == (pytest.approx(30.0, abs=0.03), (0, 4))


async def test_the_first_window_of_whole_answers_shows_what_the_later_ones_do():
    """32 clients at 100 tokens/s: the shortened first answers are in no window."""
    fake = FakeServer()
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("off-cold"))], stream_every=0)
        await found.sweep([32], rounds=2)
    assert [w.stats.output_tok_s for w in found.windows] == [pytest.approx(3200, rel=0.1)] * 2


async def test_a_window_on_a_load_that_is_not_under_way_is_noted():
    """The limit of 5 s is in the outcome with server, concurrency and how many clients were answered."""
    fake = Silent(1)
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("as-is"))])
        await found.sweep([4], rounds=1)
    assert found.slow_starts == [SlowStart("engine", 4, 5.0, clients=4, answered=1)]
    assert len(found.windows) == 1


async def test_a_server_that_only_fails_takes_no_longer_than_its_windows():
    """0.5 s to settle and 2 s a window, and each window says why requests failed."""
    fake = Failing(0.0)
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("as-is"))])
        await found.sweep([4], rounds=2)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.2)
    assert found.slow_starts == []
    (error,) = found.windows[0].errors
    assert error.text == "BadAnswerError: HTTP 503: b'full'"
    assert error.count == found.windows[0].stats.errors > 0


async def test_an_arm_that_is_not_seen_in_use_says_that_its_requests_fail():
    """No request, no decode step: the plan cannot be seen in force, and the reason is not the plan."""
    fake = Failing(0.0)
    fake.hook, real = True, fake._speculation

    def idle(method, body):
        fake_state = real(method, body).json()
        return httpx.Response(200, json={**fake_state, "telemetry": []})

    fake._speculation = idle
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("depth-2"))])
        await found.sweep([1], rounds=1)
        await run_scenario(found, [Phase("calm", 2.0, 1)], lambda _: SHORT, rounds=1)
        await run_trace(found, [(0.0, Prompt(4, text="a"))], rounds=1)
    texts = [[error.text for error in failure.errors] for failure in found.failures]
    assert texts == [["BadAnswerError: HTTP 503: b'full'"]] * 3
