"""What one sidecar costs its node: `python -m tests.soak.cost [--seconds S] [--policy P] [--python FILE]`.

`specgov run` as an operator starts it, one tick a second, beside the simulated engine under load in this
process.  `--python`: the interpreter of an installation of the product alone; this one has the tests'
packages too, some of which are imported where they are found.  Ends with an error above 1 % of a core or
80 MB of resident memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile
from controller.simulation.server import make_server
from controller.simulation.serving import serve_engine
from tests.e2e.ports import free_port

MAX_SHARE = 0.01
MAX_RSS_BYTES = 80_000_000
WARM_UP_S = 10.0
CONCURRENCY = 24
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
SPECGOV = "from controller.cli import main; main()"


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_bytes(pid: int, name: str) -> int:
    """`VmRSS` or `VmHWM` of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


async def clients(url: str) -> None:
    """`CONCURRENCY` requests in flight until cancelled."""

    async def one() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            while True:
                body = {"text": "x" * 800, "sampling_params": {"max_new_tokens": 200}}
                (await http.post("/generate", json=body)).raise_for_status()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(one())


async def measure(seconds: float, folder: Path, policy: str, python: str) -> dict[str, object]:
    """CPU share, memory and what the sidecar did meanwhile."""
    profile, acceptance = load_profile("h200_llama8b_triton"), parse_acceptance("0.745")
    async with serve_engine(make_server(profile, acceptance), "127.0.0.1", 0) as url:
        load = asyncio.create_task(clients(url))
        port = free_port()
        command = ["run", "--engine", url, "--policy", policy, "--listen", f"127.0.0.1:{port}"]
        command += ["--store", str(folder / "state.db"), "--set", "log.level=warning"]
        with subprocess.Popen([python, "-c", SPECGOV, *command]) as sidecar:  # noqa: ASYNC220
            try:
                return await _measured(sidecar.pid, f"http://127.0.0.1:{port}", seconds)
            finally:
                sidecar.terminate()
                await asyncio.to_thread(sidecar.wait, 20)
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)


async def _measured(pid: int, api: str, seconds: float) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=api, timeout=30, trust_env=False) as http:
        await asyncio.sleep(WARM_UP_S)
        before, began_s = cpu_s(pid), time.monotonic()
        await asyncio.sleep(seconds)
        share = (cpu_s(pid) - before) / (time.monotonic() - began_s)
        status = (await http.get("/v1/status")).json()
        return {
            "cpu_share_of_a_core": round(share, 4),
            "rss_bytes": memory_bytes(pid, "VmRSS"),
            "peak_rss_bytes": memory_bytes(pid, "VmHWM"),
            "seconds": seconds,
            "load_average": os.getloadavg()[0],
            "headline": status["headline"],
        }


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(given.seconds, Path(folder), given.policy, given.python))
    wrong = [
        text
        for text, holds in {
            f"more than {MAX_SHARE:.0%} of a core": found["cpu_share_of_a_core"] > MAX_SHARE,
            f"more than {MAX_RSS_BYTES} bytes resident": found["rss_bytes"] > MAX_RSS_BYTES,
        }.items()
        if holds
    ]
    print(json.dumps(found | {"wrong": wrong}, indent=2))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
