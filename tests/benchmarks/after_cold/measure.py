"""What requests draft after a cold spell: `python -m tests.benchmarks.after_cold.measure OUT.json`.

The real engine on CPU (overlap scheduler, float32) with a trained pair (`train_pair.py`; `--models` names one
that was trained before), greedy requests after prompts from files that it never saw.  Every arm sends the
same prompts, in another order, so that nothing lands where another arm's drafts lie:

    on          depth 3 throughout: what the others are compared with
    cold-8      depth 3, a spell of 8 steps off in the gear `cold`, depth 3 to the end; 32, 128 the same
    warm-32     the control: the draft's cache is kept in step, so nothing may differ
    frozen-32   off and `frozen` from the prompt on, then depth 3

The spell is a probe of the plan that is in force, so it has its length in decode steps exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.after_cold import accept_log
from tests.benchmarks.after_cold.by_age import DEPTH, Step, compare
from tests.benchmarks.after_cold.source_text import prompts, read_files
from tests.engine.environment import SGLANG, engine_python
from tests.engine.server import Server, write_entry_point
from tests.engine.test_governing import put, state_of

HERE = Path(__file__).resolve().parent

PROMPT, OUTPUT = 128, 376
BATCH = 16
BEFORE = 24
"""Decode steps at depth 3 ahead of a spell."""
REST = 1 << 20
ON: dict[str, Any] = {"row": (1, DEPTH), "probe": None}


def spell(gear: str, steps: int) -> dict[str, Any]:
    """Depth 3 with one spell in `gear`, from the `BEFORE`th decode step of a batch on."""
    probe = {"depth": 0, "gear": gear, "every_steps": BEFORE + steps, "burst_steps": steps, "bursts": 1}
    return {"row": (1, DEPTH), "probe": probe}


def frozen(steps: int) -> dict[str, Any]:
    """Frozen for the prompt and `steps` decode steps, then depth 3."""
    probe = {"depth": DEPTH, "every_steps": steps + REST, "burst_steps": REST, "bursts": 1}
    return {"row": (1, 0, "frozen"), "probe": probe}


ARMS = {
    "on": ON,
    "cold-8": spell("cold", 8),
    "cold-32": spell("cold", 32),
    "cold-128": spell("cold", 128),
    "warm-32": spell("warm", 32),
    "frozen-32": frozen(32),
}


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
    """The greedy answers to one batch of prompts, which all begin together."""
    body = {
        "rid": [f"{arm}.{n}" for n in numbers],
        "input_ids": [tokens[n] for n in numbers],
        "sampling_params": {"max_new_tokens": OUTPUT, "temperature": 0, "ignore_eos": True},
    }
    answer = await client.post("/generate", json=body)
    return [one["output_ids"] for one in answer.raise_for_status().json()]


async def measure(
    server: Server, tokens: list[list[int]], fill: list[list[int]]
) -> dict[str, dict[int, Any]]:
    """{arm: {prompt's number: answer}}; the steps are in the server's log.

    `fill` goes first, so that every slot of the draft's cache has been written by some request: a hole
    holds what others left there.
    """
    answers: dict[str, dict[int, Any]] = {arm: {} for arm in ARMS}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        await apply(client, ON)
        for start in range(0, len(fill), BATCH):
            await send(client, "fill", list(range(start, start + BATCH)), fill)
        orders = {arm: random.Random(i).sample(range(len(tokens)), len(tokens)) for i, arm in enumerate(ARMS)}
        for start in range(0, len(tokens), BATCH):
            for arm, plan in ARMS.items():
                numbers = orders[arm][start : start + BATCH]
                await apply(client, plan)
                answers[arm] |= dict(zip(numbers, await send(client, arm, numbers, tokens), strict=True))
            print(f"{start + BATCH} of {len(tokens)} requests in every arm", flush=True)
        state = await state_of(client)
    if state["telemetry"][0]["hook_errors"] or not state["plain_decode"]["in_force"]:
        raise RuntimeError(f"the plugin had a failure, so this measures something else: {state}")
    return answers


def steps_of(folder: Path) -> dict[str, dict[str, list[Step]]]:
    """{arm: {prompt's number: its steps}} from the server's log."""
    found: dict[str, dict[str, list[Step]]] = {}
    for rid, steps in accept_log.read(folder).items():
        arm, _, number = rid.rpartition(".")
        found.setdefault(arm, {})[number] = [Step(*step) for step in steps]
    return found


def distinct_share(answers: list[list[int]], length: int = 16) -> float:
    """Of all stretches of `length` tokens of an answer, how many differ: 1 where nothing repeats."""
    shares = []
    for answer in answers:
        stretches = [tuple(answer[i : i + length]) for i in range(len(answer) - length + 1)]
        shares.append(len(set(stretches)) / len(stretches))
    return sum(shares) / len(shares)


def results(answers: dict[str, dict[int, Any]], steps: dict[str, dict[str, list[Step]]]) -> dict[str, Any]:
    """Figures of every arm."""
    reference = answers["on"]
    return {
        "equal_answers": {
            arm: sum(found[n] == reference[n] for n in found) for arm, found in answers.items()
        },
        "requests": len(reference),
        "distinct_16_token_stretches": distinct_share(list(reference.values())),
        "arms": {arm: compare(steps[arm], steps["on"], PROMPT + OUTPUT) for arm in ARMS if arm != "on"},
    }


def trained(python: Path, models: Path | None, folder: Path) -> Path:
    """`models`, or a pair trained now."""
    if models is None:
        subprocess.run([python, HERE / "train_pair.py", folder], check=True)
    return models or folder


def flags() -> list[str]:
    """A pool that every arm wraps around, and no prefix cache: an arm must not find another's drafts."""
    return [
        "--dtype", "float32", "--disable-radix-cache", "--max-running-requests", str(BATCH),
        "--max-total-tokens", str(BATCH * (PROMPT + OUTPUT + 64)), "--context-length", "1024",
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
    parser.add_argument("--requests", type=int, default=96)
    given = parser.parse_args()
    python, held_out = engine_python(print), read_files(held_out=True)
    tokens = prompts(held_out, given.requests + 2 * BATCH, PROMPT, seed=7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = trained(python, given.models, folder / "models").resolve()
        write_entry_point(folder / "plugins", "accept_log", "tests.benchmarks.after_cold.accept_log:register")
        server, began_s = Server("overlap", python, models, folder, flags=flags()).start(), time.monotonic()
        try:
            answers = asyncio.run(measure(server, tokens[2 * BATCH :], tokens[: 2 * BATCH]))
        finally:
            server.stop()
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
