"""The sidecar on the real SGLang: its schedule is what every rank runs, and its death gives control back."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.engine.load import Load
from tests.engine.test_governing import RANKS, SPECULATING, in_modes, launches, since, state_of

ROOT = Path(__file__).parents[2]
LEASE_S = 6.0
SETTINGS = """
[engine]
url = "{engine}"
request_timeout_s = 10.0
put_timeout_s = 10.0

[policy]
name = "threshold"

[policies.threshold]
rows = [{{ min_batch_size = 1, depth = 3 }}, {{ min_batch_size = 2, depth = 0 }}]

[loop]
period_s = 0.5

[lease]
lease_s = {lease_s}
renew_every_s = 1.0
renew_deadline_s = 4.0

[api]
port = {port}

[store]
path = "{store}"
"""


@pytest.fixture
def sidecar(server, tmp_path):
    """A running `specgov run` beside the server; its process and the URL of its API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "specgov.toml"
    text = SETTINGS.format(engine=server.url, lease_s=LEASE_S, port=port, store=tmp_path / "specgov.sqlite3")
    config.write_text(text)
    command = [
        sys.executable,
        "-c",
        "from controller.cli import main; main()",
        "run",
        "--config",
        str(config),
    ]
    with (tmp_path / "sidecar.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    yield process, f"http://127.0.0.1:{port}"
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=60)


async def until(condition, within_s):
    """Ask `condition` until it holds; its last answer is in the failure."""
    deadline = time.monotonic() + within_s
    while not (seen := await condition())[0]:
        assert time.monotonic() < deadline, f"not within {within_s} s: {seen[1]}"
        await asyncio.sleep(0.3)


@in_modes(*SPECULATING)
async def test_the_depth_in_use_follows_the_sidecars_schedule_and_its_death_ends_it(server, client, sidecar):
    """One request alone runs at depth 3, several together at 0, every token right; after kill -9 SGLang's
    own policy is back within the lease."""
    process, api = sidecar

    async def governed():
        state = await state_of(client)
        return state["state"] == "governed", state["state"]

    await until(governed, 90)
    for concurrency, wanted in ((1, 3), (6, 0), (1, 3)):
        before = launches(server)

        async def follows(before=before, wanted=wanted):
            logs = since(server, before)
            seen = {rank: [d for b, d in log if (b > 1) == (wanted == 0)] for rank, log in logs.items()}
            return any(depths[-3:].count(wanted) == 3 for depths in seen.values()), seen

        async with Load(client, concurrency) as load:
            await until(follows, 120)
        assert load.done
    assert (await state_of(client))["ranks_agree"] is not False

    async def confirmed():
        async with httpx.AsyncClient(base_url=api, timeout=30) as http:
            status = (await http.get("/v1/status")).json()
        return status["effect"]["state"] == "applied", status["effect"]

    async with Load(client, 1):
        await until(confirmed, 60)

    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_s = time.monotonic()

    async def handed_back():
        state = await state_of(client)
        return state["state"] == "fallback", state["state"]

    await until(handed_back, LEASE_S + 10.0)
    assert time.monotonic() - killed_s < LEASE_S + 10.0
    state = await state_of(client)
    assert (state["fallback"], state["schedule"], state["lease"]["expired"] > 0) == ("native", None, True)
    assert len(launches(server)) == len(RANKS[server.mode])
