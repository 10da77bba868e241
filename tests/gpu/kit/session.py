"""What a plan sees: servers, sidecars, load, arms, windows.  Everything is journalled as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.bench.arms import BenchArm, parse_arm
from controller.bench.prompts import PromptSource, RandomTokens
from kit.engines import Engine
from kit.journal import Journal
from kit.ports import free_port
from kit.server import Server
from kit.setups import Setup
from kit.sidecar import Sidecar, SidecarFailedError, specgov_environment

FIRST_PORT = int(os.environ.get("KIT_PORT", "31400"))
SERVER_PORTS = 10
"""A server's own and those that SGLang derives from it."""
SIDECAR_PORTS_TRIED = 3
GOVERNED_S = 1.5
"""From a sidecar's being ready until its first plans are in force."""
CLIENT_CPUS = 4
"""Kept free of servers when those are pinned: for the driver, which is not, and the sidecars."""


@dataclass(frozen=True)
class Target:
    """One column of a comparison: a server, and what is asked of it (`as-is`: nothing)."""

    server: Server
    arm: BenchArm
    label: str
    sidecar: Mapping[str, Any] | None = None
    """Settings of a sidecar (as `Kit.sidecar` takes them) that governs during its windows."""

    @classmethod
    def of(cls, server: Server, *arms: str) -> list[Target]:
        """Targets of one server, labelled `server/arm` (or `server` alone for as-is)."""
        parsed = [parse_arm(arm) for arm in arms or ("as-is",)]
        return [
            cls(server, a, server.name if a.label == "as-is" else f"{server.name}/{a.label}") for a in parsed
        ]


