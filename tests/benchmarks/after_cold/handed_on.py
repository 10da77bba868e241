"""What requests draft that find others' gaps in the prefix cache: `... .after_cold.handed_on OUT.json`.

The real engine on CPU with a trained pair, as `measure.py` has it, but with SGLang's radix cache on.  Each
prompt is sent from an empty cache and has to write its text at depth 3.  Before that

    alone        nothing: nothing is found in the cache
    on           the prompt was sent for one token at depth 3: the draft's cache of it is whole (the control)
    cold         likewise in the gear `cold`, which prefills the draft too
    frozen       likewise in `frozen`: where the draft's cache of it should be is what others left there
    turn-on      its first half was sent, and the second half is what was answered, at depth 3: a second turn
    turn-cold    likewise in `cold`: the draft's cache of the second half is what others left there

so what differs is what the cache hands on, and nothing else.  All arms must write the same text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.benchmarks.after_cold import accept_log
from tests.benchmarks.after_cold.arms import ON, request
from tests.benchmarks.after_cold.by_age import DEPTH, Step, counts, summary, within
from tests.benchmarks.after_cold.measure import SEED, acknowledged, cpu_name, trained
from tests.benchmarks.after_cold.source_text import prompts, read_files
from tests.engine.environment import SGLANG, engine_python
from tests.engine.server import Server, write_entry_point
from tests.engine.test_governing import settled, state_of

PROMPT, OUTPUT, BATCH = 192, 96, 16
COLD, FROZEN = (1, 0, "cold"), (1, 0, "frozen")
HALF = PROMPT // 2
FIRST = {
    "alone": None,
    "on": (ON["row"], PROMPT, 1),
    "cold": (COLD, PROMPT, 1),
    "frozen": (FROZEN, PROMPT, 1),
    "turn-on": (ON["row"], HALF, HALF),
    "turn-cold": (COLD, HALF, HALF),
}
"""What is sent first: under which row, so many tokens of the prompt, for so many of what follows."""


async def send(
    client: httpx.AsyncClient,
    arm: str,
    numbers: Sequence[int],
    texts: Sequence[list[int]],
    prompt: int,
    output: int,
) -> list[dict[str, Any]]:
    """The answers to a batch: tokens, and how many of the prompt's were found in the cache."""
    answer = await client.post("/generate", json=request(arm, numbers, texts, prompt, output))
    return [
        {"tokens": one["output_ids"], "cached": one["meta_info"]["cached_tokens"]}
        for one in answer.raise_for_status().json()
    ]


async def emptied(client: httpx.AsyncClient) -> None:
    """SGLang empties its cache when nothing runs."""
    await settled(client)
    (await client.post("/flush_cache")).raise_for_status()


async def one_arm(
    client: httpx.AsyncClient, arm: str, numbers: Sequence[int], texts: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """A batch of one arm, from an empty cache whose slots hold other texts.

    An emptied cache hands out the same slots again: without the fill a gap would hold what an earlier arm
    had written there for the same prompts, which is right.
    """
    await emptied(client)
    await acknowledged(client, ON["row"], None)
    await send(client, "fill", range(BATCH), texts, PROMPT, 1)
    await emptied(client)
    first = FIRST[arm]
    if first is not None:
        row, prompt, output = first
        await acknowledged(client, row, None)
        await send(client, f"{arm}-first", numbers, texts, prompt, output)
        await settled(client)
    await acknowledged(client, ON["row"], None)
    return await send(client, arm, numbers, texts, PROMPT, OUTPUT)


async def measure(server: Server, texts: list[list[int]], seconds: float) -> dict[str, list[dict[str, Any]]]:
    """{arm: answers}; the first batch only fills the cache's slots."""
    answers: dict[str, list[dict[str, Any]]] = {arm: [] for arm in FIRST}
    until_s = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        for start in range(BATCH, len(texts), BATCH):
            if time.monotonic() > until_s:
                break
            for arm in FIRST:
                answers[arm] += await one_arm(client, arm, range(start, start + BATCH), texts)
            print(f"{start} of {len(texts) - BATCH} requests in every arm", flush=True)
        state = await state_of(client)
    if state["telemetry"][0]["hook_errors"] or not state["plain_decode"]["in_force"]:
        raise RuntimeError(f"the plugin had a failure, so this measures something else: {state}")
    return answers


def results(answers: Mapping[str, list[dict[str, Any]]], steps: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Every arm beside `alone`, all steps of the same requests."""
    alone, arms = answers["alone"], {}
    for arm, found in answers.items():
        rows = [
            (counts(drafted(steps, arm, n)), counts(drafted(steps, "alone", n)))
            for n in range(BATCH, BATCH + len(found))
        ]
        mine, base = (np.stack(side) for side in zip(*rows, strict=True))
        arms[arm] = {
            "cached_tokens": sorted({one["cached"] for one in found}),
            "equal_answers": sum(a["tokens"] == b["tokens"] for a, b in zip(found, alone, strict=True)),
            **summary(mine, base),
        }
    return {"requests": len(alone), "arms": arms}


def drafted(steps: Mapping[str, list[Any]], arm: str, number: int) -> list[Step]:
    """The steps of one request whose drafts all lie within its answer."""
    return within((Step(*step) for step in steps[f"{arm}.{number}"]), 0, PROMPT + OUTPUT - DEPTH)


def table(found: Mapping[str, Any]) -> str:
    """For a person."""
    return "\n".join(line(arm, row, found["requests"]) for arm, row in found["arms"].items())


def line(arm: str, row: Mapping[str, Any], requests: int) -> str:
    """One arm."""
    p = ", ".join(f"{value:.3f}" for value in row["p"])
    ratio = f"{row['tokens_ratio']:.3f} +- {row['tokens_ratio_error']:.3f} of alone"
    return (
        f"{arm:9} {row['cached_tokens']} tokens cached, {row['equal_answers']} of {requests} texts equal, "
        f"{row['steps']} steps, p {p}, {row['tokens_per_step']:.3f} tokens a step, {ratio}"
    )


def main() -> None:
    """Train if need be, start a server, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--requests", type=int, default=96, help=f"a multiple of {BATCH}")
    parser.add_argument("--seconds", type=float, default=3600, help="no batch begins later")
    given = parser.parse_args()
    python = engine_python(print)
    files = [text for text in read_files(held_out=True) if text.isascii()]
    texts = prompts(files, given.requests + BATCH, PROMPT + OUTPUT + DEPTH + 1, SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = trained(python, given.models, folder / "models").resolve()
        write_entry_point(folder / "plugins", "accept_log", "tests.benchmarks.after_cold.accept_log:register")
        flags = [
            "--dtype", "float32", "--grammar-backend", "xgrammar", "--max-running-requests", str(BATCH),
            "--context-length", "1024", "--max-total-tokens", str(BATCH * (PROMPT + OUTPUT + 128)),
        ]  # fmt: skip
        server, began_s = (
            Server("overlap", python, models, folder, flags=flags).start(),
            time.monotonic(),
        )
        try:
            answers = asyncio.run(measure(server, texts, given.seconds))
        finally:
            server.stop()
        found = results(answers, accept_log.read(folder))
    print(table(found))
    about = {
        "sglang": SGLANG, "cpu": cpu_name(), "python": platform.python_version(), "prompt": PROMPT,
        "output": OUTPUT, "batch": BATCH, "measured_s": round(time.monotonic() - began_s),
    }  # fmt: skip
    given.out.write_text(json.dumps(about | found, indent=1))


if __name__ == "__main__":
    main()
