"""Asks the engine what is due in a turn: the fast endpoints within it, the slow ones beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from controller.control_state import ControlState
from controller.engine_client import EngineClient
from controller.errors import EngineError
from controller.exposition import LoadSample, ServerInfo
from controller.observer import EngineSample

_Record = TypeVar("_Record")
ENDPOINTS = ("loads", "metrics", "speculation", "server_info")


@dataclass(frozen=True, slots=True)
class Reading(Generic[_Record]):
    """One answer, or why there is none."""

    record: _Record | None
    error: EngineError | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that was read in one turn."""

    sample: EngineSample
    durations_s: Mapping[str, float] = field(default_factory=dict)
    """Per endpoint asked."""
    errors: Mapping[str, EngineError] = field(default_factory=dict)
    """Per endpoint that failed."""


class SlowSource(Generic[_Record]):
    """An endpoint that is read every `period_s` in a task of its own, never more than once at a time."""

    def __init__(
        self, name: str, fetch: Callable[[], Awaitable[_Record]], period_s: float, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._period_s = period_s
        self._clock = clock
        self._task: asyncio.Task[Reading[_Record]] | None = None
        self._started_s: float | None = None

    def start_if_due(self, now_s: float, *, hurry: bool = False) -> None:
        """Begin a read when the period is over, or at once in a hurry."""
        due = hurry or self._started_s is None or now_s - self._started_s >= self._period_s
        if due and self._task is None:
            self._started_s = now_s
            self._task = asyncio.create_task(read(self._fetch, self._clock), name=f"specgov-{self._name}")

    def take(self) -> Reading[_Record] | None:
        """The answer, if one has come since."""
        if self._task is None or not self._task.done():
            return None
        reading, self._task = self._task.result(), None
        return reading

    async def aclose(self) -> None:
        """Abandon a read in progress."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class Scraper:
    """Reads one engine."""

    def __init__(
        self,
        client: EngineClient,
        *,
        metrics_period_s: float,
        info_period_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._clock = clock
        self._metrics = SlowSource("metrics", client.metrics, metrics_period_s, clock)
        self._info = SlowSource("server-info", client.server_info, info_period_s, clock)
        self._loads_failed = False

    async def scrape(self, now_s: float, *, restarted: bool = False) -> Scrape:
        """One turn; never raises `EngineError`.  `restarted`: `/server_info` may say something new."""
        self._metrics.start_if_due(now_s, hurry=self._loads_failed)
        self._info.start_if_due(now_s, hurry=restarted)
        loads, control = await asyncio.gather(
            read(self._client.loads, self._clock), read(self._client.control_state, self._clock)
        )
        self._loads_failed = loads.record is None
        return _scrape(self._clock(), loads, control, self._metrics.take(), self._info.take())

    async def aclose(self) -> None:
        """Abandon reads in progress."""
        await self._metrics.aclose()
        await self._info.aclose()


async def read(fetch: Callable[[], Awaitable[_Record]], clock: Callable[[], float]) -> Reading[_Record]:
    """The answer of `fetch`, or its `EngineError`, with how long it took."""
    began_s = clock()
    try:
        record = await fetch()
    except EngineError as error:
        return Reading(None, error, clock() - began_s)
    return Reading(record, None, clock() - began_s)


def _scrape(
    at_s: float,
    loads: Reading[LoadSample],
    control: Reading[ControlState],
    metrics: Reading[LoadSample] | None,
    info: Reading[ServerInfo] | None,
) -> Scrape:
    readings: dict[str, Reading[Any] | None] = {
        "loads": loads,
        "speculation": control,
        "metrics": metrics,
        "server_info": info,
    }
    asked = {name: reading for name, reading in readings.items() if reading is not None}
    sample = EngineSample(
        at_s,
        loads.record,
        metrics.record if metrics else None,
        control.record,
        info.record if info else None,
    )
    return Scrape(
        sample,
        {name: reading.duration_s for name, reading in asked.items()},
        {name: reading.error for name, reading in asked.items() if reading.error is not None},
    )
