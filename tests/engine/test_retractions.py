"""Requests that SGLang takes off the batch and starts again, on the real SGLang: no token changes."""

import asyncio
import re

import httpx

from tests.engine.load import check
from tests.engine.server import Server
from tests.engine.test_plain_decode import apply, probe, see_that_nothing_is_lost, state_now

RETRACTING = {"SGLANG_TEST_RETRACT": "1"}
"""SGLang's own switch for tests: at every third step it retracts a request, though there is room for all."""
PLANS = {
    "warm": ((1, 0, "warm"), None),
    "cold": ((1, 0, "cold"), None),
    "frozen": ((1, 0, "frozen"), None),
    "warm and cold by turns": ((1, 0, "warm"), probe(0, "cold")),
    "on and cold by turns": ((1, 3), probe(0, "cold")),
    "warm and on by turns": ((1, 0, "warm"), probe(3)),
    "frozen and on by turns": ((1, 0, "frozen"), probe(2)),
}
REQUESTS, LENGTH = 6, 40


def test_every_token_is_right_through_retractions(engine, tmp_path):
    """In each gear and by turns, requests are retracted; all answers are as known, and nothing is lost."""
    server = Server("overlap", *engine, tmp_path, environment=RETRACTING).start()
    try:
        asyncio.run(see_every_plan_through_retractions(server))
    finally:
        server.stop()


async def see_every_plan_through_retractions(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        for name, plan in PLANS.items():
            await apply(client, *plan)
            before = await retracted(client)
            await asyncio.gather(*[check(client, 3 + 37 * n, LENGTH) for n in range(REQUESTS)])
            assert await retracted(client) - before >= 3, name
        await see_that_nothing_is_lost(server, client)
        state = await state_now(client)
        assert {t["hook_errors"] for t in state["telemetry"]} == {0}
        assert state["plain_decode"]["reason"] is None


async def retracted(client):
    """How many requests SGLang has retracted so far; it exports the counter with the first of them."""
    text = (await client.get("/metrics")).raise_for_status().text
    counts = re.findall(r"^sglang:num_retracted_requests_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, counts))
