"""What was learned, as a file: one pod writes it, others start from it.

```json
{"schema": 1, "learned": [{"deployment": {"sglang": "0.5.23", "...": "..."}, "at_unix_s": 1.0, "state": {}}]}
```

A piece counts only for a deployment that is equal in every part; so one file may hold several.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controller.errors import KnowledgeFileError
from controller.store import Learned

SCHEMA = 1


def to_json(pieces: Iterable[Learned]) -> dict[str, Any]:
    """The file's content."""
    return {
        "schema": SCHEMA,
        "learned": [
            {"deployment": json.loads(p.key), "at_unix_s": p.at_unix_s, "state": p.state} for p in pieces
        ],
    }


def read(path: Path) -> list[Learned]:
    """The pieces in a file; raises `KnowledgeFileError`."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KnowledgeFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise KnowledgeFileError(f"{path}: not JSON: {error}") from None
    try:
        return parse(body)
    except KnowledgeFileError as error:
        raise KnowledgeFileError(f"{path}: {error}") from None


def parse(body: Any) -> list[Learned]:
    """The pieces in a file's content; raises `KnowledgeFileError`, which names the field."""
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema") if isinstance(body, dict) else type(body).__name__
        raise KnowledgeFileError(f"schema must be {SCHEMA}, got {found!r}: write it with this release")
    learned = body.get("learned")
    if not isinstance(learned, list):
        raise KnowledgeFileError(f"learned must be a list, got {type(learned).__name__}")
    return [_piece(f"learned[{i}]", item) for i, item in enumerate(learned)]


def _piece(where: str, item: Any) -> Learned:
    fields: dict[str, Any] = item if isinstance(item, dict) else {}
    at = fields.get("at_unix_s")
    for name in ("deployment", "state"):
        if not isinstance(fields.get(name), dict):
            raise KnowledgeFileError(f"{where}.{name} must be an object, got {fields.get(name)!r:.40}")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise KnowledgeFileError(f"{where}.at_unix_s must be a number, got {at!r:.40}")
    return Learned(key_of(fields["deployment"]), float(at), fields["state"])


def key_of(deployment: dict[str, Any]) -> str:
    """The key under which a deployment's knowledge is kept."""
    return json.dumps(deployment, sort_keys=True)
