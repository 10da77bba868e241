"""Explores every interleaving of a bounded world around the control plane: a small model checker.

The objects are the product's own: `ControlPlane` on an event loop that is turned by hand, `RankControl`
and `GovernedStepPolicy` of every rank.  The world around them is what may happen in between: holders that
push, renew, release and die, time that passes, commands that are delivered, whose answers are lost or that
never arrive, ranks that lag behind the first one, an engine that restarts.  A path is a list of choices;
paths are replayed from the start (coroutines cannot be copied) and cut where they reach a state that was
seen before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from sglang_hooks import control_plane
from sglang_hooks.ack_board import SLOT_BYTES, AckBoard
from sglang_hooks.control_plane import ControlError, ControlPlane, ranks_agree
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.status import PlainDecodeStatus
from tests.hooks.fakes import make_policy

LEASE_S = 3
NATIVE_DEPTH = 2


@dataclass(frozen=True)
class Bounds:
    """How large the world is."""

    ranks: int = 2
    requests: int = 3
    """PUTs and DELETEs in all."""
    steps: int = 1
    """Decode steps of the first rank."""
    ticks: int = 4
    """Times that the clock moves on."""
    faults: int = 1
    """Answers lost, commands lost, restarts."""
    rank_1_gears: tuple[str, ...] = ("warm", "cold")
    fallback: str | int = "native"


class HandTurnedLoop(asyncio.BaseEventLoop):
    """An event loop whose time stands still until `advance`; it does no I/O."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.faults: list[str] = []
        self.set_exception_handler(lambda _loop, context: self.faults.append(str(context)))

    def time(self) -> float:
        return self.now_s

    def _process_events(self, events: object) -> None:
        raise AssertionError

    def _write_to_self(self) -> None:
        """Nobody waits for it."""

    def settle(self) -> None:
        """Run all that can run now, in the order of asyncio."""
        asyncio._set_running_loop(self)
        try:
            while True:
                while self._scheduled and self._next().when() <= self.now_s:
                    handle = self._next()
                    self._scheduled.remove(handle)
                    handle._scheduled = False
                    self._ready.append(handle)
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)

    def _next(self) -> asyncio.TimerHandle:
        self._scheduled[:] = [handle for handle in self._scheduled if not handle.cancelled()] or []
        return min(self._scheduled, key=lambda handle: handle.when(), default=_NEVER)

    def timers(self) -> tuple[float, ...]:
        """Seconds until each timer."""
        return tuple(
            sorted(handle.when() - self.now_s for handle in self._scheduled if not handle.cancelled())
        )

    def advance(self) -> bool:
        """Move on to the next timer; `False`: there is none."""
        waits = self.timers()
        if waits:
            self.now_s += waits[0]
        return bool(waits)

    def close(self) -> None:
        asyncio._set_running_loop(self)
        with contextlib.suppress(Exception):
            for task in asyncio.all_tasks(self):
                task.cancel()
        asyncio._set_running_loop(None)
        self.settle()
        super().close()


class _Never:
    def when(self) -> float:
        return float("inf")


_NEVER = _Never()


class Wire:
    """SGLang's request path: commands wait here for the first rank; the others follow it in its order."""

    def __init__(self, ranks: list[RankControl]) -> None:
        self.ranks = ranks
        self.waiting: deque[tuple[dict[str, float], asyncio.Future[list[bool]]]] = deque()

    async def set(self, flat: dict[str, float]) -> list[bool]:
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((dict(flat), answer))
        return await answer

    async def get(self) -> list[dict[str, object]]:
        return [self.ranks[0].report()]


@dataclass
class Engine:
    """One life of the server."""

    loop: HandTurnedLoop
    plane: ControlPlane
    wire: Wire
    ranks: list[RankControl]
    order: list[dict[str, float] | None] = field(default_factory=list)
    """What the first rank did, and so what every rank does: commands, and `None` for a decode step."""
    at: list[int] = field(default_factory=list)
    """How far each rank has come in it."""
    launched: list[list[tuple[int, str]]] = field(default_factory=list)
    """Depth and gear that each rank launched: by its gear it runs a draft-extend, which has collectives."""
    requests: list[asyncio.Task[None]] = field(default_factory=list)


