"""What is acknowledged survives: SQLite, its failures, its bounds."""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from controller.audit import Audit
from controller.errors import StoreError
from controller.overrides import Override, Overrides
from controller.settings import load
from controller.store import MIGRATIONS, LogRow, Store
from controller.store_words import in_words
from controller.wiring import keep_store
from policies.types import Mode

ORDER = Override(Mode.OFF, None, "incident 7", "jo", 100.0, 160.0)


def open_store(path, max_rows=1000, max_bytes=1 << 20):
    return Store(path, max_rows=max_rows, max_bytes=max_bytes)


def ids(rows):
    return [row.id for row in rows]


def test_an_override_and_the_log_are_there_after_a_restart(tmp_path):
    """Closed and opened again: the same order, the same rows, ids that go on."""
    store = open_store(tmp_path / "state.db")
    Overrides(store).set(ORDER)
    Audit(store).append(1.0, "decision", "fixed", {"detail": "depth 2"})
    identity = store.identity
    store.close()
    again = open_store(tmp_path / "state.db")
    assert Overrides(again).current(120.0) == ORDER
    audit = Audit(again)
    audit.append(2.0, "event", "x", {})
    assert [(row.id, row.reason) for row in audit.page()] == [(2, "x"), (1, "fixed")]
    assert again.identity == identity
    again.close()


def test_an_override_ends_by_itself_even_while_the_sidecar_was_down(tmp_path):
    """Its end is wall time: 160."""
    store = open_store(tmp_path / "state.db")
    Overrides(store).set(ORDER)
    late = Overrides(store)
    assert late.current(159.9) == ORDER
    assert late.current(160.0) is None
    assert late.end_if_over(160.0) == ORDER
    assert late.end_if_over(160.0) is None
    late.record(None)
    assert store.override() is None
    store.close()


@pytest.mark.slow
def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """A process says each id once it is on disk; killed at any moment, none that it said is lost."""
    script = (
        "import sys; from pathlib import Path\n"
        "from controller.store import Store; from controller.audit import Audit\n"
        "a = Audit(Store(Path(sys.argv[1]), max_rows=10**6, max_bytes=1 << 26))\n"
        "while True: print(a.append(1.0, 'event', 'x', {}).id, flush=True)\n"
    )
    path = tmp_path / "state.db"
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        said = [int(writer.stdout.readline()) for _ in range(50)][-1]
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split("\n")[:-1]
    said = int(rest[-1]) if rest else said
    store = open_store(path, max_rows=10**6)
    assert store.last_log_id() >= said
    assert len(store.page(limit=10**6)) == store.last_log_id()
    store.close()


@pytest.mark.parametrize(
    "content", [b"this is no database, whatever its name says" * 50, b"SQLite format 3\0" + b"x" * 4096]
)
def test_a_corrupt_database_is_an_error_that_names_the_file_and_leaves_it_alone(tmp_path, content):
    """The file may still be mended by hand."""
    path = tmp_path / "state.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"state\.db"):
        open_store(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("file is not a database", "move it away, and a new one is made; lost with it are the decision log"),
        ("database disk image is malformed", "move it away, and a new one is made; lost with it are"),
        ("database or disk is full", "free its disk: what waits is then written"),
        ("attempt to write a readonly database", "mount it writable"),
        ("[Errno 30] Read-only file system: '/var/lib/specgov'", "mount it writable"),
        ("schema version 9 is newer than this release (3)", "run that release, or move it away; lost"),
    ],
)
def test_each_fault_of_the_database_is_said_with_what_mends_it(fault, remedy):
    """Nobody frees a disk for a file that is spoilt."""
    assert in_words(OSError(fault)).startswith(f"{fault}: {remedy}")


def test_a_file_that_cannot_be_written_is_said_to_be_so():
    """SQLite has no other words for it than these: it cannot lock the file."""
    said = in_words(OSError("disk I/O error"), writable=False)
    assert said.startswith("disk I/O error, the file is read-only: mount it writable")


def test_a_fault_that_is_not_known_is_said_alone():
    """No advice is made up."""
    assert in_words(OSError("disk I/O error")) == "disk I/O error"


def test_a_database_of_a_later_release_is_refused(tmp_path):
    """Its rows may mean something else."""
    path = tmp_path / "state.db"
    open_store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreError, match=r"schema version 4 is newer than this release \(3\)"):
        open_store(path)


@pytest.mark.slow
def test_a_second_sidecar_does_not_share_the_database(tmp_path):
    """One writer: the other says so and goes on in memory."""
    first = open_store(tmp_path / "state.db")
    with pytest.raises(StoreError, match="locked: another process uses it, usually a sidecar with"):
        open_store(tmp_path / "state.db")
    first.close()


def test_the_log_is_bounded_in_rows(tmp_path):
    """1000 written, at most 100 and those since the last look are kept, the newest."""
    store = open_store(tmp_path / "state.db", max_rows=100)
    for i in range(1, 1001):
        store.append([LogRow(i, 0.0, "event", "x", {})])
    rows = store.page(limit=1000)
    assert 100 <= len(rows) <= 164
    assert ids(rows)[0] == 1000
    store.close()


