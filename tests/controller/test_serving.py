"""The process: sockets, signals, parts that end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sqlite3
import time

import httpx
import pytest

from controller import serving
from controller.errors import SettingsError, SpecgovError
from controller.logs import JsonFormatter, Throttle
from controller.settings import ApiSettings

pytestmark = pytest.mark.slow


@pytest.fixture
async def served(make):
    """A sidecar that serves on a free port; gives bench, base URL and the task."""
    bench = await make(loop__period_s=0.05)
    listener = serving.listen(ApiSettings(port=0))
    task = asyncio.create_task(serving.serve(bench.assembly, listener))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http, asyncio.timeout(10):
        await until(lambda: bench.loop.last is not None)
        while not await _ready(http):  # noqa: ASYNC110  the server may not listen yet
            await asyncio.sleep(0.01)
        yield bench, http, task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(holds):
    """Wait for something that happens in another task."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


async def _ready(http):
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_sigterm_gives_the_lease_back_and_ends(served):
    """The engine is on its own again before the process is gone."""
    bench, http, task = served
    assert bench.engine.plan is not None
    assert (await http.get("/v1/status")).json()["lease"]["state"] == "held"
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 5)
    assert bench.engine.plan is None


async def test_the_log_says_when_the_sidecar_started_and_stopped_and_how_it_left_the_engine(
    served, tmp_path, caplog
):
    """Whoever asks next morning who restarted it at 02:10 finds both rows, and the line in the log."""
    _, _, task = served
    caplog.set_level(logging.INFO)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 5)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as db:
        rows = [(r, json.loads(b)) for r, b in db.execute("SELECT reason, body FROM log ORDER BY id")]
    assert rows[0][0] == "sidecar_start"
    assert rows[0][1]["pid"] == os.getpid()
    assert rows[-1][0] == "sidecar_stop"
    assert rows[-1][1]["handed_back"] is True
    assert "stopping: the engine was handed back, it is on its fallback" in caplog.messages


async def test_a_lease_that_cannot_be_given_back_is_said_in_the_log(served, tmp_path):
    """The engine is gone at SIGTERM: it was not handed back, and the lease ends by itself."""
    bench, _, task = served
    bench.engine.fail["/speculation"] = httpx.ConnectError("refused")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 5)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as db:
        reason, body = db.execute("SELECT reason, body FROM log ORDER BY id DESC").fetchone()
    assert (reason, json.loads(body)["handed_back"]) == ("sidecar_stop", False)
    assert "it ends by itself" in json.loads(body)["detail"]


async def test_stopping_does_not_wait_for_the_next_second(served):
    """The HTTP server wakes once a second, and at once when it is told to end."""
    _, _, task = served
    began_s = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert time.monotonic() - began_s < 0.5


async def test_an_order_is_carried_out_at_once_not_at_the_end_of_the_period(make):
    """A period of 5 s, an override: the loop is woken."""
    bench = await make(loop__period_s=5, lease__lease_s=60, lease__renew_deadline_s=30)
    stop = asyncio.Event()
    task = asyncio.create_task(bench.loop.run(stop))
    await until(lambda: bench.loop.last is not None)
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})
    async with asyncio.timeout(3):
        await until(lambda: bench.engine.plan["schedule"][0]["depth"] == 0)
    stop.set()
    await task


async def test_a_part_that_ends_by_itself_ends_the_process(make, monkeypatch):
    """No sidecar without its loop."""
    bench = await make()

    async def broken(stop):
        raise RuntimeError("bug")

    monkeypatch.setattr(bench.loop, "run", broken)
    with pytest.raises(SpecgovError, match="the control loop ended by itself"):
        await serving.serve(bench.assembly, serving.listen(ApiSettings(port=0)))


async def test_a_turn_that_fails_is_counted_and_survived(make, caplog):
    """A fault of ours in one turn does not end control."""
    bench = await make(loop__period_s=0.05)
    bench.loop._observer.observe, sound = None, bench.loop._observer.observe
    stop = asyncio.Event()
    task = asyncio.create_task(bench.loop.run(stop))
    await until(lambda: bench.loop.failed_ticks >= 2)
    bench.loop._observer.observe = sound
    await until(lambda: bench.loop.last is not None)
    stop.set()
    await task
    assert "a turn failed" in caplog.text


def test_a_port_that_is_taken_is_a_bad_setting():
    """Named, before anything is started."""
    with serving.listen(ApiSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"api.host and api.port must be free .* 127.0.0.1:{port}"):
            serving.listen(ApiSettings(port=port))


def record(**extra):
    made = logging.LogRecord("specgov", logging.INFO, "x.py", 1, "a turn %s", ("failed",), None)
    vars(made).update(extra)
    return made


def test_json_lines_carry_their_fields():
    """For machines that read logs."""
    line = json.loads(JsonFormatter().format(record(fields={"kind": "decision"})))
    assert (line["message"], line["level"], line["fields"]) == ("a turn failed", "info", {"kind": "decision"})


def test_a_repeated_failure_is_written_once_a_minute_with_a_count():
    """Three failures in the minute after the first, then one more: two lines."""
    now = [0.0]
    throttle = Throttle(60, clock=lambda: now[0])
    passed = []
    for at_s in (0.0, 1.0, 30.0, 59.0, 60.0):
        now[0] = at_s
        made = record(repeat_key="tick")
        passed.append(throttle.filter(made) and made.getMessage())
    assert passed == ["a turn failed", False, False, False, "a turn failed (and 3 more like it)"]
    assert throttle.filter(record())


async def test_a_database_that_cannot_be_used_is_a_condition_not_the_end(make, tmp_path):
    """Nothing is put in force, for an order may be in it; the first order given here is, in memory."""
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database, sorry" * 100)
    bench = await make(store__path=str(path))
    await bench.run(3, batch_size=4)
    assert bench.conditions() == {"store_degraded", "orders_unread"}
    assert bench.engine.plan is None
    order = (await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})).json()
    assert order["durable"] is False
