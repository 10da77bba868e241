"""Is what off says right?  Equal tokens while switching, MLA, the distribution of samples, on small models.

ATTENTION=triton|fa3|flashinfer (MLA: not flashinfer), PARTS=small,mla,letters,likeliest.  About 4 minutes,
and 2 more where SGLang compiles its kernel for sampled drafts.

`small`: 8 layers; greedy tokens of the plain server, of every gear of off, of speculation, and of
speculation and off by turns at every step.  In bfloat16, as SGLang's RMSNorm kernel has no float32: where
speculation takes part, near ties may fall the other way.  `mla`: DeepSeek-V2-Lite's attention, tokens and
step times.

The first two tokens of many answers to one prompt at temperature 1; proof.py compares the counts by a
chi-square.  `letters`: a vocabulary of 64, nothing cut off; the plain server twice (what the test says of two
samples that are of one distribution), off, and drafts verified.  `likeliest`: 16 of 128256 tokens, where
rounding decides which is the last of them; the plain server, the same after a prefill in two pieces (other
rounding, no speculation: the control), and off.
"""

import collections
import os
import random

from kit import setups
from kit.session import Kit, Target

ATTENTION = os.environ.get("ATTENTION", "triton")
PARTS = os.environ.get("PARTS", "small,mla,letters,likeliest").split(",")
UNIT = {"BENCH_UNIT_WEIGHTS": "1"}
SMALL = {
    "model": "llama8l",
    "kv_tokens": 60_000,
    "graph_batch_sizes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "env": UNIT,
    "attention": ATTENTION,
}
# acceptance is never simulated there: the token 100 of that is not in such a vocabulary
LETTERS = SMALL | {"model": "llama8v", "draft": "eagle3v", "acceptance": -1.0}
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
    if {"small", "likeliest"} & set(PARTS):
        wanted += [setups.plain("plain16", **SMALL), setups.table("ours16", (0, 2), **SMALL)]
    if "letters" in PARTS:
        wanted += [setups.plain("plain64", **LETTERS), setups.table("ours64", (0, 2), **LETTERS)]
    servers = await kit.start_what_can(*wanted)
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
    if "likeliest" in PARTS:
        async with kit.part("samples of the 16 likeliest"):
            await likeliest(kit, servers["plain16"], servers["ours16"])
    if "letters" in PARTS:
        async with kit.part("samples of 64 tokens"):
            await letters(kit, servers["plain64"], servers["ours64"])
    for name, server in servers.items():
        state = await server.control.state() or {}
        kit.record(
            "after", server=name, plain_decode=state.get("plain_decode"), telemetry=state.get("telemetry")
        )


async def answers(server, prompts, **sampling) -> list[list[int]]:
    """The output tokens of prompts that arrive in one call, from an empty cache."""
    await server.http.post("/flush_cache")
    return [answer["output_ids"] for answer in await generate(server, prompts, **sampling)]


async def generate(server, prompts, **sampling) -> list[dict]:
    """The answers to prompts that arrive in one call."""
    body = {"input_ids": prompts, "sampling_params": {"ignore_eos": True, **sampling}, "stream": False}
    found = (await server.http.post("/generate", json=body)).raise_for_status().json()
    return found if isinstance(found, list) else [found]


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


async def likeliest(kit, plain, ours) -> None:
    """Pairs of the 16 likeliest of 128256 tokens, so that most are seen often: plain, plain cut, off."""
    draw = Draw(kit, "16 likeliest of 128256 tokens", random.Random(8).sample(range(1000, 30000), 40), 4)
    await put(ours, *PLANS["off-cold"])
    await draw(plain, "plain", top_k=16)
    await draw(plain, "plain, prefill in two pieces", head=20, top_k=16)
    await draw(ours, "off-cold", top_k=16)


async def letters(kit, plain, ours) -> None:
    """Pairs of all 64 tokens: plain twice, the gears of off, and two drafts verified."""
    draw = Draw(kit, "all of 64 tokens", [random.Random(9).randrange(64) for _ in range(40)], 10)
    await draw(plain, "plain")
    await draw(plain, "plain again")
    for name in ("off-cold", "off-warm", "depth-2"):
        await put(ours, *PLANS[name])
        await draw(ours, name)


class Draw:
    """Counts the first two tokens of many answers to one prompt at temperature 1, and journals them."""

    def __init__(self, kit: Kit, of: str, prompt: list[int], calls: int, many: int = 1500) -> None:
        self._kit, self._of, self._prompt, self._calls, self._many = kit, of, prompt, calls, many

    async def __call__(self, server, name: str, *, head: int = 0, **sampling: object) -> None:
        """`head`: so many tokens of the prompt are put into the cache before the rest is asked for."""
        wanted = {"temperature": 1.0, "max_new_tokens": 2, **sampling}
        counts, drafts = collections.Counter(), 0
        for _ in range(self._calls):
            await server.http.post("/flush_cache")
            if head:
                await generate(server, [self._prompt[:head]], temperature=0.0, max_new_tokens=1)
            found = await generate(server, [self._prompt] * self._many, **wanted)
            counts.update(" ".join(map(str, answer["output_ids"])) for answer in found)
            drafts += sum(a.get("meta_info", {}).get("spec_num_correct_drafts") or 0 for a in found)
        self._kit.record(
            "samples", of=self._of, server=name, sampling=wanted, n=sum(counts.values()),
            accepted_drafts=drafts, counts=dict(counts.most_common(5000)),
        )  # fmt: skip
        self._kit.say(self._of, name, "distinct pairs", len(counts), "accepted drafts", drafts)
