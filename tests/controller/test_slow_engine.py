"""An engine that is slow, hangs, died or has just started: what is said of it, and when it is said to be."""

from __future__ import annotations

import httpx
import pytest

from controller.cli import operate

HANGS = {"/speculation": httpx.ReadTimeout("no answer"), "/v1/loads": httpx.ReadTimeout("no answer")}
WALL_S = 1_800_000_000.0
"""What the bench's wall clock is ahead of its monotonic one."""


async def order(bench, mode="off"):
    answer = await bench.api.put("/v1/override", json={"mode": mode, "reason": "x", "actor": "jo"})
    assert answer.status_code == 200, answer.text


async def get(bench, path):
    return (await bench.api.get(path)).json()


def shown(status):
    return dict(operate._status_lines(status | {"brought": {"since_unix_s": None, "against": None}}))


@pytest.fixture
def hung(monkeypatch):
    """Makes the next scrapes take 2 s, an order, and 3 s more."""

    def hang(bench):
        scrape = bench.loop._scraper.scrape

        async def slow(now_s, *, restarted):
            bench.clock.now_s += 2
            await order(bench)
            bench.clock.now_s += 3
            return await scrape(now_s, restarted=restarted)

        monkeypatch.setattr(bench.loop._scraper, "scrape", slow)

    return hang


async def test_what_an_order_brings_is_never_dated_before_it(make, hung):
    """Turn from 1003 to 1008, order at 1005: its decision and its effect are of 1008."""
    bench = await make()
    await bench.run(2)
    hung(bench)
    await bench.tick()
    rows = {
        (row["kind"], row["reason"]): row["at_unix_s"] - WALL_S
        for row in (await get(bench, "/v1/decisions"))["decisions"][::-1]
    }
    assert rows["override", "off"] == 1005.0
    assert rows["decision", "override"] == 1008.0
    assert rows["event", "effect_acknowledged"] <= 1008.0


async def test_the_effect_is_dated_when_the_engine_has_answered(make, clock, monkeypatch):
    """A turn from 1001 whose PUT takes 4 s: acknowledged at 1005, decided at 1001."""
    bench = await make()
    put = bench.loop._steering._channel.put

    async def slow(*args, **named):
        clock.now_s += 4
        return await put(*args, **named)

    monkeypatch.setattr(bench.loop._steering._channel, "put", slow)
    await bench.tick()
    rows = {
        row["reason"]: row["at_unix_s"] - WALL_S for row in (await get(bench, "/v1/decisions"))["decisions"]
    }
    assert (rows["fixed"], rows["effect_acknowledged"]) == (1001.0, 1005.0)


async def test_a_turn_is_as_old_as_what_it_decided(make, hung, clock):
    """Begun at 1003 under the policy, decided at 1008 under the order: at 1015 that is 7 s ago, not 12."""
    bench = await make()
    await bench.run(2)
    hung(bench)
    await bench.tick()
    clock.now_s = 1015.0
    status = await get(bench, "/v1/status")
    assert "; 7 s ago: governed (override by jo)" in status["headline"]
    assert status["turn"]["age_s"] == 7.0
    engine = next(line for line in (await get(bench, "/v1/explain"))["because"] if line.startswith("engine"))
    assert engine.startswith("engine: the engine is slow or hangs, or turns fail: see the sidecar's log; bef")


async def test_an_engine_that_hangs_is_the_first_thing_said_of_an_order(make):
    """It is not `governed` by what it was not heard to take, and whether it can be is of before."""
    bench = await make()
    await bench.run(2)
    await order(bench)
    bench.engine.fail = HANGS
    await bench.tick()
    headline = (await get(bench, "/v1/status"))["headline"]
    assert headline.startswith("ordered, not confirmed: off")
    assert "; the engine is slow or hangs: " in headline
    assert "; asked for (override by jo): " in headline
    because = (await get(bench, "/v1/explain"))["because"]
    engine = next(line for line in because if line.startswith("engine: "))
    assert engine.startswith("engine: the engine is slow or hangs: ")
    assert "; before that it could be governed: SGLang 0.5.23" in engine
    assert "effect, for 0 s: asked for, and not acknowledged by every rank" in because


