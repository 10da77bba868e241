"""What went wrong with the state database, in SQLite's words, and what mends it.  Pure."""

from __future__ import annotations

_LOST = "lost with it are the decision log, what was learned and any order in it"
_MOUNT = "mount it writable, and let the sidecar's user write it"
_REMEDIES = {
    "locked": "another process uses it, usually a sidecar with the same store.path; stop one of the two",
    "is full": "free its disk: what waits is then written",
    "not a database": f"move it away, and a new one is made; {_LOST}",
    "malformed": f"move it away, and a new one is made; {_LOST}",
    "newer than this release": f"run that release, or move it away; {_LOST}",
    "readonly": _MOUNT,
    "read-only": _MOUNT,
    "Permission denied": "let the sidecar's user read and write it",
    "unable to open": "mount its directory, and let the sidecar's user write there",
}
"""What mends a fault of the database, by a part of SQLite's words for it."""


def in_words(error: Exception, *, writable: bool = True) -> str:
    """SQLite's own words, and what to do where that is known; `writable`: whether the file may be written."""
    said = str(error) if writable else f"{error}, the file is read-only"
    remedy = next((words for part, words in _REMEDIES.items() if part.lower() in said.lower()), None)
    return said if remedy is None else f"{said}: {remedy}"
