"""Is off really off?  One backend: speed of every gear against a plain server, equal tokens, and a timeline of a step.

ATTENTION=triton|flashinfer|fa3, MODEL=llama8b, LEVELS=1,32,128,256, ROUNDS=2, GEARS=off-cold,off-warm,off-frozen,
OWN=1 (SGLang's own depth 0 beside it), PARTS=equal,speed,sampled,timeline, WINDOW_S=2.  About 4 minutes with the starts.

All servers have the same unit-gain weights (plugin/unit_weights.py) and accept drafts for real, so that nothing of
the simulation is in a step at depth 0.  `timeline.py OUT/trace` shows what a step consists of.
"""

import asyncio
import os
import random

from kit import setups
from kit.session import Kit, Target

from controller.bench.arms import parse_arm
from controller.bench.client import Client
from controller.bench.load import ClosedLoop
from controller.bench.prompts import RandomTokens

LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,32,128,256").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_S = float(os.environ.get("WINDOW_S", "2"))
GEARS = os.environ.get("GEARS", "off-cold,off-warm,off-frozen").split(",")
PARTS = os.environ.get("PARTS", "equal,speed,sampled,timeline").split(",")
OWN = os.environ.get("OWN", "1") == "1"
UNIT = {"BENCH_UNIT_WEIGHTS": "1"}
K = {"attention": os.environ.get("ATTENTION", "triton"), "model": os.environ.get("MODEL", "llama8b")}
COLD = parse_arm("off-cold")


async def run(kit: Kit) -> None:
    wanted = [setups.plain(env=UNIT, **K), setups.table("specgov", (0, 2), env=UNIT, **K)]
    if OWN:
        wanted.append(setups.table("sglang", (0, 2), env=UNIT | {"SPECGOV_PLAIN_DECODE": "0"}, **K))
    plain, ours, *own = await kit.start(*wanted)
    for server in (ours, *own):
        await kit.acceptance(server, -1.0)
        state = await server.control.state()
        kit.record("speculation", server=server.name, body=state)
        kit.say(server.name, (state or {}).get("plain_decode"), (state or {}).get("reason"))
    if "equal" in PARTS:
        async with kit.part("equal tokens"):
            await equal(kit, plain, ours)
    if "timeline" in PARTS:
        for concurrency in (1, 32):
            async with kit.part(f"timeline C={concurrency}"):
                await timeline(kit, plain, ours, concurrency)
    if "speed" in PARTS:
        await speed(kit, plain, ours, own)
    if "sampled" in PARTS:
        await sampled(kit, plain, ours)
    async with kit.part("after"):
        for server in (ours, *own):
            state = await server.control.state() or {}
            errors = [rank.get("hook_errors") for rank in state.get("telemetry", [])]
            kit.record(
                "after", server=server.name, plain_decode=state.get("plain_decode"), hook_errors=errors
            )
            kit.say(server.name, state.get("plain_decode"), "hook errors", errors)


async def speed(kit, plain, ours, own) -> None:
    """Windows at every concurrency, alternated; SGLang's own depth 0 once."""
    targets = [*Target.of(plain), *Target.of(ours, *GEARS)]
    for number in range(ROUNDS):
        if kit.has_time(70, f"round {number}"):
            await kit.alternate(
                targets, LEVELS, rounds=1, reverse=bool(number % 2), window_s=WINDOW_S, pass_number=number
            )
    if own and kit.has_time(25, "SGLang's own depth 0"):
        await kit.alternate(Target.of(own[0], "off-warm"), LEVELS, rounds=1, window_s=WINDOW_S)


async def sampled(kit, plain, ours) -> None:
    """The same with temperature 1: the one-node tree is sampled then, not just looked at."""
    for concurrency in (32, 128):
        for target in [*Target.of(plain), *Target.of(ours, "off-cold")]:
            async with kit.part(f"{target.label} at temperature 1, C={concurrency}"):
                server = target.server
                client = Client(server.http, kit.now, sampling={"temperature": 1.0})
                server.load = ClosedLoop(client, kit.source(), random.Random(7), stream_every=0)
                await server.load.scale(kit.engine.concurrency(concurrency))
                await asyncio.sleep(kit.ramp_s(concurrency))
                await kit.apply(server, target.arm)
                await asyncio.sleep(0.5)
                await kit.window(target, concurrency, WINDOW_S, settling="temperature 1")
                await kit.stop_load(server)


async def equal(kit, plain, ours) -> None:
    """Greedy tokens of the plain server and of depth 0: prompts alone, then in one batch."""
    rng = random.Random(3)
    source = (
        RandomTokens((100, 300), (96, 96), (1000, 30000))
        if kit.engine.pins_cpus
        else RandomTokens((5, 9), (16, 16), (3, 500))
    )
    prompts = [source.draw(rng) for _ in range(32)]
    await ours.control.apply(COLD.fixed, lease_s=600)
    for how, chosen, together in (("alone", prompts[:6], False), ("together", prompts, True)):
        answers = {}
        for server in (plain, ours):
            calls = [tokens(server, p) for p in chosen]
            answers[server.name] = await asyncio.gather(*calls) if together else [await c for c in calls]
        both = list(zip(answers[plain.name], answers[ours.name], strict=True))
        same = sum(a == b for a, b in both)
        first = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None) for a, b in both
        ]
        kit.record(
            "equal",
            how=how,
            same=same,
            of=len(both),
            first_difference=first,
            distinct=len({tuple(a) for a, _ in both}),
            sample=both[0],
        )
        kit.say(
            "equal tokens",
            how,
            f"{same} of {len(both)}; first differences",
            [f for f in first if f is not None][:12],
        )


async def tokens(server, prompt) -> list[int]:
    body = {"input_ids": list(prompt.token_ids), "stream": False,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": prompt.output_tokens, "ignore_eos": True}}  # fmt: skip
    answer = await server.http.post("/generate", json=body)
    return answer.raise_for_status().json()["output_ids"]


async def timeline(kit, plain, ours, concurrency: int, steps: int = 40) -> None:
    """A profile of some steps of each server under load, by SGLang's own profiler."""
    for target in [*Target.of(plain), *Target.of(ours, "off-cold", "off-warm")]:
        server = target.server
        source = RandomTokens((128, 256), (600, 800)) if kit.engine.pins_cpus else kit.source()
        await kit.load(server, concurrency, source=source)
        await asyncio.sleep(kit.ramp_s(concurrency) + 0.5)
        await kit.apply(server, target.arm)
        folder = kit.out / "trace" / f"{target.label.replace('/', '-')}-C{concurrency}"
        folder.mkdir(parents=True, exist_ok=True)
        asked = {"output_dir": str(folder), "num_steps": steps, "activities": ["CPU", "GPU"]}
        await server.http.post("/start_profile", json=asked)
        for _ in range(28):
            if any(folder.glob("*.gz")):
                break
            await asyncio.sleep(0.25)
        await asyncio.sleep(0.5)
        await kit.stop_load(server)