async def test_what_an_engine_just_started_would_begin_with_is_not_in_use(make):
    """It names depth 3 before its first step; after one, that is in use."""
    bench = await make()
    await bench.run(2, batch_size=4)
    bench.engine.start()
    await bench.run(2)
    status = await get(bench, "/v1/status")
    assert (status["depth"]["in_use"], status["depth"]["decoded"]) == (None, False)
    assert shown(status)["in use"] == "no decode step since the engine started"
    await bench.run(2, batch_size=4)
    status = await get(bench, "/v1/status")
    assert status["depth"]["decoded"] is True
    assert shown(status)["in use"] == "depth 2"


async def test_the_lease_at_an_engine_that_does_not_answer_is_not_known(make):
    """It may have died, and the lease with it."""
    bench = await make()
    await bench.run(2)
    assert shown(await get(bench, "/v1/status"))["lease"].startswith("held, ")
    bench.engine.fail = {"/speculation": httpx.ConnectError("refused")}
    await bench.tick()
    status = await get(bench, "/v1/status")
    assert (shown(status)["lease"], status["lease"]["left_s"]) == ("not known", None)
    assert "lease: not known" in (await get(bench, "/v1/explain"))["because"]


async def test_a_lease_that_nobody_wants_is_not_lost(make):
    """Under `native` there is none to renew."""
    bench = await make()
    await bench.run(2)
    bench.engine.fail = HANGS
    await bench.run(25)
    assert "lease_lost" in bench.conditions()
    await order(bench, "native")
    await bench.tick()
    assert "lease_lost" not in bench.conditions()


async def test_explain_says_first_that_it_only_watches(make, clock):
    """Another's lease: what an order asks for here is a wish."""
    bench = await make(lease__holder="me")
    bench.engine.plan = {"schedule": [{"min_batch_size": 1, "depth": 3}], "probe": None}
    bench.engine.holder, bench.engine.sequence, bench.engine.expires_s = "other", 7, clock() + 60
    await order(bench)
    await bench.tick()
    because = (await get(bench, "/v1/explain"))["because"]
    assert because[0] == (
        "this sidecar watches only: other holds the lease"
        " (not seen to renew so far: it ends by itself in 59 s unless it is renewed)"
    )
    assert not any("it can be governed" in line for line in because)
    assert any(line.startswith("decision, not put in force: ") for line in because)


async def test_preflight_is_said_with_the_engine_of_this_sidecar(make, clock):
    """The default address need not be its engine's: of a late turn, and of control without effect."""
    asks = "specgov preflight --engine http://127.0.0.1:19900"
    bench = await make(engine__url="http://127.0.0.1:19900")
    bench.engine.ignore_plan = True
    await bench.run(200, batch_size=4)
    inert = next(c for c in (await get(bench, "/v1/status"))["conditions"] if c["condition"] == "inert")
    assert inert["remedy"] == asks
    assert asks in " ".join((await get(bench, "/v1/explain"))["would_change"])
    clock.now_s += 8
    assert (await get(bench, "/v1/status"))["type"][0] == asks


async def test_a_link_that_preflight_explains_names_the_engine_too(make):
    """In the answer to an order, and in the state of the engine."""
    bench = await make(engine__url="http://127.0.0.1:19900/")
    bench.engine.controllable, bench.engine.reason = False, "a reason"
    await bench.tick()
    await order(bench)
    said = "run: specgov preflight --engine http://127.0.0.1:19900"
    assert (await get(bench, "/v1/override"))["remedy"] == said
    assert (await get(bench, "/v1/status"))["engine"]["remedy"] == said
