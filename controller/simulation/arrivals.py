"""Arrival traces: when requests come, how long their prompts and answers are.

Read by content, not by file name:

| format | recognised by | one request |
| --- | --- | --- |
| Azure LLM inference trace (CSV) | header `TIMESTAMP,ContextTokens,GeneratedTokens` | ISO time |
| BurstGPT (CSV) | header with `Timestamp`, `Request tokens`, `Response tokens` | seconds |
| Mooncake (JSONL) | keys `timestamp`, `input_length`, `output_length` | milliseconds |
| our own (JSONL) | keys `arrival_s`, `prompt_tokens`, `output_tokens` | seconds |

A row that cannot be used is kept as a `BadRow` with its line number; nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_TOKENS = 10_000_000
MAX_REPEATED = 2_000_000
"""Requests of a trace that is cut or repeated: 210 MB."""


class InvalidArrivalsError(ValueError):
    """An arrivals file that cannot be read, or has bad rows under `strict`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace; the first arrives at 0 s."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out, and why."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in order of time, and what was wrong with the file."""

    format: str
    arrivals: tuple[Arrival, ...]
    bad_rows: tuple[BadRow, ...] = ()
    reordered: int = 0
    """Rows that came before the time of the row above them; they were sorted in."""

    @property
    def duration_s(self) -> float:
        """Time of the last arrival."""
        return self.arrivals[-1].arrival_s if self.arrivals else 0.0

    def scaled(self, rate_scale: float) -> Trace:
        """The same requests, `rate_scale` times as fast."""
        if not (math.isfinite(rate_scale) and rate_scale > 0):
            raise ValueError(f"rate_scale must be > 0, got {rate_scale!r}")
        faster = tuple(
            Arrival(a.arrival_s / rate_scale, a.prompt_tokens, a.output_tokens) for a in self.arrivals
        )
        return Trace(self.format, faster, self.bad_rows, self.reordered)

    def lasting(self, duration_s: float) -> Trace:
        """The trace cut at `duration_s`, or repeated from its start until then."""
        period_s = self.duration_s * (1 + 1 / max(1, len(self.arrivals) - 1))
        if period_s <= 0:
            raise InvalidArrivalsError("a trace needs two arrival times to be repeated")
        if len(self.arrivals) * duration_s / period_s > MAX_REPEATED:
            raise InvalidArrivalsError(
                f"{len(self.arrivals)} requests every {period_s:.3g} s for {duration_s:g} s are more than"
                f" {MAX_REPEATED}: lower --rate-scale or --duration"
            )
        rounds = (
            Arrival(n * period_s + a.arrival_s, a.prompt_tokens, a.output_tokens)
            for n in itertools.count()
            for a in self.arrivals
        )
        kept = tuple(itertools.takewhile(lambda a: a.arrival_s < duration_s, rounds))
        return Trace(self.format, kept, self.bad_rows, self.reordered)


def read_arrivals(path: str | Path, *, strict: bool = False) -> Trace:
    """Read a trace file; raises `InvalidArrivalsError` (with the file's name), `OSError`.

    With `strict`, any bad row is an error.
    """
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        try:
            trace = parse_arrivals(file)
        except InvalidArrivalsError as error:
            raise InvalidArrivalsError(f"{path}: {error}") from error
        except UnicodeDecodeError as error:
            raise InvalidArrivalsError(f"{path} must be text in UTF-8 (not compressed): {error}") from error
    if strict and trace.bad_rows:
        raise InvalidArrivalsError(f"{path}: {describe_bad_rows(trace)}")
    if not trace.arrivals:
        raise InvalidArrivalsError(f"{path}: no usable row; {describe_bad_rows(trace)}")
    return trace


def describe_bad_rows(trace: Trace, first: int = 5) -> str:
    """How many rows were left out, and the first few by line."""
    if not trace.bad_rows:
        return "0 bad rows"
    named = "; ".join(str(row) for row in trace.bad_rows[:first])
    more = len(trace.bad_rows) - first
    rows = "row" if len(trace.bad_rows) == 1 else "rows"
    return f"{len(trace.bad_rows)} bad {rows}: {named}" + (f"; and {more} more" if more > 0 else "")


def parse_arrivals(lines: Iterable[str]) -> Trace:
    """Read a trace from its lines; raises `InvalidArrivalsError` when the format is not known."""
    numbered = iter(enumerate(lines, start=1))
    first = next(((n, line) for n, line in numbered if line.strip()), None)
    if first is None:
        raise InvalidArrivalsError("the file is empty")
    if first[1].lstrip().startswith("{"):
        return _parse_jsonl(itertools.chain([first], numbered))
    return _parse_csv(first[1], numbered)


def _parse_jsonl(numbered: Iterator[tuple[int, str]]) -> Trace:
    def rows() -> Iterator[tuple[int, object]]:
        for n, line in numbered:
            if line.strip():
                try:
                    yield n, json.loads(line)
                except json.JSONDecodeError as error:
                    yield n, ValueError(f"not JSON ({error.msg})")

    pending = list(rows())
    for name, reader in JSONL.items():
        if any(isinstance(row, Mapping) and reader.keys <= row.keys() for _, row in pending[:100]):
            return _collect(name, reader, pending)
    raise InvalidArrivalsError(f"is JSONL with the keys {_keys(pending)}; a trace is {known_formats()}")


def _keys(rows: list[tuple[int, object]]) -> str:
    first = next((row for _, row in rows if isinstance(row, Mapping)), {})
    return ", ".join(map(str, first))[:120] or "none"


def _parse_csv(header: str, numbered: Iterator[tuple[int, str]]) -> Trace:
    names = [name.strip() for name in next(csv.reader([header]))]
    for name, reader in CSV.items():
        if reader.keys <= set(names):
            rows = ((n, _csv_row(names, line)) for n, line in numbered if line.strip())
            return _collect(name, reader, rows)
    raise InvalidArrivalsError(f"begins with the line {header.strip()[:120]!r}; a trace is {known_formats()}")


def _csv_row(names: list[str], line: str) -> Mapping[str, str] | ValueError:
    values = next(csv.reader([line]))
    if len(values) != len(names):
        return ValueError(f"has {len(values)} columns, the header {len(names)}")
    return dict(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Which keys make up a request, and how its time becomes seconds."""

    time_key: str
    prompt_key: str
    output_key: str
    seconds: Callable[[Any], float]

    @property
    def names(self) -> tuple[str, str, str]:
        return self.time_key, self.prompt_key, self.output_key

    @property
    def keys(self) -> set[str]:
        return set(self.names)

    def read(self, row: object) -> tuple[float, int, int]:
        """(seconds, prompt, output); raises `ValueError` with the key and the value."""
        if isinstance(row, ValueError):
            raise row
        if not isinstance(row, Mapping):
            raise ValueError(f"must be an object, got {row!r:.60}")  # noqa: TRY004 a bad row, not a bug
        missing = self.keys - row.keys()
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} is missing")
        time = _convert(self.time_key, row[self.time_key], self.seconds)
        if not (math.isfinite(time) and time >= 0):
            raise ValueError(f"{self.time_key} must be finite and >= 0, got {row[self.time_key]!r:.60}")
        return time, _tokens(self.prompt_key, row), _tokens(self.output_key, row)