class Kit:
    """The verbs of a plan."""

    server_class = Server
    sidecar_class = Sidecar
    rehearsed = False
    """Whether no engine is there (`kit.rehearsal`): then nothing need be prepared for one."""

    def __init__(
        self, engine: Engine, out: Path, seconds: float, now: Callable[[], float] = time.time
    ) -> None:
        self.out = out
        self.engine = engine
        self.now = now
        self.journal = Journal(out)
        self.record = self.journal.record
        self.say = self.journal.say
        self.servers: list[Server] = []
        self.sidecars: list[Sidecar] = []
        self._end_s = now() + seconds
        self._port = FIRST_PORT
        self._seed = 0

    # -- time ------------------------------------------------------------------------------------------------

    def left_s(self) -> float:
        """Seconds until the plan should be over: leave out what does not fit."""
        return self._end_s - self.now()

    def has_time(self, seconds: float, what: str) -> bool:
        """Whether `seconds` are left; else says and journals that `what` was left out."""
        if self.left_s() >= seconds:
            return True
        self.say("LEFT OUT for lack of time:", what)
        self.record("left_out", what=what, needs_s=seconds, left_s=self.left_s())
        return False

    @contextlib.asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """A part of a plan that may fail without ending the plan."""
        began_s = self.now()
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - the next part is worth its chance
            self.say(name, "FAILED", repr(problem)[:1200])
            self.record("failed", part=name, error=repr(problem)[:3000], trace=traceback.format_exc()[-3000:])
        else:
            self.say(name, f"done in {self.now() - began_s:.1f} s")
            self.record("part", part=name, s=self.now() - began_s)
        finally:
            for server in self.servers:
                if server.load is not None:
                    await server.end()

    # -- servers ---------------------------------------------------------------------------------------------

    async def start(self, *setups: Setup, limit_s: float = 280.0) -> list[Server]:
        """Start servers side by side, each on its share of the CPUs; raises what the first failure raised."""
        results = await self._start(setups, limit_s)
        for result in results.values():
            if isinstance(result, BaseException):
                raise result
        return list(results)

    async def start_what_can(self, *setups: Setup, limit_s: float = 280.0) -> dict[str, Server]:
        """As `start`, but a server that fails is journalled and left out; by name."""
        results = await self._start(setups, limit_s)
        good = {s.name: s for s, result in results.items() if not isinstance(result, BaseException)}
        self.servers = [s for s in self.servers if s not in results or s.name in good]
        return good

    async def _start(self, setups: Sequence[Setup], limit_s: float) -> dict[Server, float | BaseException]:
        began = []
        for setup in setups:
            port = self._next_port(SERVER_PORTS)
            began.append(self.server_class(setup, port, self.engine, self.out, self.now))
        self.servers += began
        results = await asyncio.gather(*(s.start(limit_s) for s in began), return_exceptions=True)
        for server, result in zip(began, results, strict=True):
            if isinstance(result, BaseException):
                self.say(server.name, "FAILED", repr(result)[:1200])
                self.record("failed", server=server.name, error=repr(result)[:3000])
            else:
                self.say(server.name, f"started in {result:.1f} s")
                self.record("start", server=server.name, s=result, setup=vars(server.setup))
        self._pin()
        return dict(zip(began, results, strict=True))

    def _next_port(self, count: int) -> int:
        port = free_port(self._port)
        self._port = port + count
        return port

    async def until_there(self, path: Path, *, spare_s: float = 60.0) -> bool:
        """Wait for a file of another plan on this machine; false when only `spare_s` of this one are left."""
        while not path.exists():  # noqa: ASYNC240 - one look, on a local disk
            if not self.has_time(spare_s, f"all that waits for {path}"):
                return False
            await asyncio.sleep(0.5)
        return True

    async def stop(self, *servers: Server) -> None:
        """End servers and free their share of the CPUs."""
        await asyncio.gather(*(server.stop() for server in servers))
        self.servers = [s for s in self.servers if s not in servers]
        self._pin()

    async def close(self) -> None:
        """End everything that the plan left running."""
        for sidecar in self.sidecars:
            with contextlib.suppress(Exception):
                await sidecar.stop()
        await asyncio.gather(*(server.stop() for server in self.servers), return_exceptions=True)
        self.journal.close()

    def _pin(self) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        share = (len(cpus) - CLIENT_CPUS) // len(self.servers) if self.servers else 0
        if not self.engine.pins_cpus or share < 2:
            return
        for i, server in enumerate(self.servers):
            server.pin(cpus[CLIENT_CPUS + i * share :][:share])

    # -- steering --------------------------------------------------------------------------------------------

    async def acceptance(self, server: Server, p: float) -> None:
        """From now on each draft is accepted with probability `p` if all before it were; < 0: for real."""
        taken = await server.internal({"bench.p": p})
        self.record("acceptance", server=server.name, p=p, taken=taken)

    async def apply(
        self, server: Server, arm: BenchArm, *, lease_s: float = 120.0, confirm_s: float = 5.0
    ) -> None:
        """Put an arm in force; returns when telemetry shows it in use, which needs load."""
        began_s = self.now()
        if arm.native:
            await server.control.release()
        elif arm.fixed is not None:
            await server.control.apply(arm.fixed, lease_s=lease_s)
            put_s = self.now() - began_s
            seen_s = await server.control.until_in_use(arm.fixed, limit_s=confirm_s)
            self.record("apply", server=server.name, arm=arm.label, put_s=put_s, in_use_s=seen_s)

    async def sidecar(
        self, server: Server, *, policy: str, fresh: str | None = None, **settings: object
    ) -> Sidecar:
        """Start `specgov run` on a server; stop it with `.stop()`.

        Raises `RuntimeError` while somebody else holds the server: the sidecar would only watch.

        `fresh` names a state database of its own (it starts knowing nothing); else it goes on with the one of
        the server's last sidecar.  `settings` have a double underscore for the dot: `loop__period_s=0.5`.
        """
        holder = ((await server.control.state()) or {}).get("holder")
        if holder is not None:
            raise RuntimeError(
                f"{server.name} is held by {holder}: release it before a sidecar is to govern it"
            )
        name = f"sidecar-{server.name}" + (f"-{fresh}" if fresh else "")
        values: dict[str, object] = {"engine.url": server.url, "policy.name": policy}
        values |= {
            "store.path": self.out / "state" / f"{name}.db",
            "log.format": "json",
        }
        values |= {key.replace("__", "."): value for key, value in settings.items()}
        sidecar, ready_s = await self._start_sidecar(name, values)
        self.say(sidecar.name, f"ready in {ready_s:.1f} s")
        self.record("sidecar", sidecar=sidecar.name, server=server.name, s=ready_s, settings=values)
        return sidecar

    async def _start_sidecar(self, name: str, values: dict[str, object]) -> tuple[Sidecar, float]:
        """On another port when somebody took the first one in between."""
        for tries_left in reversed(range(SIDECAR_PORTS_TRIED)):
            sidecar = self.sidecar_class(name, self._next_port(1), self.out, self.journal, values)
            self.sidecars.append(sidecar)
            try:
                return sidecar, await sidecar.start()
            except SidecarFailedError as problem:
                if not (problem.port_taken and tries_left):
                    raise
        raise AssertionError("the last try returns or raises")

    async def until_free(self, server: Server, *, limit_s: float = 20.0) -> None:
        """Wait until nobody holds a server: a sidecar hands it back when it ends, or its lease does."""
        until_s = self.now() + limit_s
        while self.now() < until_s:
            if ((await server.control.state()) or {}).get("holder") is None:
                return
            await asyncio.sleep(0.2)

    def sidecar_environment(self) -> dict[str, str]:
        """The environment of other `specgov` commands."""
        return specgov_environment(self.out, {})

    # -- load and windows ----------------------------------------------------------------------------------

    def source(self) -> PromptSource:
        """128-256 random tokens in, 192-320 out (smaller on the CPU engine)."""
        if self.engine.pins_cpus:
            return RandomTokens()
        return RandomTokens((8, 16), (24, 48), (1, 511))

    async def load(
        self, server: Server, concurrency: int, *, stream_every: int = 0, source: PromptSource | None = None
    ) -> None:
        """Bring the server's closed loop to this concurrency (it starts one); `stop_load` ends it."""
        concurrency = self.engine.concurrency(concurrency)
        if server.load is not None:
            await server.load.scale(concurrency)
            return
        self._seed += 1
        await server.begin(source or self.source(), concurrency, stream_every=stream_every, seed=self._seed)

    async def stop_load(self, server: Server) -> None:
        """Drop the load and keep what was recorded; client errors are journalled."""
        count = len(server.load.records) if server.load else 0
        errors = await server.end()
        self.record("load", server=server.name, requests=count, errors=len(errors), first_errors=errors[:3])
        if errors:
            self.say(server.name, "client errors:", len(errors), errors[0])

    def ramp_s(self, concurrency: int) -> float:
        """Long enough for the prefill of so many first requests."""
        return 0.8 + self.engine.concurrency(concurrency) / 90

    async def window(self, target: Target, concurrency: int, seconds: float, **notes: Any) -> dict[str, Any]:
        """Measure: journal the span, with the hook's own counters at both ends."""
        before = await target.server.control.progress() if target.server.setup.hook else None
        from_s = self.now()
        await asyncio.sleep(seconds)
        to_s = self.now()
        after = await target.server.control.progress() if target.server.setup.hook else None
        hook_tok_s = (
            None
            if before is None or after is None
            else (after.tokens - before.tokens) / (self.now() - from_s)
        )
        span = dict(
            label=target.label,
            server=target.server.name,
            arm=target.arm.label,
            C=self.engine.concurrency(concurrency),
            wanted_C=concurrency,
            from_s=from_s,
            to_s=to_s,
            hook_tok_s=hook_tok_s,
            **notes,
        )
        self.record("window", **span)
        if hook_tok_s is not None:
            self.say(f"{target.label:24} C={concurrency:<4} {hook_tok_s:8.0f} tok/s (hook)", notes or "")
        return span

    async def alternate(
        self,
        targets: Sequence[Target],
        levels: Sequence[int],
        *,
        rounds: int = 2,
        reverse: bool = False,
        settle_s: float = 0.6,
        window_s: float = 2.0,
        stream_every: int = 0,
        **notes: Any,
    ) -> None:
        """Windows of every target at every concurrency, alternated in time.

        Round by round the order of servers and of arms on a server is reversed (A B B A), so that a drift of
        the machine falls on all alike (`reverse` begins with B).  While one is measured the others idle.
        """
        by_server: dict[str, list[Target]] = {}
        for target in targets:
            by_server.setdefault(target.server.name, []).append(target)
        for concurrency in levels:
            for number in range(rounds):
                groups = list(by_server.values())[:: -1 if (number + reverse) % 2 else 1]
                for group in groups:
                    async with self.part(f"{group[0].server.name} C={concurrency} round {number}"):
                        await self._visit(
                            group[:: -1 if (number + reverse) % 2 else 1],
                            concurrency,
                            settle_s,
                            window_s,
                            stream_every,
                            round=number,
                            **notes,
                        )

    async def _visit(
        self,
        group: Sequence[Target],
        concurrency: int,
        settle_s: float,
        window_s: float,
        stream_every: int,
        **notes: Any,
    ) -> None:
        server = group[0].server
        await self.load(server, concurrency, stream_every=stream_every)
        await asyncio.sleep(self.ramp_s(concurrency))
        for target in group:
            async with self._in_force(target):
                await asyncio.sleep(settle_s)
                await self.window(target, concurrency, window_s, **notes)
        await self.stop_load(server)
        if server.setup.hook:
            await server.control.release()  # whoever comes next finds it free

    @contextlib.asynccontextmanager
    async def _in_force(self, target: Target) -> AsyncIterator[None]:
        if target.sidecar is None:
            await self.apply(target.server, target.arm)
            yield
            return
        await target.server.control.release()
        sidecar = await self.sidecar(target.server, **target.sidecar)
        try:
            await asyncio.sleep(GOVERNED_S)
            yield
        finally:
            await sidecar.stop()
            await self.until_free(target.server)
