"""The state database: SQLite, one writer, every commit on disk before it is acknowledged.

`PRAGMA user_version` is the schema's version; `MIGRATIONS[n]` leads from version n to n + 1.  A database of
a later version is refused and left alone.  The exclusive lock keeps a second sidecar out.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.errors import StoreError, StoreInUseError
from controller.store_words import in_words

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE override (
        id INTEGER PRIMARY KEY CHECK (id = 1), mode TEXT NOT NULL, depth INTEGER, reason TEXT NOT NULL,
        actor TEXT NOT NULL, set_unix_s REAL NOT NULL, expires_unix_s REAL
    ) STRICT;
    CREATE TABLE log (
        id INTEGER PRIMARY KEY, at_unix_s REAL NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE TABLE learned (
        key TEXT PRIMARY KEY, at_unix_s REAL NOT NULL, state TEXT NOT NULL
    ) STRICT;
    """,
    "ALTER TABLE override ADD COLUMN table_limit TEXT;",
    "ALTER TABLE override ADD COLUMN suspends TEXT;",
)
IDENTITY, CRASH_PIN, FLEET_ORDER = "identity", "crash_pin_until_unix_s", "fleet_order"
"""Keys of `meta`."""
INCREMENTAL = 2
"""SQLite's number of the mode in which freed pages are kept for later, and can be given back in steps."""
MAX_LEARNED = 16
"""Deployments whose knowledge is kept; the longest unused goes first."""
TRIM_EVERY = 64
"""Rows written between two looks at the bounds."""
CACHE_KIB = 256
"""SQLite's own cache of pages.  With its usual 2000 KiB the process grows by 2 MB while the file does; on a
file of 54 MB, reads and writes were as quick with this one, for the system caches files too."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One line of the decision log."""

    id: int
    at_unix_s: float
    kind: str
    """`decision`, `override` or `event`."""
    reason: str
    body: Mapping[str, Any]
    """JSON-ready."""


@dataclass(frozen=True, slots=True)
class StoredOverride:
    """An override as it is kept."""

    mode: str
    depth: int | None
    reason: str
    actor: str
    set_unix_s: float
    expires_unix_s: float | None
    limit: str | None = None
    """Its table, as JSON; `None`: it has none."""
    suspends: str | None = None
    """The fleet's order that it suspends, as JSON; `None`: it suspends none."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a database says is in force, and whose it is."""

    identity: str
    override: StoredOverride | None
    crash_pin_until_unix_s: float | None
    fleet_order: str | None
    """See `Store.save_fleet_order`."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a policy has learned on one deployment."""

    key: str
    """The deployment, as JSON with sorted keys."""
    at_unix_s: float
    state: Mapping[str, Any]
    """JSON-ready."""


