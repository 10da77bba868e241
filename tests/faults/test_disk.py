"""The state database cannot be opened, written, found; the disk is full, hangs, comes back."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from controller import sidecar as sidecar_module
from controller import wiring
from controller.audit import MAX_WAITING, Audit
from controller.errors import StoreError
from controller.overrides import Overrides
from controller.recording import MAX_WAITING as MOST_TURNS
from controller.store import Store, StoredOverride


def reasons(t):
    return {row.reason for row in t.bench.assembly.sidecar.decisions(limit=500)}


@pytest.mark.parametrize(
    "content", [b"no database" * 99, b"SQLite format 3\0" + b"x" * 4096], ids=["text", "header"]
)
async def test_a_corrupt_database_is_left_alone_and_the_next_one_taken_up(trial, tmp_path, content):
    """Governed in memory; once the bad file is moved away, order and log are carried over to a new one."""
    path = tmp_path / "state.db"
    path.write_bytes(content)
    t = await trial(store__path=str(path))
    assert await t.run(12) == {"store_degraded"}
    assert path.read_bytes() == content
    assert (await t.order(mode="on", depth=1))["durable"] is False
    path.rename(tmp_path / "bad.db")
    await t.run(12)
    await t.recovers()
    assert (await t.bench.api.get("/v1/override")).json()["durable"] is True
    await t.bench.assembly.aclose()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT depth, reason FROM override").fetchall() == [(1, "incident 7")]
        assert {"fixed", "on"} <= {row[0] for row in db.execute("SELECT reason FROM log")}
    db.close()


async def test_a_database_that_is_late_gives_back_the_order_that_was_in_force(trial, tmp_path):
    """Locked by a predecessor that takes its time to die: its order and ids go on once it is gone."""
    path = tmp_path / "state.db"
    before = await trial(store__path=str(path), lease__holder="before")
    await before.governed()
    await before.order(mode="on", depth=1)
    rows = len(before.bench.assembly.sidecar.decisions(limit=500))
    t = await trial(before.engine, store__path=str(path), lease__holder="after")
    assert "store_degraded" in await t.run(3)
    before.bench.assembly.keeper.close()
    await t.run(22)
    await t.recovers()
    assert t.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 1}]
    ids = [row.id for row in t.bench.assembly.sidecar.decisions(limit=500)]
    assert ids == sorted(set(ids), reverse=True)
    assert min(ids) == 1
    assert len(ids) > rows


async def test_a_directory_that_cannot_be_made_is_made_later(trial, tmp_path):
    """The volume is mounted after the start: a file is in the way of the directory, then no more."""
    (tmp_path / "state").write_text("in the way")
    t = await trial(store__path=str(tmp_path / "state" / "state.db"))
    assert await t.run(3) == {"store_degraded"}
    (tmp_path / "state").unlink()
    await t.run(12)
    await t.recovers()
    assert (tmp_path / "state" / "state.db").exists()


async def test_a_database_that_is_removed_while_in_use_is_made_anew(trial, tmp_path):
    """What would go to a file without a name goes to a new one, the order in force first of all."""
    path = tmp_path / "state.db"
    t = await trial(store__path=str(path))
    await t.governed()
    await t.order(mode="on", depth=1)
    path.unlink()
    await t.run(12)
    await t.recovers()
    await t.bench.assembly.aclose()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT reason FROM override").fetchall() == [("incident 7",)]
    db.close()


async def test_a_full_disk_is_said_and_written_when_there_is_room(trial):
    """SQLite itself says so here; control goes on, the order is in force, and is on disk later."""
    t = await trial()
    await t.governed()
    db = t.bench.assembly.keeper.store._db
    db.execute("PRAGMA max_page_count=1")  # no page may be added
    while not t.bench.loop._store_problem():
        await t.bench.api.put("/v1/override", json={"mode": "on", "depth": 1, "reason": "x" * 400})
        await t.run(1)
    assert "store_degraded" in await t.run(1)
    assert "full" in t.bench.loop._store_problem()
    assert (await t.order(mode="off"))["mode"] == "off"
    assert t.engine.plan is not None
    db.execute("PRAGMA max_page_count=100000")
    await t.recovers()
    assert "off" in reasons(t)
    assert (await t.bench.api.get("/v1/override")).json()["durable"] is True


async def test_a_read_only_database_is_said_and_written_when_it_is_not_any_more(trial):
    """As a file system that was remounted after a fault."""
    t = await trial()
    await t.governed()
    db = t.bench.assembly.keeper.store._db
    db.execute("PRAGMA query_only=1")
    assert (await t.order(mode="on", depth=1))["durable"] is False
    assert "store_degraded" in await t.run(2)
    assert "readonly" in t.bench.loop._store_problem()
    db.execute("PRAGMA query_only=0")
    await t.recovers()
    assert (await t.bench.api.get("/v1/override")).json()["durable"] is True


async def test_a_disk_that_hangs_stops_neither_control_nor_orders(trial, monkeypatch):
    """No write returns for 20 turns: leases and orders go on, and at last all of it is written."""
    monkeypatch.setattr(wiring, "RECORD_PATIENCE_S", 0.05)
    monkeypatch.setattr(sidecar_module, "WRITE_PATIENCE_S", 0.05)
    t = await trial()
    await t.governed()
    store, goes_on = t.bench.assembly.keeper.store, threading.Event()
    append, save = store.append, store.save_override
    monkeypatch.setattr(store, "append", lambda rows: (goes_on.wait(60), append(rows)))
    monkeypatch.setattr(store, "save_override", lambda order: (goes_on.wait(60), save(order)))
    try:
        assert (await t.order(mode="on", depth=1))["durable"] is False
        assert (await t.order(mode="off"))["mode"] == "off"
        assert "store_degraded" in await t.run(20)
        assert t.engine.plan["schedule"][0]["depth"] == 0
        assert t.engine.state()["lease"]["left_s"] > 10
        assert (await t.bench.api.get("/healthz")).status_code == 200
    finally:
        goes_on.set()
    await t.recovers()
    assert {"on", "off"} <= reasons(t)
    ticks = t.bench.assembly.sidecar.registry.get_sample_value("specgov_ticks_total")
    assert ticks >= 24


class Broken:
    """A store that refuses to be written."""

    def __init__(self, store):
        self.store, self.full = store, True

    def __getattr__(self, name):
        if self.full and name == "append":
            return self.refuse
        return getattr(self.store, name)

    def refuse(self, rows):
        raise StoreError("state.db: database or disk is full")


def test_rows_that_go_for_want_of_room_are_counted_and_orders_go_last(tmp_path):
    """One order and 2000 events into room for 1000: the order stays, 1001 are lost, and the log says so."""
    broken = Broken(Store(tmp_path / "state.db", max_rows=10_000, max_bytes=1 << 24))
    audit = Audit(broken)
    audit.append(1.0, "override", "off", {"reason": "incident 7"})
    for n in range(2000):
        audit.note(2.0, "event", f"e{n}", {})
    audit.flush()
    assert audit.problem == "state.db: database or disk is full; 1001 rows of the decision log are lost"
    broken.full = False
    audit.flush()
    assert audit.problem is None
    rows = audit.page(limit=5000)
    assert len(rows) == MAX_WAITING + 1
    assert (rows[0].reason, rows[0].body["rows"]) == ("log_rows_lost", 1001)
    assert (rows[-1].kind, rows[-1].reason) == ("override", "off")
    broken.store.close()


def test_the_queue_of_turns_has_an_end():
    """Five minutes at one a second."""
    assert MOST_TURNS == 300


def test_an_order_of_the_file_yields_to_one_given_meanwhile(tmp_path):
    """The file says off; jo said auto while the file was away: auto it is, also in the file."""
    path = tmp_path / "state.db"
    store = Store(path, max_rows=100, max_bytes=1 << 20)
    store.save_override(stored := _stored("off"))
    meanwhile = Overrides(Store(path.with_name("other.db"), max_rows=100, max_bytes=1 << 20))
    meanwhile.clear()
    meanwhile.adopt(store)
    assert meanwhile.pod(100.0) is None
    assert store.override() is None
    store.save_override(stored)
    untouched = Overrides(Store(path.with_name("third.db"), max_rows=100, max_bytes=1 << 20))
    untouched.adopt(store)
    assert untouched.pod(100.0).mode == "off"
    store.close()


def _stored(mode):
    return StoredOverride(mode, None, "x", "jo", 1.0, None)
