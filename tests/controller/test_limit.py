"""`no_deeper` and `no_shallower`: the limit is what is in force when the order is given, whoever gave it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("mode", "ordered", "policy", "limit"),
    [("no_deeper", 1, 2, "no deeper than depth 1"), ("no_shallower", 2, 1, "no shallower than depth 2")],
)
async def test_the_limit_is_the_order_before_and_not_the_policy_beneath_it(
    make, mode, ordered, policy, limit
):
    """After `on --depth`: that depth stays, over restarts of engine and sidecar too; the answer says it."""
    bench = await make(policies__fixed__depth=policy)
    await bench.run(2, batch_size=4)
    await bench.api.put("/v1/override", json={"mode": "on", "depth": ordered, "reason": "x"})
    await bench.run(2, batch_size=4)
    answer = (await bench.api.put("/v1/override", json={"mode": mode, "reason": "x"})).json()
    assert answer["limit"].startswith(limit)
    await bench.run(3, batch_size=4)
    table = [{"min_batch_size": 1, "depth": ordered}]
    assert bench.engine.plan["schedule"] == table
    bench.engine.start()
    await bench.run(3, batch_size=4)
    assert bench.engine.plan["schedule"] == table
    await bench.loop._shut_down()
    await bench.assembly.aclose()
    again = await make(engine=bench.engine, policies__fixed__depth=policy)
    await again.run(3, batch_size=4)
    assert again.engine.plan["schedule"] == table
    status = (await again.api.get("/v1/status")).json()
    assert status["override"]["limit"].startswith(limit)
    await again.api.put("/v1/override", json={"mode": "auto", "reason": "x"})
    await again.run(2, batch_size=4)
    assert again.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": policy}]


async def test_without_a_table_in_force_the_first_that_comes_is_the_limit(make):
    """Native before: nothing of ours is in force, and the answer says so."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "native", "reason": "x"})
    await bench.run(2, batch_size=4)
    answer = (await bench.api.put("/v1/override", json={"mode": "no_deeper", "reason": "x"})).json()
    assert answer["limit"] == "no deeper than what comes into force first"
    await bench.run(3, batch_size=4)
    assert (await bench.api.get("/v1/override")).json()["limit"].startswith("no deeper than depth 2")


async def test_the_decision_log_says_the_limit_that_was_put_in_force(make):
    """In the order's own row; where nothing was in force, in a row of the turn that found it."""
    bench = await make()
    await bench.run(2, batch_size=4)
    await bench.api.put("/v1/override", json={"mode": "no_deeper", "reason": "x", "actor": "ann"})
    await bench.run(2, batch_size=4)
    await bench.api.put("/v1/override", json={"mode": "native", "reason": "x"})
    await bench.run(2, batch_size=4)
    await bench.api.put("/v1/override", json={"mode": "no_deeper", "reason": "x", "actor": "ann"})
    await bench.run(3, batch_size=4)
    page = (await bench.api.get("/v1/decisions", params={"kind": "override"})).json()["decisions"]
    assert [(row["reason"], row["body"]["detail"]) for row in reversed(page)] == [
        ("no_deeper", "no deeper by ann: x; no deeper than depth 2"),
        ("native", "native by someone: x"),
        ("no_deeper", "no deeper by ann: x; no deeper than what comes into force first"),
        ("limit", "no deeper by ann: x; no deeper than depth 2"),
    ]
    assert [row["body"]["limit"] for row in page[:2]] == [
        "no deeper than depth 2",
        "no deeper than what comes into force first",
    ]