def test_the_log_is_bounded_in_bytes(tmp_path):
    """Rows of 10 kB into 1 MiB: the file stays below twice that, with its journal."""
    path = tmp_path / "state.db"
    store = open_store(path, max_rows=10**6, max_bytes=1 << 20)
    for i in range(1, 513):
        store.append([LogRow(i, 0.0, "event", "x", {"text": "y" * 10_000})])
    store.close()
    assert path.stat().st_size < 2 << 20


def sqlite_bytes():
    """What SQLite holds of this process's memory, by its own account."""
    for library in (getattr(_sqlite3, "__file__", None), None):
        used = getattr(ctypes.CDLL(library), "sqlite3_memory_used", None)
        if used is not None:
            used.restype = ctypes.c_int64
            return int(used())
    return pytest.skip("this Python hides the symbols of its SQLite")


def test_memory_does_not_grow_with_the_file(tmp_path):
    """4 MB of rows, written and read: SQLite holds less than 0.5 MB of them; as it comes, it holds 2.3 MB."""
    before = sqlite_bytes()
    store = open_store(tmp_path / "state.db", max_rows=10**6, max_bytes=8 << 20)
    for first in range(1, 1025, 32):
        store.append([LogRow(first + i, 0.0, "event", "x", {"text": "y" * 4000}) for i in range(32)])
    assert len(store.page(limit=1000)) == 1000
    assert sqlite_bytes() - before < 500_000
    store.close()


def test_what_is_kept_in_place_of_a_file_takes_4_mib_of_memory_at_most(tmp_path):
    """The file cannot be made; of 8 MB of rows the latest are there, and less than 4 MiB of them."""
    (tmp_path / "file").touch()
    keeper = keep_store(load(flags={"store": {"path": tmp_path / "file" / "state.db"}}, environ={}))
    assert keeper.problem is not None
    for first in range(1, 2049, 64):
        keeper.store.append([LogRow(first + i, 0.0, "event", "x", {"text": "y" * 4000}) for i in range(64)])
    kept = keeper.store.page(limit=5000)
    assert kept[0].id == 2048
    assert 500 < len(kept) <= 1024
    keeper.close()


class BrokenStore:
    """A store whose disk can be full."""

    def __init__(self, store):
        self.store, self.full = store, False

    def __getattr__(self, name):
        if self.full and name in ("append", "save_override"):
            return self.refuse
        return getattr(self.store, name)

    def refuse(self, *args):
        raise StoreError("state.db: database or disk is full")


@pytest.fixture
def broken():
    """A store in memory behind a switch."""
    return BrokenStore(open_store(Path(":memory:")))


def test_a_full_disk_keeps_the_rows_in_memory_and_writes_them_later(broken):
    """Nothing is lost, the log reads on, and the problem is said until it is over."""
    audit = Audit(broken)
    audit.append(1.0, "event", "before", {})
    broken.full = True
    audit.append(2.0, "event", "during", {})
    assert audit.problem == "state.db: database or disk is full"
    assert [row.reason for row in audit.page()] == ["during", "before"]
    broken.full = False
    audit.append(3.0, "event", "after", {})
    assert audit.problem is None
    assert [row.reason for row in broken.store.page(limit=9)] == [
        "after",
        "during",
        "before",
    ]


def test_a_full_disk_does_not_stop_an_operator(broken):
    """The order is in force, and said not to be on disk; it is written when that can be done."""
    overrides = Overrides(broken)
    broken.full = True
    overrides.set(ORDER)
    assert overrides.current(120.0) == ORDER
    assert (overrides.durable, overrides.problem) == (False, "state.db: database or disk is full")
    broken.full = False
    overrides.flush()
    assert overrides.problem is None
    assert broken.store.override().reason == "incident 7"


def test_pages_filter_and_go_on_where_the_one_before_ended():
    """Newest first; `before` is the last id seen."""
    audit = Audit(open_store(Path(":memory:")))
    for i in range(6):
        audit.append(float(i), "event" if i % 2 else "decision", f"r{i}", {})
    assert ids(audit.page(limit=2)) == [6, 5]
    assert ids(audit.page(limit=2, before=5)) == [4, 3]
    assert ids(audit.page(kind="event")) == [6, 4, 2]
    assert ids(audit.page(reason="r0")) == [1]
    assert ids(audit.page(since_unix_s=4.0)) == [6, 5]


def test_evidence_that_is_too_large_is_left_out():
    """The row stays, with its reason and its sentence."""
    audit = Audit(open_store(Path(":memory:")))
    row = audit.append(1.0, "decision", "x", {"detail": "d", "evidence": {"a": "y" * 100_000}})
    assert row.body == {"detail": "d", "evidence": "left out: too large"}


def test_what_was_learned_is_kept_by_key():
    """Another deployment's key gives nothing."""
    store = open_store(Path(":memory:"))
    store.save_learned("0.5.23/H200", {"a": [1.0]}, 1.0)
    assert store.learned("0.5.23/H200") == {"a": [1.0]}
    assert store.learned("0.5.17/H200") is None
