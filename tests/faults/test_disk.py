"""The state database cannot be opened, written, found; the disk is full, hangs, comes back."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controller import sidecar as sidecar_module
from controller import store as store_module
from controller import wiring
from controller.audit import MAX_WAITING, Audit
from controller.errors import StoreError
from controller.overrides import Overrides
from controller.recording import MAX_WAITING as MOST_TURNS
from controller.store import Store, StoredOverride


class FullDisk(sqlite3.Connection):
    """On a disk without room: what would write says what SQLite says there; reading and locking work."""

    full = False

    def execute(self, sql, *values):
        writes = sql.startswith(("INSERT", "DELETE", "UPDATE", "CREATE", "PRAGMA auto_vacuum="))
        if FullDisk.full and writes:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *values)

    def executemany(self, sql, values):
        for each in values:
            self.execute(sql, each)


@pytest.fixture
def disk(monkeypatch):
    """A disk that can be full, under every database that is opened meanwhile."""
    connect = sqlite3.connect

    def on_it(path, **how):
        return connect(path, **how) if "memory" in str(path) else connect(path, factory=FullDisk, **how)

    monkeypatch.setattr(store_module.sqlite3, "connect", on_it)
    monkeypatch.setattr(FullDisk, "full", False)
    return FullDisk


def killed(folder):
    """The files of a sidecar that was killed after it acknowledged an order, which only the journal has."""
    alive = Store(folder / "alive.db", max_rows=100, max_bytes=1 << 20)
    alive.save_override(StoredOverride("off", None, "incident 7", "jo", 1_800_000_900.0, None))
    for end in ("", "-wal"):
        shutil.copy(folder / f"alive.db{end}", folder / f"state.db{end}")
    identity = alive.identity
    alive.close()
    return folder / "state.db", identity


def cannot_be_written(monkeypatch, why="attempt to write a readonly database"):
    """The file cannot be opened to be written, until the returned switch is turned."""
    broken, opened = [True], Store.__init__

    def init(store, path, **limits):
        if broken and str(path) != ":memory:":
            raise StoreError(f"{path}: {why}")
        opened(store, path, **limits)

    monkeypatch.setattr(Store, "__init__", init)
    return broken


def reasons(t):
    return {row.reason for row in t.bench.assembly.sidecar.decisions(limit=500)}


@pytest.mark.parametrize(
    "content", [b"no database" * 99, b"SQLite format 3\0" + b"x" * 4096], ids=["text", "header"]
)
async def test_a_corrupt_database_is_left_alone_and_the_next_one_taken_up(trial, tmp_path, content):
    """An order given here is obeyed in memory; once the bad file is away, it and the log go to a new one."""
    path = tmp_path / "state.db"
    path.write_bytes(content)
    t = await trial(store__path=str(path))
    assert await t.run(12) == {"store_degraded", "orders_unread"}
    assert t.engine.puts == []
    assert path.read_bytes() == content
    assert (await t.order(mode="on", depth=1))["durable"] is False
    path.rename(tmp_path / "bad.db")
    await t.run(12)
    await t.recovers()
    assert (await t.bench.api.get("/v1/override")).json()["durable"] is True
    await t.bench.assembly.aclose()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT depth, reason FROM override").fetchall() == [(1, "incident 7")]
        assert {"native", "on"} <= {row[0] for row in db.execute("SELECT reason FROM log")}
    db.close()


async def see_that_it_is_off_from_the_first_turn(t, identity):
    """By jo's order, under the lease of the sidecar that was killed; the disk alone is complained of."""
    assert await t.run(3) == {"store_degraded"}
    assert {put["schedule"][0]["depth"] for put in t.engine.puts} == {0}
    assert t.engine.holder.endswith(identity)
    answer = (await t.bench.api.get("/v1/override")).json()
    assert (answer["mode"], answer["actor"], answer["durable"]) == ("off", "jo", True)


async def test_an_order_is_obeyed_after_a_restart_on_a_full_disk(trial, tmp_path, disk):
    """Off, acknowledged; killed; no room at the start: off from the first turn, with its own lease."""
    path, identity = killed(tmp_path)
    disk.full = True
    t = await trial(store__path=str(path))
    await see_that_it_is_off_from_the_first_turn(t, identity)
    assert (await t.order(mode="auto"))["durable"] is False
    disk.full = False
    await t.recovers()
    assert t.bench.assembly.keeper.store.override() is None


async def test_an_order_is_obeyed_from_a_database_that_can_only_be_read(trial, tmp_path, monkeypatch):
    """A read-only mount after a kill: what only the journal has is obeyed, and kept once it is writable."""
    path, identity = killed(tmp_path)
    broken = cannot_be_written(monkeypatch)
    t = await trial(store__path=str(path))
    await see_that_it_is_off_from_the_first_turn(t, identity)
    broken.clear()
    await t.recovers()
    assert t.bench.loop.last.override.actor == "jo"
    assert t.bench.assembly.keeper.store.override().actor == "jo"


