"""The fleet-wide override: one small file that every sidecar of a fleet watches.

On Kubernetes it is a mounted ConfigMap, so one `kubectl` command switches the whole fleet, and deleting
the ConfigMap ends it.  Polled, not notified: a mounted ConfigMap changes by a swapped symbolic link, which
file notification reports in a way of its own on every file system.

The file, JSON, e.g. `{"mode": "off", "reason": "bad kernel", "until": "2027-01-31T06:00:00Z"}`:

- absent: no override, so to delete it is how one ends;
- wrong, or empty: what was in force stays in force, and `error` says what is wrong.  A slip in a
  fleet-wide file must neither switch a thousand servers nor end an override that somebody relies on.

An override given over REST wins on its own pod; that merge is not done here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from controller.order_rules import MAX_DEPTH
from controller.order_text import Printable, Why, in_words
from controller.strict_json import RepeatedKeyError, unique

MAX_BYTES = 16 << 10


class FleetOverride(BaseModel):
    """What the file asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "on", "native"]
    """`off`: no speculation.  `on`: speculate, at `depth`.  `native`: SGLang's own choice."""
    depth: int | None = Field(default=None, ge=1, le=MAX_DEPTH)
    """Draft tokens per step; `on` only.  `None`: the deepest that is built."""
    reason: Why
    """Why, for whoever sees it at three in the morning."""
    actor: Annotated[Printable, Field(min_length=1)] = "fleet"
    """Who."""
    until: AwareDatetime | None = None
    """RFC 3339 with a time zone; `None`: until the file goes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.depth is not None and self.mode != "on":
            raise ValueError(f"depth must be left out unless mode is on, got {self.depth} with {self.mode}")
        return self

    @property
    def until_unix_s(self) -> float | None:
        """End in seconds since the epoch."""
        return None if self.until is None else self.until.timestamp()


class FleetOverrideFile:
    """Reads the file whenever its content may have changed."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist, now or ever."""
        self.path = path
        self.error: str | None = None
        """What is wrong with the file as it is now; `None`: nothing, or there is no file."""
        self._wanted: FleetOverride | None = None
        self._content: bytes | None = None

    @property
    def wanted(self) -> FleetOverride | None:
        """What the file asked for when it was last right, over or not."""
        return self._wanted

    def resume(self, wanted: FleetOverride) -> None:
        """`wanted` was in force before a restart: it stays so if the file is wrong by now."""
        if self._wanted is None and (self._content is None or self.error is not None):
            self._wanted = wanted

    def poll(self, now_unix_s: float) -> FleetOverride | None:
        """The override in force at `now_unix_s` (wall clock, s); `None` when there is none."""
        self._refresh()
        until = self._wanted.until_unix_s if self._wanted else None
        return None if until is not None and now_unix_s >= until else self._wanted

    def _refresh(self) -> None:
        try:
            content = _read(self.path)
        except OSError as error:
            self.error = f"{self.path} must be readable: {error.strerror}"
            return
        if content is not None and content == self._content and self.error is None:
            return
        self._content = content
        if content is not None and not content.strip():
            self.error = f"{self.path} is empty, which ends no order: delete the file to end the fleet's"
            return
        try:
            self._wanted = None if content is None else _parsed(content)
        except ValidationError as error:
            self.error = f"{self.path}: {_faults(error)}"
        except RepeatedKeyError as error:
            self.error = f"{self.path}: {error}"
        else:
            self.error = None


def _read(path: Path) -> bytes | None:
    """Its content; `None`: there is no file.  Cut at the limit, which then is no JSON."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None


def _parsed(content: bytes) -> FleetOverride:
    wanted = FleetOverride.model_validate_json(content)
    # of a key that is there twice pydantic takes the last
    json.loads(content, object_pairs_hook=unique)
    return wanted


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    named = ((".".join(map(str, fault["loc"])), in_words(fault)) for fault in faults)
    return "; ".join(f"{field}: {message}" if field else message for field, message in named)