class Store:
    """One database; all methods may be called from any thread and raise `StoreError`."""

    def __init__(self, path: Path, *, max_rows: int, max_bytes: int) -> None:
        """Open, create or migrate the database at `path`, which may be `:memory:`."""
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._written = 0
        self.path = path
        self.copy_of: Path | None = None
        """The file whose orders this one, in memory, was filled with; `None`: with none."""
        try:
            if str(path) != ":memory:":
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=1.0, check_same_thread=False, isolation_level=None)
            self._prepare()
            self._inode = path.stat().st_ino if self.durable else None
        except (sqlite3.Error, OSError) as error:
            self._abandon()
            kind = StoreInUseError if "locked" in str(error) else StoreError
            raise kind(f"{path}: {in_words(error, writable=_writable(path))}") from None

    def _abandon(self) -> None:
        """Close what was opened in vain; it is tried again and again."""
        db: sqlite3.Connection | None = getattr(self, "_db", None)
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _prepare(self) -> None:
        """Lock, check, migrate; what needs no change is not written, so that a full disk hides no order."""
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        if self._db.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:
            self._db.execute(f"PRAGMA auto_vacuum={INCREMENTAL}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA journal_size_limit=4194304")
        self._db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        verdict = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        version = check_version(self._db)
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version={number}; COMMIT;")
        self._db.execute("BEGIN IMMEDIATE")  # takes the lock for good, so that a second process fails here
        if meta_in(self._db, IDENTITY) is None:
            self._db.execute("INSERT INTO meta VALUES (?, ?)", (IDENTITY, uuid.uuid4().hex[:8]))
        self._db.execute("COMMIT")

    def fill(self, orders: Orders, path: Path) -> None:
        """Take over, in memory, what the file at `path` says is in force, and its identity."""
        self._save_meta(IDENTITY, orders.identity)
        self.save_fleet_order(orders.fleet_order)
        self.save_override(orders.override)
        self.save_crash_pin(orders.crash_pin_until_unix_s)
        self.copy_of = path

    @property
    def durable(self) -> bool:
        """Whether what is written outlives the process."""
        return str(self.path) != ":memory:"

    @property
    def holds_file(self) -> bool:
        """Whether its orders are those of a file: its own, or the one that it is filled with."""
        return self.durable or self.copy_of is not None

    @property
    def displaced(self) -> bool:
        """Whether another file, or none, is at `path` by now: what is written then outlives nothing."""
        if self._inode is None:
            return False
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True
        except OSError:
            return False

    @property
    def identity(self) -> str:
        """Eight characters that stay the same for the life of the database."""
        with self._lock, _errors(self.path):
            return str(meta_in(self._db, IDENTITY))

    def last_log_id(self) -> int:
        """The highest id in the log; 0 when it is empty."""
        return int(self._one("SELECT coalesce(max(id), 0) FROM log")[0])

    def append(self, rows: Iterable[LogRow]) -> None:
        """Write `rows`, all or none."""
        values = [(r.id, r.at_unix_s, r.kind, r.reason, json.dumps(r.body)) for r in rows]
        with self._lock, _errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?, ?)", values)
            self._written += len(values)
            if self._written >= TRIM_EVERY:
                self._written = 0
                self._trim()

    def _trim(self) -> None:
        rows = self._scalar("SELECT count(*) FROM log")
        self._delete_oldest(rows - self._max_rows)
        while self._used_bytes() > self._max_bytes and (rows := self._scalar("SELECT count(*) FROM log")):
            self._delete_oldest(1 + rows // 4)

    def _used_bytes(self) -> int:
        pages = self._scalar("PRAGMA page_count") - self._scalar("PRAGMA freelist_count")
        return pages * self._scalar("PRAGMA page_size")

    def _delete_oldest(self, surplus: int) -> None:
        if surplus > 0:
            oldest = "SELECT id FROM log ORDER BY id LIMIT ?"
            self._db.execute(f"DELETE FROM log WHERE id IN ({oldest})", (surplus,))  # noqa: S608  no input

    def _scalar(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])

    def page(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        reason: str | None = None,
        since_unix_s: float | None = None,
    ) -> list[LogRow]:
        """Newest first, ids below `before`, at most `limit`."""
        query = (
            "SELECT id, at_unix_s, kind, reason, body FROM log WHERE (:before IS NULL OR id < :before) "
            "AND (:kind IS NULL OR kind = :kind) AND (:reason IS NULL OR reason = :reason) "
            "AND (:since IS NULL OR at_unix_s >= :since) ORDER BY id DESC LIMIT :limit"
        )
        values = {"before": before, "limit": limit, "kind": kind, "reason": reason, "since": since_unix_s}
        with self._lock, _errors(self.path):
            found = self._db.execute(query, values).fetchall()
            return [LogRow(i, at, k, why, json.loads(body)) for i, at, k, why, body in found]

    def save_override(self, override: StoredOverride | None) -> None:
        """Keep `override` instead of the one before; `None`: keep none."""
        with self._lock, _errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM override")
            if override is not None:
                o = override
                values = (o.mode, o.depth, o.reason, o.actor, o.set_unix_s, o.expires_unix_s, o.limit)
                query = "INSERT INTO override VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)"
                self._db.execute(query, (*values, o.suspends))

    def override(self) -> StoredOverride | None:
        """The override kept, ended or not."""
        with self._lock, _errors(self.path):
            return override_in(self._db)

    def save_crash_pin(self, until_unix_s: float | None) -> None:
        """Keep the wall time at which a crash loop's pin ends; `None`: keep none."""
        self._save_meta(CRASH_PIN, None if until_unix_s is None else repr(until_unix_s))

    def crash_pin(self) -> float | None:
        """The wall time at which the pin that is kept ends, over or not."""
        with self._lock, _errors(self.path):
            until = meta_in(self._db, CRASH_PIN)
            return None if until is None else float(until)

    def save_fleet_order(self, order: str | None) -> None:
        """Keep what the fleet's file asked for when it was last right, as JSON; `None`: nothing."""
        self._save_meta(FLEET_ORDER, order)

    def fleet_order(self) -> str | None:
        """What `save_fleet_order` kept."""
        with self._lock, _errors(self.path):
            return meta_in(self._db, FLEET_ORDER)

    def _save_meta(self, key: str, value: str | None) -> None:
        with self._lock, _errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM meta WHERE key = ?", (key,))
            if value is not None:
                self._db.execute("INSERT INTO meta VALUES (?, ?)", (key, value))

    def save_learned(self, key: str, state: Mapping[str, Any], at_unix_s: float) -> None:
        """Keep what a policy has learned under the key of the deployment."""
        values = (key, at_unix_s, json.dumps(state))
        oldest = "SELECT key FROM learned ORDER BY at_unix_s DESC LIMIT -1 OFFSET ?"
        with self._lock, _errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT OR REPLACE INTO learned VALUES (?, ?, ?)", values)
            self._db.execute(f"DELETE FROM learned WHERE key IN ({oldest})", (MAX_LEARNED,))  # noqa: S608

    def learned(self, key: str) -> Mapping[str, Any] | None:
        """What was kept under `key`."""
        with self._lock, _errors(self.path):
            row = self._db.execute("SELECT state FROM learned WHERE key = ?", (key,)).fetchone()
            return dict(json.loads(row[0])) if row else None

    def all_learned(self) -> list[Learned]:
        """What is kept of every deployment, the latest first."""
        query = "SELECT key, at_unix_s, state FROM learned ORDER BY at_unix_s DESC"
        with self._lock, _errors(self.path):
            return [Learned(key, at, json.loads(state)) for key, at, state in self._db.execute(query)]

    def _one(self, query: str) -> tuple[Any, ...]:
        with self._lock, _errors(self.path):
            return tuple(self._db.execute(query).fetchone())

    def close(self) -> None:
        """Close the database."""
        with self._lock, _errors(self.path):
            self._db.close()


def _writable(path: Path) -> bool:
    """False only of a file that is there: SQLite calls it an I/O error that such a one cannot be locked."""
    return not path.exists() or os.access(path, os.W_OK)


def check_version(db: sqlite3.Connection) -> int:
    """Its schema's version; raises `sqlite3.DatabaseError` where that is of a later release."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError(
            f"schema version {version} is newer than this release ({len(MIGRATIONS)})"
        )
    return version


def override_in(db: sqlite3.Connection) -> StoredOverride | None:
    """The override kept, also by an older schema, which has fewer columns: they were added at the end."""
    row = db.execute("SELECT * FROM override").fetchone()
    return StoredOverride(*row[1:]) if row else None


def meta_in(db: sqlite3.Connection, key: str) -> str | None:
    """A single value that is kept."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else None


class _errors:  # noqa: N801  reads as a phrase in a with statement
    """Turns SQLite's and JSON's errors into `StoreError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | ValueError | TypeError):
            raise StoreError(f"{self._path}: {in_words(error)}") from error
