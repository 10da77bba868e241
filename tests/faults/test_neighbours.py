"""Other sidecars, other releases, and the name service."""

from __future__ import annotations

import asyncio
import copy
import socket
import sqlite3
import threading

import httpx
import pytest

from controller import store as store_module
from controller import wiring
from controller.link import Link
from controller.settings import load
from controller.steering import Lease
from controller.store import MIGRATIONS, LogRow, Store
from tests.controller.fake_engine import FakeEngine
from tests.faults.conftest import FaultyEngine


async def test_of_two_sidecars_one_governs_and_the_other_says_so(trial, tmp_path):
    """For 40 turns by turns: one holder, no depth of the other's; when it dies the other takes over."""
    first = await trial(lease__holder="a")
    second = await trial(
        first.engine, lease__holder="b", policies__fixed__depth=1, store__path=str(tmp_path / "b.db")
    )
    for _ in range(20):
        await first.run(1)
        assert "foreign_lease" in await second.run(1)
    assert {put["holder"] for put in first.engine.puts} == {"a"}
    assert "foreign_lease" in second.bench.conditions()
    assert first.bench.conditions() == set()
    await second.run(16)
    assert second.engine.holder == "b"
    assert second.bench.loop.last.steered.lease is Lease.HELD
    await first.run(1)
    assert first.bench.loop.last.steered.lease is Lease.FOREIGN


async def test_of_two_sidecars_with_one_name_the_one_that_pushed_last_governs(trial, tmp_path):
    """A wrong setting: the same holder twice.  Sequences rise, the depth changes once, the other says so."""
    first = await trial(lease__holder="same")
    second = await trial(
        first.engine, lease__holder="same", policies__fixed__depth=1, store__path=str(tmp_path / "b.db")
    )
    for _ in range(10):
        await first.run(1)
        await second.run(1)
    sequences = [put["sequence"] for put in first.engine.puts]
    assert sequences == sorted(set(sequences))
    depths = [put["schedule"][0]["depth"] for put in first.engine.puts]
    assert depths[1:] == [1] * (len(depths) - 1)
    assert "foreign_lease" in first.bench.conditions()
    assert second.bench.conditions() == set()
    await first.run(16)
    assert first.bench.loop.last.steered.lease is Lease.HELD


@pytest.mark.parametrize("protocol", [0, 2, None, "1", [1], -1])
async def test_a_plugin_of_another_protocol_is_refused_by_name_and_never_written_to(trial, clock, protocol):
    """Neither older nor newer is guessed at; once the right one is there, control begins."""
    engine = FaultyEngine(clock)
    engine.protocol = protocol
    t = await trial(engine)
    assert "wrong_version" in await t.run(3)
    assert t.bench.loop.last.link.link is Link.WRONG_VERSION
    assert engine.puts == engine.deletes == []
    engine.protocol = 1
    await t.recovers()


NEWER = {"plugin_version": "9.0.0", "quantum": True, "lease": {"grace_s": 3}, "gears": ["hibernate"]}
OLDER = ("ranks_agree", "plain_decode", "gears", "probe", "fallback")


async def test_a_newer_plugin_of_the_same_protocol_works(trial):
    """Fields that this release does not know are passed over, a gear among them."""
    t = await trial()

    async def newer(request):
        state = copy.deepcopy(t.engine.state())
        state["lease"] |= NEWER["lease"]
        state["gears"] += NEWER["gears"]
        state |= {name: NEWER[name] for name in ("plugin_version", "quantum")}
        state["telemetry"][0]["tachyons"] = 1
        return httpx.Response(200, json=state, request=request)

    t.faults["GET /speculation"] = newer
    await t.governed()
    await t.recovers()


async def test_an_older_plugin_of_the_same_protocol_works(trial):
    """What it does not say yet is unknown, and what it cannot do is not asked for."""
    t = await trial()

    async def older(request):
        state = copy.deepcopy(t.engine.state())
        for name in OLDER:
            del state[name]
        for rank in state["ranks"]:
            rank.pop("order", None)
        for cell in state["telemetry"][0]["cells"]:
            del cell["accepted_after_cold"]
        return httpx.Response(200, json=state, request=request)

    t.faults["GET /speculation"] = older
    await t.governed()
    await t.order(mode="off")
    await t.recovers()
    assert t.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 0, "gear": "warm"}]


async def test_the_plugin_is_replaced_while_it_governs(trial):
    """The engine restarts with another protocol and then with ours: refused in between, governed after."""
    t = await trial()
    await t.governed()
    t.engine.start()
    t.engine.protocol = 2
    conditions = await t.run(16)
    assert "wrong_version" in conditions
    assert t.engine.plan is None
    t.engine.start()
    t.engine.protocol = 1
    await t.recovers()


def test_a_database_of_the_release_before_is_migrated_with_all_that_is_in_it(tmp_path, monkeypatch):
    """The seam for every later release: one more step in `MIGRATIONS`, in one transaction."""
    path = tmp_path / "state.db"
    store = Store(path, max_rows=100, max_bytes=1 << 20)
    store.append([LogRow(1, 0.0, "event", "x", {"a": 1})])
    store.close()
    step = "ALTER TABLE log ADD COLUMN actor TEXT;"
    monkeypatch.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, step))
    migrated = Store(path, max_rows=100, max_bytes=1 << 20)
    assert migrated.last_log_id() == 1
    assert migrated._db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS) + 1
    assert migrated._db.execute("SELECT actor FROM log").fetchall() == [(None,)]
    migrated.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path, monkeypatch):
    """All of a step or nothing of it; the release before can still use the file."""
    path = tmp_path / "state.db"
    Store(path, max_rows=100, max_bytes=1 << 20).close()
    monkeypatch.setattr(
        store_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1);")
    )
    with pytest.raises(store_module.StoreError, match="nowhere"):
        Store(path, max_rows=100, max_bytes=1 << 20)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone()[0] == 0
    db.close()


@pytest.mark.slow
async def test_a_name_service_that_hangs_does_not_stop_the_loop(monkeypatch, tmp_path):
    """Look-ups that never return fill the event loop's threads; turns, records and orders go on."""
    lookups, goes_on = [], threading.Event()

    def hang(*args, **kwargs):
        lookups.append(args)
        goes_on.wait(30)
        raise socket.gaierror("name service away")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    timeouts = {"connect_timeout_s": 0.05, "request_timeout_s": 0.05, "metrics_timeout_s": 0.05}
    flags = {
        "engine": {"url": "http://sglang.example:30000", **timeouts},
        "store": {"path": str(tmp_path / "state.db")},
        "policy": {"name": "fixed"},
    }
    now = [1000.0]
    assembly = wiring.assemble(load(flags=flags, environ={}), clock=lambda: now[0])
    try:
        for _ in range(20):
            now[0] += 1
            await asyncio.wait_for(assembly.sidecar.loop.tick(now[0]), 5)
        assert lookups
        assert assembly.sidecar.loop.last.link.link is Link.UNREACHABLE
        assert {row.reason for row in assembly.sidecar.decisions()} >= {"condition_engine_unreachable"}
    finally:
        goes_on.set()
        await assembly.sidecar.loop._scraper.aclose()
        await assembly.aclose()


def test_the_fake_engine_of_these_tests_says_all_that_the_protocol_promises(fake_state_keys):
    """What the real hook's answer holds, as tests/contract pins it."""
    assert fake_state_keys >= {"protocol", "controllable", "lease", "ranks", "ranks_agree", "telemetry"}


@pytest.fixture
def fake_state_keys():
    """Keys of the fake's `GET /speculation`."""
    return set(FakeEngine(lambda: 0.0).state())
