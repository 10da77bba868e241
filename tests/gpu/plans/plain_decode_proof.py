"""Is what off says right?  Equal tokens while switching, MLA, the distribution of samples, on small models.

ATTENTION=triton|fa3 (for MLA; the others are on Triton), PARTS=small,mla,sampled.  About 3 minutes.

`small`: 8 layers; greedy tokens of the plain server, of every gear of off, of speculation, and of
speculation and off by turns at every step.  In bfloat16, as SGLang's RMSNorm kernel has no float32: where
speculation takes part, near ties may fall the other way.  `mla`: DeepSeek-V2-Lite's attention, tokens and
step times.  `sampled`: the first two tokens of many answers to one prompt at temperature 1, from the plain
server and from off; compare the counts by a chi-square.
"""

import collections
import os
import random

from kit import setups
from kit.session import Kit, Target

ATTENTION = os.environ.get("ATTENTION", "triton")
PARTS = os.environ.get("PARTS", "small,mla,sampled").split(",")
UNIT = {"BENCH_UNIT_WEIGHTS": "1"}
SMALL = {
    "model": "llama8l",
    "kv_tokens": 60_000,
    "graph_batch_sizes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "env": UNIT,
}
MLA = {"model": "mla", "draft": "eagle3mla", "kv_tokens": 60_000, "attention": ATTENTION, "env": UNIT}
EVERY_OTHER_STEP = {"every_steps": 2, "burst_steps": 1}
PLANS = {
    "off-cold": ({"depth": 0, "gear": "cold"}, None),
    "off-warm": ({"depth": 0, "gear": "warm"}, None),
    "off-frozen": ({"depth": 0, "gear": "frozen"}, None),
    "depth-2": ({"depth": 2}, None),
    "cold and 2 by turns": ({"depth": 0, "gear": "cold"}, {"depth": 2, **EVERY_OTHER_STEP}),
    "warm and 2 by turns": ({"depth": 0, "gear": "warm"}, {"depth": 2, **EVERY_OTHER_STEP}),
}


async def run(kit: Kit) -> None:
    wanted = []
    if "mla" in PARTS:
        wanted += [setups.plain("plainmla", **MLA), setups.table("oursmla", (0, 2), **MLA)]
    if {"small", "sampled"} & set(PARTS):
        wanted += [setups.plain("plain16", **SMALL), setups.table("ours16", (0, 2), **SMALL)]
    servers = {server.name: server for server in await kit.start(*wanted)}
    for name, server in servers.items():
        if name.startswith("ours"):
            await kit.acceptance(server, -1.0)
            state = await server.control.state()
            kit.record("speculation", server=name, body=state)
            kit.say(name, (state or {}).get("plain_decode"), (state or {}).get("reason"))
    for part, pair in (("small", "16"), ("mla", "mla")):
        if part in PARTS:
            async with kit.part(f"equal tokens, {pair}"):
                await equal(kit, servers[f"plain{pair}"], servers[f"ours{pair}"])
    if "mla" in PARTS:
        async with kit.part("step times, mla"):
            await speed(kit, servers["plainmla"], servers["oursmla"])
    if "sampled" in PARTS:
        async with kit.part("samples"):
            await sampled(kit, servers["plain16"], servers["ours16"])
    for name, server in servers.items():
        state = await server.control.state() or {}
        kit.record(
            "after", server=name, plain_decode=state.get("plain_decode"), telemetry=state.get("telemetry")
        )


async def answers(server, prompts, **sampling) -> list[list[int]]:
    """The output tokens of prompts that arrive in one call, from an empty cache."""
    await server.http.post("/flush_cache")
    body = {"input_ids": prompts, "sampling_params": {"ignore_eos": True, **sampling}, "stream": False}
    found = (await server.http.post("/generate", json=body)).raise_for_status().json()
    return [answer["output_ids"] for answer in (found if isinstance(found, list) else [found])]


async def put(server, row, probe) -> None:
    """A plan of one row, and a probe that makes every step a switch."""
    await server.control.put([{"min_batch_size": 1, **row}], lease_s=600, probe=probe)


async def equal(kit, plain, ours) -> None:
    """Greedy tokens of every plan against the plain server's, alone and in one batch of 24."""
    rng = random.Random(3)
    prompts = [[rng.randint(1000, 30000) for _ in range(rng.randint(20, 300))] for _ in range(24)]
    greedy = {"temperature": 0.0, "max_new_tokens": 64}

    async def both_ways(server) -> list[list[int]]:
        alone = [tokens for p in prompts[:3] for tokens in await answers(server, [p], **greedy)]
        return [*alone, *(await answers(server, prompts, **greedy))]

    reference = await both_ways(plain)
    for name, (row, probe) in PLANS.items():
        await put(ours, row, probe)
        found = await both_ways(ours)
        differ = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            for a, b in zip(reference, found, strict=True)
        ]
        same = sum(d is None for d in differ)
        kit.record("equal", how=f"{ours.name} {name}", same=same, of=len(differ), first_difference=differ)
        kit.say(
            "equal tokens", ours.name, name, f"{same} of {len(differ)}", [d for d in differ if d is not None]
        )


async def speed(kit, plain, ours) -> None:
    """Whole batches at C=1 and 32: off-cold, off-warm, the plain server."""
    for concurrency in (1, 32):
        for number in range(2):
            targets = [*Target.of(plain), *Target.of(ours, "off-cold", "off-warm")]
            for target in targets[:: -1 if number else 1]:
                if target.arm.fixed is not None:
                    await put(target.server, PLANS[target.label.split("/")[1]][0], None)
                rng = random.Random(number)
                prompts = [
                    [rng.randint(1000, 30000) for _ in range(200)]
                    for _ in range(kit.engine.concurrency(concurrency))
                ]
                from_s = kit.now()
                await answers(target.server, prompts, temperature=0.0, max_new_tokens=256)
                kit.record(
                    "window", label=target.label, server=target.server.name, arm=target.arm.label,
                    C=concurrency, wanted_C=concurrency, from_s=from_s, to_s=kit.now() + 0.05,
                    hook_tok_s=None, round=number,
                )  # fmt: skip
                kit.say(target.label, concurrency, f"{kit.now() - from_s:.3f} s")
                await target.server.dump()


async def sampled(kit, plain, ours, many: int = 1500, calls: int = 4) -> None:
    """Counts of the first two tokens; the 16 likeliest alone, so that most pairs are seen often."""
    wanted = {"temperature": 1.0, "top_k": 16, "max_new_tokens": 2}
    rng = random.Random(8)
    prompt = [rng.randint(1000, 30000) for _ in range(40)]
    await put(ours, *PLANS["off-cold"])
    for server in (plain, ours):
        counts = collections.Counter()
        for _ in range(calls):
            found = await answers(server, [prompt] * many, **wanted)
            counts.update(f"{a} {b}" for a, b in found)
        kit.record(
            "samples",
            server=server.name,
            sampling=wanted,
            n=sum(counts.values()),
            counts=dict(counts.most_common(400)),
        )
        kit.say(server.name, "distinct pairs", len(counts), "most common", counts.most_common(3))
