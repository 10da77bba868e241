"""What answers in the engine's place: nothing, half, late, other things, far too much.

Each fault lasts for 20 s with an operator's order in force; then the wire is sound again.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib

import httpx
import pytest

from controller.link import Link
from controller.steering import Lease
from tests.faults.conftest import EVERYTHING

MIB = 1 << 20


class Stream(httpx.AsyncByteStream):
    """A body in pieces; an exception among them is raised there."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.sent = 0

    async def __aiter__(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            self.sent += len(piece)
            yield piece


def answers(status=200, content=b"", **headers):
    async def fault(request):
        return httpx.Response(status, content=content, headers=headers, request=request)

    return fault


def streams(*pieces):
    async def fault(request):
        return httpx.Response(200, stream=Stream(pieces), request=request)

    return fault


def raises(error):
    async def fault(request):
        raise error

    return fault


async def hangs(request):
    await asyncio.Event().wait()


async def drips(request):
    async def slowly():
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    class Slow(httpx.AsyncByteStream):
        def __aiter__(self):
            return slowly()

    return httpx.Response(200, stream=Slow(), request=request)


HTML = b"<!doctype html><title>502 Bad Gateway</title><h1>nginx</h1>"
BOMB = gzip.compress(bytes(100 * MIB), 1)

FAULTS = {
    "refused": (raises(httpx.ConnectError("connection refused")), "engine_unreachable"),
    "name_not_found": (raises(httpx.ConnectError("name or service not known")), "engine_unreachable"),
    "reset_before_the_answer": (raises(httpx.ReadError("reset by peer")), "engine_unreachable"),
    "reset_in_the_body": (streams(b'{"loads": [', httpx.ReadError("reset by peer")), "engine_unreachable"),
    "body_cut_short": (
        streams(b'{"controllable": tr', httpx.RemoteProtocolError("peer closed")),
        "engine_unreachable",
    ),
    "half_an_answer": (answers(content=b'{"controllable": true, "built_dep'), "not_sglang"),
    "status_500": (answers(500, b"Internal Server Error"), "engine_unreachable"),
    "status_502_html": (answers(502, HTML), "engine_unreachable"),
    "html_instead_of_json": (answers(200, HTML), "not_sglang"),
    "redirect_elsewhere": (answers(307, location="http://elsewhere/"), "not_sglang"),
    "nothing": (answers(200, b""), "not_sglang"),
    "json_null": (answers(200, b"null"), "not_sglang"),
    "json_list": (answers(200, b"[[],[]]"), "not_sglang"),
    "json_too_deep": (answers(200, b"[" * 100_000), "not_sglang"),
    "not_utf8": (answers(200, b"\xff\xfe\x00{"), "not_sglang"),
    "unknown_charset": (answers(200, HTML, **{"content-type": "text/html; charset=klingon"}), "not_sglang"),
    "gzip_bomb": (answers(200, BOMB, **{"content-encoding": "gzip"}), "not_sglang"),
    "deflate_bomb": (
        answers(200, zlib.compress(bytes(MIB)), **{"content-encoding": "deflate"}),
        "not_sglang",
    ),
    "port_of_another_service": (answers(404, b'{"detail": "Not Found"}'), "no_plugin"),
    "port_of_a_guarded_service": (answers(401, b'{"error": "Unauthorized"}'), "unauthorized"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_the_wire_is_broken_for_20_seconds(trial, name):
    """Said at once, by name; the lease ends at the engine; the order stays; control comes back by itself."""
    fault, condition = FAULTS[name]
    t = await trial()
    await t.governed()
    assert (await t.order(mode="on", depth=1))["durable"]
    await t.run(2)
    t.faults[EVERYTHING] = fault
    assert condition in await t.run(1)
    conditions = await t.run(19)
    assert {condition, "lease_lost"} <= conditions
    assert t.engine.plan is None, "the lease outlived the sidecar's voice"
    assert t.bench.loop.last.steered.lease is Lease.LOST
    t.faults.clear()
    await t.recovers()
    assert t.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 1}]
    assert t.bench.loop.last.override.reason == "incident 7"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [hangs, drips], ids=["hangs", "drips"])
