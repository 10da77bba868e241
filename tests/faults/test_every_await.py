"""Cut off at every await of a turn: by SIGKILL, by cancellation.

A turn is a coroutine; its awaits are found by running it, and then it is cut off at each of them in turn.
SIGKILL: nothing more of the process runs, and what it had written is all that the next one finds, so the
database is copied as it lies there.  Whatever the moment: the engine has the old plan or the new one, whole;
an order that was acknowledged is in force in the next process; control comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil

import pytest

from controller.effect import Effect
from tests.faults.conftest import FaultyEngine

OLD, NEW = {"min_batch_size": 1, "depth": 2}, {"min_batch_size": 1, "depth": 1}


class CutOffError(Exception):
    """The turn was left at the await asked for."""


class Suspensions:
    """Awaits a coroutine and counts its suspensions; at number `cut_at` it is not resumed any more."""

    def __init__(self, coroutine, cut_at=None):
        self._coroutine = coroutine
        self._cut_at = cut_at
        self.count = 0

    def __await__(self):
        inner = self._coroutine.__await__()
        while True:
            try:
                waited_for = inner.send(None)
            except StopIteration as stop:
                return stop.value
            if self.count == self._cut_at:
                ABANDONED.append(inner)  # a killed process runs no finally
                raise CutOffError
            self.count += 1
            yield waited_for


ABANDONED = []


@pytest.fixture
def tell(capsys):
    """Puts a count where people see it; docs/reliability.md has them."""

    def say(line):
        with capsys.disabled():
            print(f"\n{line}")

    return say


async def prepare(make, path, clock, *, renewing=False):
    """A sidecar that governs at depth 2 and has just been told to use depth 1, or is about to renew that."""
    bench = await make(FaultyEngine(clock), store__path=str(path), lease__holder="me")
    await bench.run(3, batch_size=4)
    assert bench.engine.plan["schedule"] == [OLD]
    order = {"mode": "on", "depth": 1, "reason": "incident 7", "actor": "jo"}
    assert (await bench.api.put("/v1/override", json=order)).json()["durable"]
    if renewing:
        await bench.run(3, batch_size=4)
    bench.engine.decode(4)
    clock.now_s += 1
    return bench


async def count_awaits(make, path, clock, *, renewing=False):
    bench = await prepare(make, path, clock, renewing=renewing)
    turn = Suspensions(bench.loop.tick(clock.now_s))
    await turn
    return turn.count


@pytest.mark.slow
@pytest.mark.parametrize("renewing", [False, True], ids=["a new plan", "a renewal"])
async def test_killed_at_every_await_of_a_turn(make, clock, tmp_path, renewing, tell):
    """The next process takes over its predecessor's lease, order and log."""
    awaits = await count_awaits(make, tmp_path / "count.db", clock, renewing=renewing)
    assert awaits >= 4  # scrape, PUT on its way, PUT answered, record
    for cut_at in range(awaits):
        path, copy = tmp_path / f"{cut_at}.db", tmp_path / f"{cut_at}-copy.db"
        bench = await prepare(make, path, clock, renewing=renewing)
        before = len(bench.assembly.sidecar.decisions())
        with pytest.raises(CutOffError):
            await Suspensions(bench.loop.tick(clock.now_s), cut_at)
        await asyncio.sleep(0.02)  # answers on their way to a dead process
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        assert bench.engine.plan["schedule"] in ([OLD], [NEW]), cut_at
        heir = await make(engine=bench.engine, store__path=str(copy), lease__holder="me")
        result = await heir.run(4, batch_size=4)
        assert result.effect.effect is Effect.APPLIED, cut_at
        assert bench.engine.plan["schedule"] == [NEW], cut_at
        assert result.override.reason == "incident 7", cut_at
        rows = heir.assembly.sidecar.decisions(limit=500)
        assert len(rows) >= before, cut_at
        assert [row.id for row in rows] == sorted({row.id for row in rows}, reverse=True), cut_at
        sequences = [put["sequence"] for put in bench.engine.puts]
        assert sequences == sorted(set(sequences)), cut_at
    ABANDONED.clear()
    tell(f"killed at {awaits} awaits of a turn")


@pytest.mark.slow
async def test_cancelled_at_every_await_of_a_turn(make, clock, tmp_path, tell):
    """The process goes on, a shutdown was called off: the next turn is as good as new."""
    awaits = await count_awaits(make, tmp_path / "count.db", clock)
    for cut_at in range(awaits):
        bench = await prepare(make, tmp_path / f"{cut_at}.db", clock)
        seen = asyncio.Event()
        turn = Suspensions(bench.loop.tick(clock.now_s))
        task = asyncio.create_task(_until(turn, cut_at, seen))
        await asyncio.wait({task, asyncio.create_task(seen.wait())}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        result = await bench.run(4, batch_size=4)
        assert (result.effect.effect, bench.conditions()) == (Effect.APPLIED, set()), cut_at
        assert bench.engine.plan["schedule"] == [NEW], cut_at
    tell(f"cancelled at {awaits} awaits of a turn")


async def _until(turn, count, seen):
    """Run `turn`, saying so when it has been suspended `count` times and is again."""

    class Watched:
        def __await__(self):
            for waited_for in turn.__await__():
                if turn.count > count:
                    seen.set()
                yield waited_for

    await Watched()


@pytest.mark.slow
async def test_killed_in_the_middle_of_giving_back(make, clock, tmp_path, tell):
    """SIGKILL during the shutdown: the lease ends by itself."""
    for cut_at in itertools.count():
        bench = await prepare(make, tmp_path / f"{cut_at}.db", clock)
        try:
            await Suspensions(bench.loop._shut_down(), cut_at)
        except CutOffError:
            await asyncio.sleep(0)
        else:
            break
        clock.now_s += 15
        assert bench.engine.state()["state"] == "fallback"
    assert cut_at > 0
    ABANDONED.clear()
    tell(f"killed at {cut_at} awaits of giving back")