async def test_what_was_ended_here_is_not_taken_for_kept_while_it_can_only_be_read(
    trial, tmp_path, monkeypatch
):
    """Auto is in force and says that the order may come back; it does not once the file can be written."""
    path, _ = killed(tmp_path)
    broken = cannot_be_written(monkeypatch)
    t = await trial(store__path=str(path))
    await t.run(1)
    assert (await t.order(mode="auto"))["durable"] is False
    await t.run(1)
    assert t.engine.plan["schedule"][0]["depth"] == 2
    broken.clear()
    await t.recovers()
    assert t.bench.assembly.keeper.store.override() is None


async def test_while_an_order_may_be_unread_nothing_is_put_in_force_and_it_is_said(trial, tmp_path):
    """In status, explain, the order's answer, the log; the first order given here is obeyed again."""
    path = tmp_path / "state.db"
    path.write_bytes(b"no database" * 99)
    t = await trial(store__path=str(path))
    assert await t.run(3) == {"store_degraded", "orders_unread"}
    assert t.engine.puts == []
    unread = "orders given before could not be read, so one may be unread"
    answer = (await t.bench.api.get("/v1/override")).json()
    assert [answer[key] for key in ("mode", "scope", "actor", "reason", "durable")] == [
        "native",
        "sidecar",
        "specgov",
        unread,
        False,
    ]
    status = (await t.bench.api.get("/v1/status")).json()
    assert (
        status["headline"] == f"SGLang chooses by itself (override by specgov): native, by specgov: {unread}"
    )
    said = {each["condition"]: each["message"] for each in status["conditions"]}
    assert said["orders_unread"].startswith(f"{unread}: {path}: file is not a database: move it away")
    explained = (await t.bench.api.get("/v1/explain")).json()
    ends = "the override ends by itself when the orders can be read; at once: specgov override auto"
    assert ends in explained["would_change"]
    assert "native" in reasons(t)
    await t.order(mode="auto")
    assert await t.run(2) == {"store_degraded"}
    assert t.engine.plan["schedule"][0]["depth"] == 2


