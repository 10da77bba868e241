"""The log: text or one JSON object a line, on standard error, with repeated failures thinned out."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

MAX_KEYS = 256


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record with its fields."""
        line: dict[str, Any] = {
            "at_unix_s": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"fields": record.__dict__["fields"]} if "fields" in record.__dict__ else {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Throttle(logging.Filter):
    """Lets a record with a `repeat_key` through once in `repeat_s`; the next one says how many were not.

    OpenTelemetry's exporters, which complain at every batch, have the name of their logger for a key.
    """

    def __init__(self, repeat_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._repeat_s = repeat_s
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        exporter = record.name if record.name.startswith("opentelemetry.") else None
        key = record.__dict__.get("repeat_key", exporter)
        if key is None:
            return True
        now_s = self._clock()
        last_s, left_out = self._seen.get(key, (float("-inf"), 0))
        if now_s - last_s < self._repeat_s:
            self._seen[key] = (last_s, left_out + 1)
            return False
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = (now_s, 0)
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more like it)"
        return True


def configure(level: str, form: str, repeat_s: float) -> None:
    """Set up the log of this process."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    handler.addFilter(Throttle(repeat_s))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
