"""Why requests failed: the first few distinct error texts, counted.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from controller.bench.records import RequestRecord

MAX_TEXTS = 5
"""A server that numbers its errors must not fill the results with them."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """How many requests failed with this text."""

    text: str
    count: int


def errors_of(
    records: Iterable[RequestRecord], from_s: float = -math.inf, to_s: float = math.inf
) -> tuple[ErrorCount, ...]:
    """Of the requests that failed in (`from_s`, `to_s`]; see `add_up`."""
    return add_up(ErrorCount(text, 1) for _, text in sorted(_failed(records, from_s, to_s)))


def failed_between(records: Iterable[RequestRecord], from_s: float, to_s: float) -> int:
    """How many requests failed in (`from_s`, `to_s`]."""
    return len(_failed(records, from_s, to_s))


def _failed(records: Iterable[RequestRecord], from_s: float, to_s: float) -> list[tuple[float, str]]:
    """When and why."""
    return [
        (record.ended_s, record.error)
        for record in records
        if record.error is not None and record.ended_s is not None and from_s < record.ended_s <= to_s
    ]


def add_up(errors: Iterable[ErrorCount]) -> tuple[ErrorCount, ...]:
    """The first `MAX_TEXTS` distinct texts, as first seen, with their counts; others are left out."""
    counts: dict[str, int] = {}
    for error in errors:
        if error.text in counts or len(counts) < MAX_TEXTS:
            counts[error.text] = counts.get(error.text, 0) + error.count
    return tuple(ErrorCount(text, count) for text, count in counts.items())


def in_words(errors: Iterable[ErrorCount], failed: int) -> str:
    """Texts with counts, of `failed` requests in all."""
    known = list(errors)
    rest = failed - sum(error.count for error in known)
    others = [f"{rest} with other texts"] if rest > 0 else []
    return ", ".join([f"{error.count} times {error.text!r}" for error in known] + others)