async def test_an_order_that_no_release_knows_is_an_unread_one(trial, tmp_path):
    """A row that cannot be understood is no reason to draft, nor to fail at the start."""
    path, _ = killed(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE override SET mode = 'sideways'")
    db.close()
    t = await trial(store__path=str(path))
    assert await t.run(2) == {"orders_unread"}
    assert t.engine.puts == []


async def test_an_order_of_the_fleet_is_obeyed_while_one_of_the_pod_may_be_unread(trial, tmp_path):
    """It is known, and given by somebody."""
    path, fleet = tmp_path / "state.db", tmp_path / "fleet.json"
    path.write_bytes(b"no database" * 99)
    fleet.write_text('{"mode": "off", "reason": "all of them"}')
    t = await trial(store__path=str(path), fleet__file=str(fleet))
    await t.run(2)
    assert t.engine.plan["schedule"][0]["depth"] == 0


async def test_a_file_that_becomes_legible_gives_its_order(trial, tmp_path):
    """Spoilt at the start, put right while the sidecar runs, still not writable: jo's off, and no doubt."""
    path, _ = killed(tmp_path)
    journal = path.with_name("state.db-wal")
    journal.rename(tmp_path / "kept")
    right = path.read_bytes()
    path.write_bytes(b"no database" * 99)
    with pytest.MonkeyPatch.context() as patch:
        cannot_be_written(patch)
        t = await trial(store__path=str(path))
        assert "orders_unread" in await t.run(2)
        path.write_bytes(right)
        (tmp_path / "kept").rename(journal)
        assert await t.run(12) == {"store_degraded"}
        assert t.engine.plan["schedule"][0]["depth"] == 0
        assert t.bench.loop.last.override.actor == "jo"
        assert "resumed" in reasons(t)


async def test_of_an_order_that_outlived_a_restart_nothing_is_claimed_for_before_it(trial, tmp_path):
    """Given 101 s before this sidecar's first turn: in force since that turn, and it says so."""
    path, _ = killed(tmp_path)
    t = await trial(store__path=str(path))
    await t.run(3)
    status = (await t.bench.api.get("/v1/status")).json()
    assert status["mode"] == "off"
    assert status["override"]["set_unix_s"] == 1_800_000_900.0
    assert status["mode_since_unix_s"] == 1_800_001_001.0
    assert status["override"]["resumed"] is True
    explained = (await t.bench.api.get("/v1/explain")).json()["because"]
    force = "in force since 2027-01-15 08:16:41, whether before that is not known here"
    assert f"order: given at 2027-01-15 08:15:00 UTC, {force}" in explained
    assert [row.reason for row in t.bench.assembly.sidecar.decisions(kind="override")] == ["resumed"]
    await t.order(mode="native")
    await t.run(2)
    status = (await t.bench.api.get("/v1/status")).json()
    assert status["mode_since_unix_s"] == status["override"]["set_unix_s"]
    assert status["override"]["resumed"] is False


ON_A_DISK_OF_ITS_OWN = """
import os, pathlib, subprocess, sys
from controller.orders_file import read_orders
from controller.store import Store, StoredOverride
path = pathlib.Path(sys.argv[1]) / "state.db"
def opened(): return Store(path, max_rows=100, max_bytes=1 << 20)
if os.fork() == 0:
    opened().save_override(StoredOverride("off", None, "x", "jo", 1.0, None))
    os.kill(os.getpid(), 9)
os.wait()
with (path.parent / "filler").open("wb", buffering=0) as filler:
    try:
        while True: filler.write(bytes(1024))
    except OSError: pass
store = opened()
print(store.override().mode, store.durable)
try: store.save_override(None)
except Exception as error: print(str(error).partition(": ")[2])
store.close()
(path.parent / "filler").unlink()
subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
print(read_orders(path).override.mode)
subprocess.run(["mount", "-o", "remount,rw", path.parent], check=True)
opened().close()
subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
print(sorted(each.name for each in path.parent.iterdir()), read_orders(path).override.mode)
try: opened()
except Exception as error: print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_real_full_disk_and_a_real_read_only_mount_after_kill_9(tmp_path):
    """600 kB of tmpfs, killed, filled, then mounted read-only: the order is read each time."""
    mount = f"mount -t tmpfs -o size=600k tmpfs {tmp_path}"
    may = subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False, capture_output=True)
    if may.returncode:
        pytest.skip("this system lets nobody mount a disk of their own")
    script = f'{mount} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, ON_A_DISK_OF_ITS_OWN],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    said = done.stdout.splitlines()
    full = "database or disk is full: free its disk: what waits is then written"
    closed = "['state.db'] off"
    assert said == ["off True", full, "off", closed, "StoreError"], done.stderr


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


@pytest.mark.parametrize(("before", "incident"), [("off", "native"), ("native", "off")])
async def test_an_order_that_replaces_one_on_a_full_disk_names_the_one_that_a_restart_brings_back(
    trial, before, incident
):
    """Not "gone": the older one comes back.  Answer, status, explain, condition and log say which."""
    t = await trial()
    await t.order(mode=before, actor="root")
    await t.run(1)
    db = t.bench.assembly.keeper.store._db
    db.execute("PRAGMA query_only=1")
    answer = await t.order(mode=incident, actor="jo")
    older = f"{before} by root: incident 7"
    assert (answer["durable"], answer["after_restart"]["detail"]) == (False, older)
    assert "store_degraded" in await t.run(1)
    status = (await t.bench.api.get("/v1/status")).json()
    assert status["after_restart"]["detail"] == older
    assert (
        f"once the sidecar has restarted: specgov override {incident} --reason 'incident 7'" in status["type"]
    )
    message = next(c["message"] for c in status["conditions"] if c["condition"] == "store_degraded")
    assert message.endswith(f"; a restart of the sidecar now would put in force: {older}")
    because = (await t.bench.api.get("/v1/explain")).json()["because"]
    assert f"not on disk: a restart of the sidecar would put in force: {older}" in because
    row = t.bench.assembly.sidecar.decisions(kind="override")[0]
    assert row.body["detail"] == (
        f"{incident} by jo: incident 7; not on disk, a restart of the sidecar would put in force: {older}"
    )
    again = Overrides(t.bench.assembly.keeper.store)
    assert again.current(t.bench.clock.wall()).mode == before, "what is said is what a restart does"
    db.execute("PRAGMA query_only=0")
    assert await t.run(2) == set()
    after = (await t.bench.api.get("/v1/override")).json()
    assert (after["durable"], after["after_restart"]) == (True, None)


async def test_the_first_order_on_a_full_disk_is_gone_after_a_restart_and_one_that_is_over_does_not_come(
    trial,
):
    """No older one, or one whose time is up: the policy decides."""
    t = await trial()
    await t.order(mode="off", ttl_s=60)
    db = t.bench.assembly.keeper.store._db
    db.execute("PRAGMA query_only=1")
    assert (await t.order(mode="native"))["after_restart"]["mode"] == "off"
    t.bench.clock.now_s += 61
    after = (await t.bench.api.get("/v1/override")).json()["after_restart"]
    assert after == {"mode": "auto", "detail": "no order: the policy decides"}


async def test_what_a_restart_does_is_not_known_where_the_file_cannot_be_read(trial, tmp_path):
    """An order may be in it."""
    path = tmp_path / "state.db"
    path.write_bytes(b"no database" * 99)
    t = await trial(store__path=str(path))
    after = (await t.order(mode="off"))["after_restart"]
    assert after["mode"] is None
    assert after["detail"].startswith(f"not known: {path}")


async def test_a_pin_that_was_ended_on_a_full_disk_comes_back_and_that_is_said(trial, clock, tmp_path):
    """`auto` ended it here; a restart pins off again."""
    store = Store(tmp_path / "state.db", max_rows=100, max_bytes=1 << 20)
    store.save_crash_pin(clock.wall() + 3000)
    store.close()
    t = await trial()
    await t.run(1)
    db = t.bench.assembly.keeper.store._db
    db.execute("PRAGMA query_only=1")
    answer = await t.order(mode="auto")
    assert (answer["pin_ended"], answer["durable"]) == (True, False)
    assert answer["after_restart"]["detail"] == "the pin to off after the engine's crash loop"


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
    meanwhile.clear(100.0)
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
