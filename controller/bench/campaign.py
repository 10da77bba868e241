"""Windows of every target at every concurrency, interleaved in time.

Round by round the order of servers, and of arms on a server, is reversed (A B B A ...), so that drift of the
machine (clocks, temperature, a neighbour) falls on all alike.  While one server is measured the others are
idle, since they may share a GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from controller.bench.arms import AS_IS, BenchArm
from controller.bench.away import why_away
from controller.bench.between import Between, Ledger
from controller.bench.cells import CellCount, difference
from controller.bench.engine import EngineRefusedError, arms_in_use
from controller.bench.failed import ErrorCount, errors_of
from controller.bench.flowing import SlowStart, until_flowing
from controller.bench.load import ClosedLoop, LoopLag
from controller.bench.offered import Offered
from controller.bench.prompts import PromptSource
from controller.bench.records import RequestRecord, WindowStats, window_stats
from controller.bench.target import CONFIRM_WITHIN_S, RequestsFailError, ServerUnderTest, Target
from controller.errors import BadRequestError

LEASE_MARGIN_S = 60.0
MAX_LEASE_S = 3600.0
_SAMPLE_EVERY_S = 0.25
Govern = Callable[[ServerUnderTest, BenchArm], AbstractAsyncContextManager[None]]
"""Runs a sidecar with the arm's policy on a server while the context lasts."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long what takes, in seconds."""

    window_s: float = 5.0
    settle_s: float = 1.0
    """Between an arm seen in use and its window."""
    ramp_limit_s: float = 30.0
    """At most so long until nearly every client has been answered; see `until_flowing`."""
    warm_up_s: float = 5.0
    """Load at the highest concurrency on every server before anything is measured."""


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement of one target."""

    label: str
    server: str
    arm: str
    concurrency: int | None
    """Closed-loop clients; `None` in an open loop."""
    round: int
    phase: str | None
    from_s: float
    to_s: float
    stats: WindowStats
    engine_tok_s: float | None
    """By the hook's own counters; `None` without the hook."""
    cells: tuple[CellCount, ...]
    client_lag_s: float | None
    """The longest that the load generator itself was late: above a few hundredths it measures itself."""
    errors: tuple[ErrorCount, ...] = ()
    """Why requests failed inside the window: the first few texts."""
    away: str | None = None
    """What shows that the server was away in it, so that it is no measurement and in no figure."""
    offered: Offered | None = None
    """What an open loop asked for; `None` in a closed one."""


