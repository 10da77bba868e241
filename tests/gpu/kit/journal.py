"""What a plan found, written down as it happens: a plan that is cut off has lost nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Journal:
    """`records.jsonl` in the output folder, a JSON object a line, flushed at once; the log on stdout."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._file = out.joinpath("records.jsonl").open("a")

    def record(self, kind: str, **fields: Any) -> None:
        """Keep one fact; `at` is the wall clock, which is also the step log's."""
        self._file.write(json.dumps({"kind": kind, "at": time.time(), **fields}, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing more will be recorded."""
        self._file.close()

    def say(self, *words: object) -> None:
        """Tell whoever watches."""
        print(time.strftime("%H:%M:%S"), *words, flush=True)
