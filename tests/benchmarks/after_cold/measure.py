"""What requests draft after a cold spell: `python -m tests.benchmarks.after_cold.measure OUT.json`.

The real engine on CPU (overlap scheduler, float32) with a trained pair (`train_pair.py`; `--models` names one
that was trained before), requests for text of files that it never saw.  Every arm (`arms.py`) sends the
same ones, batch by batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.after_cold.arms import (
    ARMS,
    BATCH,
    ON,
    OUTPUT,
    PROMPT,
    batch_of,
    request,
    results,
    steps_of,
    texts,
)
from tests.engine.environment import SGLANG, engine_python
from tests.engine.server import Server, write_entry_point
from tests.engine.test_governing import put, state_of

SEED = 7
HERE = Path(__file__).resolve().parent


async def apply(client: httpx.AsyncClient, arm: dict[str, Any]) -> None:
    """Put an arm in force afresh: the plan between resets the probe's counter.  Nothing may run meanwhile."""
    await acknowledged(client, (1, 1), None)
    await acknowledged(client, arm["row"], arm["probe"])


async def acknowledged(client: httpx.AsyncClient, row: tuple[Any, ...], probe: dict[str, Any] | None) -> None:
    """Put until every rank has acknowledged; a busy machine takes its time.  Raises `RuntimeError`."""
    for _ in range(20):
        answer = await put(client, row, probe=probe, lease_s=3600)
        if answer.status_code == httpx.codes.OK:
            return
        if answer.status_code not in (httpx.codes.ACCEPTED, httpx.codes.GATEWAY_TIMEOUT):
            raise RuntimeError(f"a plan was refused: {answer.text}")
        await asyncio.sleep(0.5)
    raise RuntimeError(f"a plan was not acknowledged: {answer.text}")


async def send(client: httpx.AsyncClient, arm: str, numbers: list[int], tokens: list[list[int]]) -> list[Any]:
    """The answers to one batch."""
    answer = await client.post("/generate", json=request(arm, numbers, tokens))
    return [one["output_ids"] for one in answer.raise_for_status().json()]


async def measure(
    server: Server, tokens: list[list[int]], fill: list[list[int]], deadline_s: float
) -> dict[str, dict[int, Any]]:
    """{arm: {prompt's number: answer}}; the steps are in the server's log.

    `fill` goes first, so that every slot of the draft's cache has been written by some request: a hole
    holds what others left there.  No batch begins after `deadline_s`.
    """
    answers: dict[str, dict[int, Any]] = {arm: {} for arm in ARMS}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        await apply(client, ON)
        for start in range(0, len(fill), BATCH):
            await send(client, "fill", list(range(start, start + BATCH)), fill)
        for start in range(0, len(tokens), BATCH):
            if time.monotonic() > deadline_s:
                break
            for arm, plan in ARMS.items():
                numbers = batch_of(start, arm)
                await apply(client, plan)
                answers[arm] |= dict(zip(numbers, await send(client, arm, numbers, tokens), strict=True))
            print(f"{start + BATCH} of {len(tokens)} requests in every arm", flush=True)
        state = await state_of(client)
    if state["telemetry"][0]["hook_errors"] or not state["plain_decode"]["in_force"]:
        raise RuntimeError(f"the plugin had a failure, so this measures something else: {state}")
    return answers


def trained(python: Path, models: Path | None, folder: Path) -> Path:
    """`models`, or a pair trained now."""
    if models is None:
        subprocess.run([python, HERE / "train_pair.py", folder], check=True)
    return models or folder


def flags() -> list[str]:
    """A pool that every arm wraps around, and no prefix cache: an arm must not find another's drafts."""
    return [
        "--dtype", "float32", "--disable-radix-cache", "--grammar-backend", "xgrammar",
        "--max-running-requests", str(BATCH), "--context-length", "1024",
        "--max-total-tokens", str(BATCH * (PROMPT + OUTPUT + 128)),
    ]  # fmt: skip


def cpu_name() -> str:
    """As the kernel says."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def main() -> None:
    """Train if need be, start a server, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--requests", type=int, default=96, help=f"a multiple of {BATCH}")
    parser.add_argument("--seconds", type=float, default=3600, help="no batch begins later")
    parser.add_argument("--work", type=Path, help="keep the server's logs and the models here")
    given = parser.parse_args()
    python, tokens = engine_python(print), texts(given.requests + 2 * BATCH, SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = (given.work or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        models = trained(python, given.models, folder / "models").resolve()
        write_entry_point(folder / "plugins", "accept_log", "tests.benchmarks.after_cold.accept_log:register")
        server, began_s = (
            Server("overlap", python, models, folder, flags=flags()).start(),
            time.monotonic(),
        )
        try:
            deadline_s = began_s + given.seconds
            answers = asyncio.run(measure(server, tokens[2 * BATCH :], tokens[: 2 * BATCH], deadline_s))
        finally:
            server.stop()
        (folder / "answers.json").write_text(json.dumps(answers))
        found = results(answers, steps_of(folder))
    given.out.write_text(
        json.dumps(
            {
                "sglang": SGLANG, "cpu": cpu_name(), "python": platform.python_version(),
                "measured_s": round(time.monotonic() - began_s), "prompt": PROMPT, "output": OUTPUT,
                "batch": BATCH, "pair": json.loads((models / "pair.json").read_text()), **found,
            },
            indent=1,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