@dataclass(frozen=True, slots=True)
class DepthSample:
    """What telemetry showed at a moment."""

    at_s: float
    label: str
    depth: int | None
    gear: str | None
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A target that could not be measured, and why."""

    label: str
    concurrency: int | None
    message: str
    errors: tuple[ErrorCount, ...] = ()
    """Why requests failed while it was tried: the first few texts."""


class Campaign:
    """Measures; `windows`, `depths`, `failures`, `slow_starts` and `between()` grow while it runs."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        source: PromptSource,
        timing: Timing,
        stream_every: int,
        seed: int,
        clock: Callable[[], float],
        govern: Govern,
        on_window: Callable[[Window | Failure], None] = lambda _: None,
    ) -> None:
        self.windows: list[Window] = []
        self.depths: list[DepthSample] = []
        self.failures: list[Failure] = []
        self.slow_starts: list[SlowStart] = []
        self._ledger = Ledger()
        self._states: dict[str, Mapping[str, Any] | None] = {}
        """The state of each server at the end of its last window."""
        self.targets = targets
        self.source = source
        self.timing = timing
        self.stream_every = stream_every
        self.rng = random.Random(seed)  # noqa: S311 - load, not secrets
        self.clock = clock
        self._govern = govern
        self.on_window = on_window
        self._lag = LoopLag(clock)

    async def sweep(self, concurrencies: Sequence[int], rounds: int) -> None:
        """Every target at every concurrency, `rounds` times, alternated."""
        await self.claim()
        async with self.watching():
            for server in self.servers():
                await self._warm_up(server, max(concurrencies))
            for concurrency, number in itertools.product(concurrencies, range(rounds)):
                for group in ordered(self.targets, number):
                    await self._visit(group, concurrency, number)

    async def claim(self) -> None:
        """Take the lease of every server before there is load; raises `LeaseHeldError`, `BadRequestError`.

        A sidecar without one (its engine idles) would take it as soon as load comes.  With policies alone
        there is none to take: each brings its own holder.
        """
        for group in ordered(self.targets, 0):
            ours = [target for target in group if target.arm.policy is None]
            for target in sorted(ours, key=lambda target: target.arm.fixed is None)[:1]:
                seconds = self.timing.warm_up_s + self.timing.ramp_limit_s + LEASE_MARGIN_S
                with contextlib.suppress(EngineRefusedError):  # its window will say so
                    await target.apply(min(MAX_LEASE_S, seconds))
        for server in self.servers():
            await self._check_apart(server)

    async def _check_apart(self, server: ServerUnderTest) -> None:
        """Raise `BadRequestError` where the lease just taken of one server shows in another too."""
        if server.control is None or self._steers(server):
            return
        state = await server.control.state()
        if state is not None and state.get("holder") == server.control.holder:
            url = str(server.client.http.base_url).rstrip("/")
            raise BadRequestError(
                f"--plain and --beside must be servers of their own, got {server.name} at {url}, which holds "
                "the lease that this benchmark has just taken of --engine: leave it out; as-is in --arms "
                "measures --engine as it is"
            )

    def watching(self) -> AbstractAsyncContextManager[LoopLag]:
        """Watch the load generator's own lateness while the block runs."""
        return self._lag.watching()

    async def measure(
        self,
        target: Target,
        records: list[RequestRecord],
        work: Callable[[], Awaitable[object]],
        *,
        stream_share: float = 1.0,
        offered: Callable[[], Offered | None] = lambda: None,
        **notes: Any,
    ) -> Window:
        """One window on whatever load is there now, from now until `work()` (say, a sleep) is done.

        `offered` is called then.
        """
        from_s = self.clock()
        self._ledger.account(target.server.name, records, from_s)
        before = await target.server.state()  # inside the window: a server that stands would hide it there
        _, restarted = _counted(self._states.get(target.server.name), before)
        if restarted is not None:
            self._ledger.restarted(target.server.name, restarted)
        counted_from_s = self.clock()
        async with self._sampling(target):
            await work()
        to_s = self.clock()
        after = await target.server.state()
        # both counts were read just before their answers arrived
        counted_s = self.clock() - counted_from_s
        cells, away = _counted(before, after)
        window = Window(
            label=target.label,
            server=target.server.name,
            arm=target.arm.label,
            from_s=from_s,
            to_s=to_s,
            stats=window_stats(records, from_s, to_s, stream_share=stream_share),
            engine_tok_s=sum(c.tokens for c in cells) / counted_s if cells else None,
            cells=cells,
            client_lag_s=self._lag.worst_s(from_s, to_s),
            errors=errors_of(records, from_s, to_s),
            away=why_away(records, from_s, to_s) or away,
            offered=offered(),
            **{"concurrency": None, "round": 0, "phase": None, **notes},
        )
        self.windows.append(window)
        self._ledger.window(target.server.name, to_s)
        self._states[target.server.name] = after
        self.on_window(window)
        return window

    def between(self) -> tuple[Between, ...]:
        """What happened outside of windows until now."""
        return self._ledger.between()

    async def end(self, server: ServerUnderTest, records: Sequence[RequestRecord] = ()) -> None:
        """End the load of a server, if it is a closed loop; `records` are those of an open one."""
        await server.end()
        load = records if server.loop is None else server.loop.records
        self._ledger.account(server.name, load, self.clock())

    def fail(
        self,
        label: str,
        concurrency: int | None,
        problem: Exception,
        errors: tuple[ErrorCount, ...] = (),
    ) -> None:
        """Note that a target could not be measured, and why requests failed meanwhile."""
        failure = Failure(label, concurrency, str(problem), errors)
        self.failures.append(failure)
        self.on_window(failure)

    async def until_flowing(self, server: ServerUnderTest, loop: ClosedLoop) -> None:
        """Wait until the load is under way, and take note where it is not when the limit is reached."""
        limit_s = self.timing.ramp_limit_s
        found = await until_flowing(loop, self.clock, limit_s)
        if found is not None:
            answered, clients = found
            self.slow_starts.append(SlowStart(server.name, loop.concurrency, limit_s, clients, answered))

    @asynccontextmanager
    async def in_force(self, target: Target, seconds: float) -> AsyncIterator[None]:
        """The arm is in force while the block runs, which may take `seconds`.

        A server that is measured as it is beside arms that are held on it is handed back before, or the plan
        of the last arm, or of the claim, would be what is measured.
        A policy's sidecar hands back at the end; a fixed arm's lease would run out a minute later, and
        would lock that sidecar out, so it is handed back before.
        """
        if target.arm.policy is not None:
            if target.server.control is not None:
                await target.server.control.release()
            async with self._govern(target.server, target.arm):
                yield
            return
        control = target.server.control
        if target.arm.label == AS_IS and control is not None and self._steers(target.server):
            await control.until_released(limit_s=CONFIRM_WITHIN_S)
        await target.apply(min(MAX_LEASE_S, seconds + LEASE_MARGIN_S))
        yield

    def _steers(self, server: ServerUnderTest) -> bool:
        """Whether an arm of this benchmark puts plans in force there."""
        return any(t.server is server and t.arm.label != AS_IS for t in self.targets)

    def servers(self) -> list[ServerUnderTest]:
        """Every server once."""
        return [group[0].server for group in ordered(self.targets, 0)]

    async def _warm_up(self, server: ServerUnderTest, concurrency: int) -> None:
        if self.timing.warm_up_s <= 0:
            return
        loop = server.begin(self.source, self.rng, self.stream_every)
        try:
            await loop.scale(concurrency)
            await asyncio.sleep(self.timing.warm_up_s)
            _check_answered(server, loop.records, concurrency)
        finally:
            await self.end(server)

    async def _visit(self, group: Sequence[Target], concurrency: int, number: int) -> None:
        server = group[0].server
        loop = server.begin(self.source, self.rng, self.stream_every)
        try:
            await loop.scale(concurrency)
            await self.until_flowing(server, loop)
            for target in group:
                await self._window(target, loop, concurrency, number)
        finally:
            await self.end(server)

    async def _window(self, target: Target, loop: ClosedLoop, concurrency: int, number: int) -> None:
        begun_s = self.clock()
        try:
            async with self.in_force(target, self.timing.settle_s + self.timing.window_s):
                await target.confirm()
                await asyncio.sleep(self.timing.settle_s)
                window = partial(asyncio.sleep, self.timing.window_s)
                notes: dict[str, Any] = {"concurrency": concurrency, "round": number}
                await self.measure(target, loop.records, window, stream_share=loop.stream_share, **notes)
        except EngineRefusedError as problem:
            self.fail(target.label, concurrency, problem, errors_of(loop.records, begun_s))

    @asynccontextmanager
    async def _sampling(self, target: Target) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample(target), name="depth-samples")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample(self, target: Target) -> None:
        control = target.server.control
        while control is not None:
            state: Mapping[str, Any] = await control.state() or {}
            at_s = self.clock()
            sizes = [rank.get("batch_size") for rank in state.get("telemetry") or []]
            for (depth, gear), size in zip(arms_in_use(state), sizes, strict=True):
                self.depths.append(DepthSample(at_s, target.label, depth, gear, size))
            await asyncio.sleep(_SAMPLE_EVERY_S)