class World:
    """One path through the bounded world."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.left = {"requests": bounds.requests, "ticks": bounds.ticks, "faults": bounds.faults}
        self.left["steps"] = bounds.steps
        self.sequence = 0
        self.confirmed = 0
        self.engine = self._start()

    def _start(self) -> Engine:
        b = self.bounds
        board = AckBoard(bytearray(SLOT_BYTES * b.ranks))
        gears = [("warm", "cold"), b.rank_1_gears, ("warm", "cold")]
        ranks = [
            RankControl(
                make_policy(NATIVE_DEPTH),
                PlainDecodeStatus(gears=gears[i]),
                topology=Topology(tp_rank=i, tp_size=b.ranks),
                started_unix_s=0.0,
                board=board,
            )
            for i in range(b.ranks)
        ]
        loop, wire = HandTurnedLoop(), Wire(ranks)
        plane = ControlPlane(wire, board, sglang_version=None, fallback=b.fallback, clock=loop.time)
        return Engine(loop, plane, wire, ranks, at=[0] * b.ranks, launched=[[] for _ in ranks])

    def close(self) -> None:
        self.engine.loop.close()

    # What may happen

    def choices(self) -> list[str]:
        """Everything that may happen next."""
        engine, left = self.engine, self.left
        made = []
        if left["requests"]:
            made += ["put a 3", "put a 0", "put b 1", "old a", "release"]
        if left["ticks"] and engine.loop.timers():
            made.append("time")
        if engine.wire.waiting:
            made.append("deliver")
            if left["faults"]:
                made += ["lose answer", "lose command"]
        if left["faults"]:
            made.append("restart")
        if left["steps"]:
            made.append("step")
        made += [f"rank {i}" for i in range(1, len(engine.ranks)) if engine.at[i] < engine.at[0]]
        return made

    def do(self, choice: str) -> None:
        """Let one thing happen, and all that follows from it at once."""
        kind, *words = choice.split()
        {
            "put": self._put,
            "old": self._old,
            "release": self._release,
            "time": self._time,
            "deliver": self._deliver,
            "lose": self._lose,
            "restart": self._restart,
            "step": self._step,
            "rank": self._rank,
        }[kind](*words)
        self.engine.loop.settle()
        self.check()

    def _put(self, holder: str, depth: str) -> None:
        self.sequence += 1
        self._request(self.sequence, holder, int(depth))

    def _old(self, holder: str) -> None:
        self._request(max(1, self.sequence - 1), holder, 1)

    def _request(self, sequence: int, holder: str, depth: int) -> None:
        self.left["requests"] -= 1
        row = {"min_batch_size": 1, "depth": depth} | ({} if depth else {"gear": "cold"})
        body = {"schedule": [row], "lease_s": LEASE_S, "sequence": sequence, "holder": holder}
        self._call(self._confirmed(self.engine, body))

    async def _confirmed(self, engine: Engine, body: dict[str, object]) -> None:
        status, _ = await engine.plane.put(body)
        if status == 200:
            applied = [rank._applied.sequence for rank in engine.ranks]
            assert all(number >= body["sequence"] for number in applied), (body, applied)
            self.confirmed += 1

    def _release(self) -> None:
        self.left["requests"] -= 1
        self._call(self.engine.plane.delete(None))

    def _call(self, call: object) -> None:
        async def swallow() -> None:
            with contextlib.suppress(ControlError):
                await call

        loop = self.engine.loop
        asyncio._set_running_loop(loop)
        self.engine.requests.append(loop.create_task(swallow()))
        asyncio._set_running_loop(None)

    def _time(self) -> None:
        self.left["ticks"] -= 1
        self.engine.loop.advance()

    def _take(self) -> tuple[bool, asyncio.Future[list[bool]]]:
        flat, answer = self.engine.wire.waiting.popleft()
        self.engine.order.append(flat)
        return self._follow(0), answer

    def _deliver(self) -> None:
        applied, answer = self._take()
        answer.set_result([applied])

    def _lose(self, what: str) -> None:
        self.left["faults"] -= 1
        _, answer = self._take() if what == "answer" else self.engine.wire.waiting.popleft()
        answer.set_exception(OSError(f"{what} lost"))

    def _restart(self) -> None:
        self.left["faults"] -= 1
        self.close()
        self.engine = self._start()

    def _step(self) -> None:
        self.left["steps"] -= 1
        self.engine.order.append(None)
        self._follow(0)

    def _rank(self, number: str) -> None:
        self._follow(int(number))

    def _follow(self, i: int) -> bool:
        """Let rank `i` do the next thing in the common order."""
        engine = self.engine
        flat = engine.order[engine.at[i]]
        engine.at[i] += 1
        if flat is not None:
            return engine.ranks[i].apply(flat)
        policy = engine.ranks[i].policy
        engine.launched[i].append((policy.get_steps_for_batch(1), policy.gear))
        return True

    # What must hold

    def check(self) -> None:
        """In every state."""
        engine, plane = self.engine, self.engine.plane
        assert not engine.loop.faults, engine.loop.faults
        for request in engine.requests:
            if request.done() and not request.cancelled() and request.exception():
                raise request.exception()
        first = engine.launched[0]
        for launched in engine.launched[1:]:
            assert launched == first[: len(launched)], f"ranks launched {engine.launched}"
        assert ranks_agree(plane._ranks([engine.ranks[0].report()])) is not False
        over = engine.loop.now_s >= plane._deadline_s
        assert not (plane._plan and over), "a lease is live beyond its end"

    def drain(self) -> None:
        """From here on every holder is dead and nothing is lost: all ranks end on the fallback."""
        engine = self.engine
        for _ in range(60):
            engine.loop.settle()
            while engine.wire.waiting:
                self._deliver()
                engine.loop.settle()
            for i in range(1, len(engine.ranks)):
                while engine.at[i] < engine.at[0]:
                    self._follow(i)
            self.check()
            if not engine.loop.advance():
                break
        plane = engine.plane
        assert plane._plan is None, "a dead holder still governs"
        wanted = [plane._wanted.schedule] * len(engine.ranks)
        assert [rank._applied.schedule for rank in engine.ranks] == wanted, "a rank kept another schedule"
        assert all(request.done() for request in engine.requests), "a request hangs"

    def key(self) -> Hashable:
        """All that the future depends on."""
        engine, plane = self.engine, self.engine.plane
        now_s = engine.loop.now_s
        return (
            tuple(self.left.values()),
            self.sequence,
            plane._plan and (plane._plan.holder, plane._plan.schedule, plane._deadline_s - now_s),
            (plane._wanted.order, plane._wanted.sequence, plane._wanted.schedule),
            (plane._sent_order, plane._refused_order, plane._sender is None or plane._sender.done()),
            engine.loop.timers(),
            tuple(request.done() for request in engine.requests),
            tuple(flat["specgov.order"] for flat, _ in engine.wire.waiting),
            tuple((rank._applied.order, rank._applied.schedule) for rank in engine.ranks),
            tuple(_order(flat) for flat in engine.order[min(engine.at) :]),
            tuple(at - min(engine.at) for at in engine.at),
            tuple(map(tuple, engine.launched)),
        )


def _order(flat: dict[str, float] | None) -> float | None:
    return None if flat is None else flat["specgov.order"]


@dataclass
class Explored:
    """What was looked at."""

    states: int = 0
    paths: int = 0
    """Paths that were followed to their end, and there on until every lease was over."""
    transitions: int = 0
    confirmed: int = 0
    """PUTs answered with 200, over all replays."""


def explore(bounds: Bounds) -> Explored:
    """Visit every reachable state once; raises `AssertionError` with the path of the first bad one."""
    seen: set[Hashable] = set()
    found = Explored()
    todo: list[tuple[str, ...]] = [()]
    with _coarse_timing():
        while todo:
            path = todo.pop()
            world = World(bounds)
            try:
                for choice in path:
                    world.do(choice)
                found.transitions += 1
                key = world.key()
                if key in seen:
                    continue
                seen.add(key)
                choices = world.choices()
                todo += [(*path, choice) for choice in choices]
                found.confirmed += world.confirmed
                found.paths += 1
                world.drain()
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter: {' > '.join(path)}") from error
            finally:
                world.close()
    found.states = len(seen)
    return found


@contextlib.contextmanager
def _coarse_timing() -> Iterator[None]:
    """Whole seconds, so that time has few states: an acknowledgement is looked for once a second."""
    names = {"_POLL_S": 1.0, "ACK_TIMEOUT_S": 2.0, "RETRY_S": 1.0}
    fine = {name: getattr(control_plane, name) for name in names}
    try:
        for name, seconds in names.items():
            setattr(control_plane, name, seconds)
        yield
    finally:
        for name, seconds in fine.items():
            setattr(control_plane, name, seconds)