def _convert(key: str, value: object, convert: Callable[[Any], float]) -> float:
    try:
        return convert(value)
    except (ValueError, TypeError):
        raise ValueError(f"{key} is not a time, got {value!r:.60}") from None


def _tokens(key: str, row: Mapping[str, Any]) -> int:
    value = row[key]
    try:
        number = float(value)
    except (ValueError, TypeError):
        number = math.nan
    if isinstance(value, bool) or not (number.is_integer() and 1 <= number <= MAX_TOKENS):
        raise ValueError(f"{key} must be a whole number 1..{MAX_TOKENS}, got {value!r:.60}")
    return int(number)


def _iso_seconds(value: str) -> float:
    time = dt.datetime.fromisoformat(value.strip())
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return time.timestamp()


_azure = _Reader("TIMESTAMP", "ContextTokens", "GeneratedTokens", _iso_seconds)
_burstgpt = _Reader("Timestamp", "Request tokens", "Response tokens", float)
_mooncake = _Reader("timestamp", "input_length", "output_length", lambda ms: float(ms) / 1000.0)
_own = _Reader("arrival_s", "prompt_tokens", "output_tokens", float)
CSV = {"azure": _azure, "burstgpt": _burstgpt}
JSONL = {"specgov": _own, "mooncake": _mooncake}


def known_formats() -> str:
    """Every format with the columns or keys that it is recognised by."""
    csv_ones = [f"CSV with {', '.join(reader.names)} ({name})" for name, reader in CSV.items()]
    return " or ".join(
        [*csv_ones, *(f"JSONL with {', '.join(reader.names)} ({name})" for name, reader in JSONL.items())]
    )


def _collect(name: str, reader: _Reader, rows: Iterable[tuple[int, object]]) -> Trace:
    good: list[tuple[float, int, int]] = []
    bad: list[BadRow] = []
    for line, row in rows:
        try:
            good.append(reader.read(row))
        except ValueError as error:
            bad.append(BadRow(line, str(error)))
    reordered = sum(b[0] < a[0] for a, b in itertools.pairwise(good))
    good.sort(key=lambda request: request[0])
    start_s = good[0][0] if good else 0.0
    arrivals = tuple(Arrival(time - start_s, prompt, output) for time, prompt, output in good)
    return Trace(name, arrivals, tuple(bad), reordered)