async def test_an_engine_that_answers_too_late_is_asked_again_and_not_waited_for(trial, fault):
    """SIGSTOP, or a byte now and then: no turn takes longer than its timeouts; after 10 s it is said."""
    t = await trial()
    await t.governed()
    t.faults[EVERYTHING] = fault
    began_s = asyncio.get_running_loop().time()
    assert "engine_unreachable" in await t.run(12)
    assert asyncio.get_running_loop().time() - began_s < 12 * 0.25 * 2 + 8
    await t.run(5)
    assert t.engine.plan is None
    t.faults.clear()
    await t.recovers()


async def test_100_mb_of_metrics_are_not_read_to_their_end(trial):
    """`/v1/loads` is away and `/metrics` is huge: 8 MiB and a piece are read, the rest is left."""
    t = await trial(policy__name="threshold", policies__threshold__rows='[{"min_batch_size": 1, "depth": 2}]')
    await t.governed()
    line = b'sglang:num_running_reqs{tp_rank="0"} 4.0\n' * 25_000
    bodies = []

    async def huge(request):
        bodies.append(Stream([line] * 100))
        return httpx.Response(200, stream=bodies[-1], request=request)

    t.faults["/v1/loads"] = answers(502)
    t.faults["/metrics"] = huge
    await t.run(20)
    assert len(line) * 100 > 100 * 1_000_000
    assert bodies
    assert max(body.sent for body in bodies) < 8 * MIB + len(line)
    assert "above 8388608 bytes" in str(t.bench.loop.last.scrape.errors.get("metrics", "above 8388608 bytes"))
    t.faults.clear()
    await t.recovers()


async def test_an_engine_that_restarts_is_governed_anew(trial):
    """Away for 5 s, back with all counters at 0 and nothing in force."""
    t = await trial()
    await t.governed()
    t.faults[EVERYTHING] = raises(httpx.ConnectError("connection refused"))
    await t.run(5)
    t.engine.start()
    t.faults.clear()
    await t.recovers()
    assert t.bench.loop.last.observation.engine_epoch == 1


async def test_an_engine_that_restarts_again_and_again_is_left_alone(trial):
    """Six times in three minutes: speculation is pinned off, which is the likeliest way to stop it."""
    t = await trial()
    await t.governed()
    for _ in range(6):
        t.engine.start()
        await t.run(30)
    assert t.bench.loop.last.link.link is Link.READY
    assert t.bench.loop.failed_ticks == 0


async def test_a_put_that_hangs_delays_no_order_of_the_operator(trial):
    """The request times out, the next turn tries again; the order is in force in the meantime."""
    t = await trial()
    await t.governed()
    t.faults["PUT /speculation"] = hangs
    assert (await t.order(mode="off"))["mode"] == "off"
    await t.run(3)
    t.faults.clear()
    await t.recovers()
    assert t.engine.plan["schedule"][0]["depth"] == 0


async def test_a_put_whose_answer_is_lost_is_found_out_by_asking(trial):
    """Taken by the engine, 20 times in a row: one sequence number each, none of them twice."""
    t = await trial()
    await t.governed()
    t.engine.lose_put_answer = True
    t.engine.puts.clear()
    await t.run(20)
    assert t.bench.loop.last.steered.acknowledged
    t.engine.lose_put_answer = False
    await t.recovers()
    sequences = [put["sequence"] for put in t.engine.puts]
    assert sequences == sorted(set(sequences))


async def test_a_rank_that_does_not_acknowledge_is_said_and_waited_for(trial):
    """202 for 20 s: pending, then inert; the lease is kept alive all the while."""
    t = await trial()
    await t.governed()
    t.engine.lagging_rank = True
    await t.order(mode="on", depth=1)
    assert "ranks_pending" in await t.run(20)
    assert t.engine.plan is not None
    t.engine.lagging_rank = False
    await t.recovers()
