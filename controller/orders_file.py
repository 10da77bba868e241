"""Reads what is in force out of a state database that cannot be opened for writing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from controller.errors import StoreError
from controller.store import CRASH_PIN, FLEET_ORDER, IDENTITY, Orders, check_version, meta_in, override_in
from controller.store_words import in_words


def read_orders(path: Path) -> Orders | None:
    """What the file at `path` says is in force; `None`: there is no file, or nothing was ever written to it.

    Nothing is written, no lock is taken and none is heeded, so nobody may be writing to it.

    Raises `StoreError`.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path}: {in_words(error)}") from None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{_how(path)}", uri=True)) as db:
            return _orders_in(db)
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise StoreError(f"{path}: {in_words(error)}") from None


def _how(path: Path) -> str:
    """How SQLite opens it: with the journal that a killed process left, which may have the order alone.

    `unix-none` leaves the locks out that need a writable file.  Without a journal, which even then would be
    made, the file is all there is: `immutable`.
    """
    journal = path.with_name(path.name + "-wal")
    return "mode=ro&vfs=unix-none" if journal.exists() else "immutable=1"


def _orders_in(db: sqlite3.Connection) -> Orders | None:
    db.execute("PRAGMA locking_mode=EXCLUSIVE")  # with it the journal needs no file of shared memory
    if check_version(db) == 0:
        return None
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    identity, pin = meta_in(db, IDENTITY), meta_in(db, CRASH_PIN)
    if identity is None:
        return None
    return Orders(identity, override_in(db), None if pin is None else float(pin), meta_in(db, FLEET_ORDER))
