"""What do requests draft after a cold spell?  Real drafts of a pair that learns here first.  8 minutes.

A byte-level Llama of 8 layers and width 512 and its EAGLE3 draft learn the standard library's sources
(`tests/benchmarks/after_cold`; TARGET_TOKENS=60000000 and DRAFT_TOKENS=25000000 of them; how long that takes
on a GPU has not been tried).  Then REQUESTS=384 requests in each arm, in batches, as `measure.py` there has
them on the CPU, but in bfloat16.  Writes `after_cold.json`: the `engine` of what `page.py` there takes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from kit import setups
from kit.session import Kit
from kit.setups import Setup

HERE = Path(__file__).resolve().parent.parent
CHECKOUT = HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent
sys.path.append(str(CHECKOUT))

from tests.benchmarks.after_cold.arms import (  # noqa: E402 - the path comes first
    ARMS,
    BATCH,
    DEPTH,
    ON,
    OUTPUT,
    PROMPT,
    batch_of,
    request,
    results,
    steps_of,
    texts,
)

REQUESTS = int(os.environ.get("REQUESTS", "384"))
FILL = 2 * BATCH
SEED = 7
ROUND_S = 20.0
LEARN = {
    "hidden": 512, "intermediate": 1408, "batch-tokens": 32768, "rate": 0.002, "own-rows": 1024,
    "target-tokens": int(os.environ.get("TARGET_TOKENS", "60000000")),
    "draft-tokens": int(os.environ.get("DRAFT_TOKENS", "25000000")),
}  # fmt: skip


async def run(kit: Kit) -> None:
    pair = kit.out / "pair"
    await learn(kit, pair)
    (server,) = await kit.start(logged(kit, setups.known(setups.table("after_cold", (0, 1, DEPTH)), pair)))
    kit.record("speculation", server=server.name, body=await server.control.state())
    answers = await measure(kit, server)
    state = await server.control.state() or {}
    kit.record(
        "after", server=server.name, plain_decode=state.get("plain_decode"), telemetry=state.get("telemetry")
    )
    if not kit.rehearsed:
        figures = results(answers, steps_of(kit.out))
        learned = pair / "pair.json"
        figures["pair"] = json.loads(learned.read_text()) if learned.exists() else None
        (kit.out / "after_cold.json").write_text(json.dumps(figures, indent=1))
        kit.record("after_cold", server=server.name, **figures)


def logged(kit: Kit, setup: Setup) -> Setup:
    """`setup` with the plugin that writes down accepted drafts, a pool that fills, and no prefix cache."""
    info = kit.out / "plugins" / "accept_log-0.0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accept_log\nVersion: 0.0.0\n")
    target = "tests.benchmarks.after_cold.accept_log:register"
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\naccept_log = {target}\n")
    path = [kit.engine.environment(setup, kit.out)["PYTHONPATH"], str(info.parent), str(CHECKOUT)]
    return setup.but(
        args=(*setup.args, "--dtype", "bfloat16", "--disable-radix-cache"),
        env={"PYTHONPATH": ":".join(path), "STEP_LOG_FOLDER": str(kit.out)},
        kv_tokens=BATCH * (PROMPT + OUTPUT + 128),
    )


async def learn(kit: Kit, folder: Path) -> None:
    """Train the pair, in an interpreter that finds what the servers find."""
    if kit.rehearsed or kit.engine.has_models or (folder / "pair.json").exists():
        return
    script = CHECKOUT / "tests" / "benchmarks" / "after_cold" / "train_pair.py"
    options = [word for name, value in LEARN.items() for word in (f"--{name}", str(value))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(folder), "--device", "cuda", *options,
        env=kit.engine.environment(setups.plain(), kit.out),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    (kit.out / "train.log").write_bytes(said)
    if process.returncode:
        raise RuntimeError(f"the pair could not be trained: {said.decode()[-2000:]}")


async def measure(kit: Kit, server) -> dict[str, dict[int, list[int]]]:
    """{arm: {prompt's number: answer}}, batch by batch in every arm as long as there is time."""
    tokens = texts(REQUESTS + FILL, SEED)
    answers: dict[str, dict[int, list[int]]] = {arm: {} for arm in ARMS}
    await apply(server, ON)
    for start in range(0, FILL, BATCH):
        await send(server, "fill", list(range(start, start + BATCH)), tokens[REQUESTS:])
    for start in range(0, REQUESTS, BATCH):
        if not kit.has_time(ROUND_S, f"requests from {start} on"):
            break
        for arm, plan in ARMS.items():
            await apply(server, plan)
            numbers = batch_of(start, arm)
            answers[arm] |= dict(zip(numbers, await send(server, arm, numbers, tokens), strict=False))
    return answers


async def apply(server, arm: dict) -> None:
    """Put an arm in force afresh: the plan between resets the probe's counter."""
    names = ("min_batch_size", "depth", "gear")
    for row, probe in (((1, 1), None), (arm["row"], arm["probe"])):
        await server.control.put([dict(zip(names, row, strict=False))], lease_s=600, probe=probe)


async def send(server, arm: str, numbers: list[int], tokens: list[list[int]]) -> list[list[int]]:
    """The answers to one batch."""
    answer = await server.http.post("/generate", json=request(arm, numbers, tokens))
    found = answer.raise_for_status().json()
    return [one["output_ids"] for one in (found if isinstance(found, list) else [found])]
