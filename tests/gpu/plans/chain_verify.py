"""Drafts verified by the decode kernel beside SGLang's own verify: is it right, and what does it bring?

MODEL=llama8b, LEVELS=1,8,32,64,128,256, DEPTHS=0,1,2,4, ROUNDS=2, WINDOW_S=1.5, ACCEPTANCE=0.745,
PARTS=equal,speed,kernels, KERNELS_S=60, PAIR=folder.  About 5 minutes.

Three servers on one GPU, on unit-gain weights: `plain` without speculation, `own` with SGLang's verify,
`chain` with the decode kernel (SPECGOV_CHAIN_VERIFY=0 and 1). `equal`: what `chain` says at depth 0 becomes
the drafts of both (tests/engine/oracle_drafts.py), so a verify that is right accepts nearly all of them (not
all: in bfloat16 near ties fall otherwise when several tokens are computed together). On random weights near
ties are everywhere, so PAIR names a pair that has learned (tests/benchmarks/after_cold/train_pair.py), and
`equal` alone is run. `speed`: windows alternated between all servers and depths, acceptance simulated.
`kernels`: kernels/verify_kernels.py, when the servers are gone.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from kit import setups
from kit.session import Kit, Target

from controller.bench.arms import parse_arm

LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,8,32,64,128,256").split(",")]
DEPTHS = tuple(int(d) for d in os.environ.get("DEPTHS", "0,1,2,4").split(","))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_S = float(os.environ.get("WINDOW_S", "1.5"))
HERE = Path(__file__).resolve().parent.parent
SCRIPT = HERE / "kernels" / "verify_kernels.py"
sys.path.append(str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent))
P = float(os.environ.get("ACCEPTANCE", str(setups.HIGH)))
PAIR = os.environ.get("PAIR")
PARTS = os.environ.get("PARTS", "equal,speed,kernels").split(",")
KERNELS_S = float(os.environ.get("KERNELS_S", "60"))
K = {"attention": "triton", "model": os.environ.get("MODEL", "llama8b"), "acceptance": P}
UNIT = {"BENCH_UNIT_WEIGHTS": "1"}
DRAFTING = [f"depth-{depth}" for depth in DEPTHS if depth]


async def run(kit: Kit) -> None:
    oracle = kit.out / "oracle.json"
    if PAIR:
        await learned_pair(kit, oracle)
        return
    env = UNIT | {"ORACLE_FILE": str(oracle)}
    plain, own, chain = await kit.start(
        setups.plain(env=UNIT, **K),
        setups.table("own", DEPTHS, env=env | {"SPECGOV_CHAIN_VERIFY": "0"}, **K),
        setups.table("chain", DEPTHS, env=env | {"SPECGOV_CHAIN_VERIFY": "1"}, **K),
    )
    for server in (own, chain):
        state = await server.control.state() or {}
        kit.record("speculation", server=server.name, body=state)
        kit.say(server.name, state.get("chain_verify"), state.get("plain_decode"))
    if "equal" in PARTS:
        async with kit.part("equal tokens"):
            await equal(kit, own, chain, oracle, *random_prompts(kit))
    if "speed" in PARTS:
        await speed(kit, plain, own, chain)
    for server in (own, chain):
        state = await server.control.state() or {}
        telemetry, verify = state.get("telemetry") or [], state.get("chain_verify")
        errors = [rank.get("hook_errors") for rank in telemetry]
        kit.record("after", server=server.name, chain_verify=verify, hook_errors=errors)
        kit.say(server.name, verify, "hook errors", errors)
    if "kernels" in PARTS and not kit.rehearsed and kit.has_time(KERNELS_S, "kernels"):
        await kit.stop(plain, own, chain)
        async with kit.part("kernels"):
            await kernels(kit)


async def learned_pair(kit: Kit, oracle: Path) -> None:
    """`equal` on a pair that is sure of what it says, whose prompts are Python sources."""
    from tests.benchmarks.after_cold.arms import PROMPT, texts  # noqa: PLC0415 - the product's path, late

    env = {"ORACLE_FILE": str(oracle)}
    own, chain = await kit.start(
        *(
            setups.known(setups.table(name, DEPTHS, env=env | {"SPECGOV_CHAIN_VERIFY": wanted}), HERE / PAIR)
            for name, wanted in (("own", "0"), ("chain", "1"))
        )
    )
    for server in (own, chain):
        kit.record("speculation", server=server.name, body=await server.control.state())
    async with kit.part("equal tokens"):
        await equal(kit, own, chain, oracle, [text[:PROMPT] for text in texts(32, 11)], 160)


async def speed(kit: Kit, plain, own, chain) -> None:
    """Every depth of both servers beside no speculation, alternated."""
    for server in (own, chain):
        await kit.acceptance(server, P)
    targets = [*Target.of(plain), *Target.of(own, *DRAFTING), *Target.of(chain, *DRAFTING)]
    for number in range(ROUNDS):
        for level in LEVELS:
            if not kit.has_time(len(targets) * (WINDOW_S + 0.7) + 8, f"round {number}, C={level}"):
                return
            await kit.alternate(
                targets, [level], rounds=1, reverse=bool(number % 2), window_s=WINDOW_S, acceptance=P,
                pass_number=number,
            )  # fmt: skip


def random_prompts(kit: Kit) -> tuple[list[list[int]], int]:
    """32 prompts of random tokens, and how many are to follow."""
    draw = random.Random(3)
    low, high, lengths, count = (
        (1000, 30000, (100, 1500), 96) if kit.engine.pins_cpus else (3, 500, (5, 9), 16)
    )
    return [[draw.randint(low, high) for _ in range(draw.randint(*lengths))] for _ in range(32)], count


async def equal(kit: Kit, own, chain, oracle: Path, prompts: list[list[int]], count: int) -> None:
    """How many requests get the tokens of depth 0, and in how many verifies a right draft is refused."""
    for server in (own, chain):
        await kit.acceptance(server, -1.0)
    await chain.control.apply(parse_arm("off-cold").fixed, lease_s=600)
    known = await answers(chain, prompts, count + max(DEPTHS))
    await asyncio.to_thread(
        oracle.write_text, json.dumps([[*p, *a] for p, a in zip(prompts, known, strict=False)])
    )
    for server in (own, chain):
        for arm in DRAFTING:
            for how, groups in (("alone", [[p] for p in prompts[:6]]), ("together", [prompts])):
                await server.control.apply(parse_arm(arm).fixed, lease_s=600)
                before = await accepted(server)
                found = [a for group in groups for a in await answers(server, group, count)]
                after = await accepted(server)
                same = sum(a == k[:count] for a, k in zip(found, known, strict=False))
                steps = sum(after.values()) - sum(before.values())
                depth = parse_arm(arm).fixed.depth
                full = after.get((depth, depth), 0) - before.get((depth, depth), 0)
                kit.record(
                    "equal", server=server.name, arm=arm, how=how, same=same, of=len(found), steps=steps,
                    steps_with_all_accepted=full,
                )  # fmt: skip
                kit.say(server.name, arm, how, f"{same} of {len(found)} requests; {full} of {steps} steps")
    await asyncio.to_thread(oracle.unlink)


async def accepted(server) -> dict[tuple[int, int], int]:
    """Steps of requests by depth and drafts accepted, so far."""
    state = await server.control.state() or {}
    counts: dict[tuple[int, int], int] = {}
    for rank in (state.get("telemetry") or [])[:1]:
        for cell in rank["cells"]:
            for name in ("accepted", "accepted_after_cold"):
                for drafts, steps in enumerate(cell.get(name) or ()):
                    if cell.get("depth"):
                        key = cell["depth"], drafts
                        counts[key] = counts.get(key, 0) + steps
    return counts


async def answers(server, prompts, count: int) -> list[list[int]]:
    """Greedy tokens of prompts that arrive in one call, from an empty cache."""
    await server.http.post("/flush_cache")
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True},
        "stream": False,
    }
    found = (await server.http.post("/generate", json=body)).raise_for_status().json()
    return [answer["output_ids"] for answer in (found if isinstance(found, list) else [found])]


async def kernels(kit: Kit) -> None:
    """The table of kernels, in a process of its own, into `kernels.jsonl`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-B", str(SCRIPT), str(kit.out / "kernels.jsonl"), str(KERNELS_S),
        env=kit.engine.environment(setups.plain(), kit.out),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the kernels were not measured: {said.decode()[-3000:]}")
    kit.say("kernels:", said.decode()[-300:])
