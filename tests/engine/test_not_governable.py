"""Servers that must not be controlled: each says so, or has no such endpoint."""

import pytest

from tests.engine.load import check
from tests.engine.preflight import preflight

PLAN = {"schedule": [{"min_batch_size": 1, "depth": 0}], "lease_s": 15, "sequence": 1, "holder": "test"}


def key(name):
    return {"Authorization": f"Bearer {name}"}


@pytest.mark.parametrize("server", ["base"], indirect=True)
async def test_a_server_without_speculation_says_that_it_cannot_be_governed(server, client):
    """The plugin is there, the reason is given, a plan is refused with it."""
    answer = await client.get("/speculation", headers=key("read"))
    state = answer.json()
    assert answer.status_code == 200
    assert state["controllable"] is False
    assert "without --speculative-algorithm" in state["reason"]
    assert state["built_depths"] == []
    refused = await client.put("/speculation", json=PLAN, headers=key("steer"))
    assert refused.status_code == 503
    assert "without --speculative-algorithm" in refused.json()["error"]["message"]
    client.headers.update(key("read"))
    await check(client, 5, 12)


@pytest.mark.parametrize("server", ["base"], indirect=True)
@pytest.mark.parametrize(
    ("method", "name", "status"),
    [
        ("GET", None, 401),
        ("GET", "wrong", 401),
        ("GET", "read", 200),
        ("PUT", None, 401),
        ("PUT", "read", 401),
        ("PUT", "steer", 503),
        ("DELETE", None, 401),
        ("DELETE", "read", 401),
        ("DELETE", "steer", 200),
    ],
)
async def test_sglangs_own_keys_guard_the_endpoint(server, client, method, name, status):
    """Reading takes the API key; steering takes the admin key, and the API key does not do."""
    headers = key(name) if name else {}
    body = PLAN if method == "PUT" else None
    answer = await client.request(method, "/speculation", json=body, headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize("server", ["bare"], indirect=True)
async def test_a_server_without_the_plugin_has_no_such_endpoint(server, client):
    """404, whatever is asked."""
    assert (await client.get("/speculation")).status_code == 404
    assert (await client.put("/speculation", json=PLAN)).status_code == 404
    await check(client, 5, 12)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("static", "EAGLEWorkerV2 has no adaptive controller: start the server with --speculative-adaptive"),
        ("tree", "SGLang itself refuses to change depths here, so observe only: speculative_eagle_topk=2"),
        ("standalone", "STANDALONE is served by StandaloneWorkerV2, which cannot change its depth"),
        ("ngram", "NGRAM is served by NGRAMWorker, which cannot change its depth"),
    ],
    indirect=["server"],
)
async def test_a_server_that_speculates_in_another_way_says_why_it_is_only_observed(server, client, reason):
    """A plan is refused with that reason, and preflight gives it too; the server serves on."""
    assert reason in (await client.get("/speculation")).json()["reason"]
    refused = await client.put("/speculation", json=PLAN)
    assert refused.status_code == 503
    assert reason in refused.json()["error"]["message"]
    assert reason in (await preflight(server, passes=False))["control"]