def _counted(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[tuple[CellCount, ...], str | None]:
    """The hook's counts of a window, and what shows that the engine restarted in it.

    No counts without the hook, or where not the same DP ranks tell theirs: a missing one is unknown.
    """
    ranks = [len((state or {}).get("telemetry") or []) for state in (before, after)]
    if not before or not after or ranks[0] != ranks[1]:
        return (), None
    if _started(before) != _started(after):
        return (), "the engine restarted"
    try:
        return difference(before, after), None
    except ValueError as problem:
        return (), str(problem)


def _started(state: Mapping[str, Any]) -> list[float | None]:
    """When the scheduler of each DP rank was started."""
    return [rank.get("started_unix_s") for rank in state.get("telemetry") or []]


def _check_answered(server: ServerUnderTest, records: Sequence[RequestRecord], clients: int) -> None:
    """Raise `RequestsFailError` when no request brought a token and every client's first one failed.

    More would fail likewise.  One that still runs may be slow.
    """
    if any(record.events and record.error is None for record in records):
        return
    if all(record.error is not None for record in records[:clients]):
        failed = sum(record.error is not None for record in records)
        raise RequestsFailError(server.client, failed, errors_of(records)[0].text)


def ordered(targets: Sequence[Target], number: int) -> list[list[Target]]:
    """Targets by server, in this round's order: reversed, servers and arms alike, in every other round."""
    groups: dict[int, list[Target]] = {}
    for target in targets:
        groups.setdefault(id(target.server), []).append(target)
    order = -1 if number % 2 else 1
    return [group[::order] for group in list(groups.values())[::order]]
