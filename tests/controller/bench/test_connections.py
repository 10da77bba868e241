"""A load's connections: one for each request at a time, used again, and given back whatever happens."""

import asyncio

import httpx
import pytest

from controller.bench.connections import LoadTransport

pytestmark = pytest.mark.looptime


class Body(httpx.AsyncByteStream):
    """Two parts of an answer; `fails` after the first."""

    def __init__(self, fails=False):
        self.fails = fails
        self.closed = 0

    async def __aiter__(self):
        yield b"one "
        if self.fails:
            raise httpx.ReadError("gone")
        yield b"two"

    async def aclose(self):
        self.closed += 1


class One(httpx.AsyncBaseTransport):
    """Carries one request at a time, and says so if it is asked for more."""

    def __init__(self, answer=Body):
        self.answer = answer
        self.busy = self.closed = False

    async def handle_async_request(self, request):
        assert not self.busy, "two requests at once on one connection"
        self.busy = True
        try:
            await asyncio.sleep(float(request.url.params.get("s", "0")))
            if request.url.path == "/fails":
                raise httpx.ConnectError("refused")
        finally:
            self.busy = False
        return httpx.Response(200, stream=self.answer())

    async def aclose(self):
        self.closed = True


class Made(list):
    """What a transport has made."""

    def __init__(self, answer=Body):
        self.client = httpx.AsyncClient(
            transport=LoadTransport(lambda: self.append(One(answer)) or self[-1]), base_url="http://engine"
        )


async def test_as_many_connections_as_requests_at_the_same_time_and_no_more():
    made = Made()
    for _ in range(3):
        answers = await asyncio.gather(*[made.client.get("/", params={"s": "1"}) for _ in range(5)])
        assert [answer.text for answer in answers] == ["one two"] * 5
    assert len(made) == 5


async def test_the_connection_that_was_idle_last_is_used_first():
    """The others may grow old, and be closed by either side."""
    made = Made()
    await asyncio.gather(*[made.client.get("/") for _ in range(3)])
    used = []
    for one in made:
        send = one.handle_async_request
        one.handle_async_request = lambda request, one=one, send=send: used.append(one) or send(request)
    for _ in range(4):
        await made.client.get("/")
    assert len(set(used)) == 1


@pytest.mark.parametrize("path", ["/fails", "/"])
async def test_a_request_that_fails_gives_its_connection_back(path):
    made = Made(lambda: Body(fails=True))
    for _ in range(3):
        with pytest.raises((httpx.ConnectError, httpx.ReadError)):
            await made.client.get(path)
    assert len(made) == 1


async def test_a_request_that_is_given_up_gives_its_connection_back():
    made = Made()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.client.get("/", params={"s": "9"}), 1)
    assert len(made) == 1
    assert (await made.client.get("/")).text == "one two"


async def test_a_stream_keeps_its_connection_until_it_is_closed_and_gives_it_back_once():
    made = Made()
    async with made.client.stream("GET", "/") as answer:
        await made.client.get("/")
        assert len(made) == 2
        await answer.aread()
        await answer.aclose()
    await asyncio.gather(*[made.client.get("/", params={"s": "1"}) for _ in range(2)])
    assert len(made) == 2


async def test_closing_the_client_closes_all_of_them():
    made = Made()
    await asyncio.gather(*[made.client.get("/", params={"s": "1"}) for _ in range(3)])
    await made.client.aclose()
    assert [one.closed for one in made] == [True, True, True]
