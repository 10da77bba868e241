"""Is off really off?  One backend: equal tokens, speed of every gear against a plain server, a timeline.

ATTENTION=triton|flashinfer|fa3, MODEL=llama8b|mla|..., LEVELS=1,32,128,256, ROUNDS=3, DEPTHS=0,2,4,
GEARS=off-cold,off-warm,off-frozen, OWN=1 (SGLang's own depth 0 once beside it, in the first round),
PARTS=equal,speed,sampled,timeline, TIMELINE=1,32 (its levels), STEPS=60 (of each profile).

About 4 minutes: servers start in 60 to 110 s; a batch takes 2 s at C = 1 and 32, 3 at 128, 6 at 256, SGLang's
own depth 0 on Triton up to 20; a level of the timeline 12 to 25 s.  Rounds that no time is left for are left
out, what the timeline needs is kept for it.

Speed is measured by whole batches: C requests of 200 tokens in, 256 out (C=1: 384), sent in one call and
run to their end, so that every arm does the same work and no arrival falls into a step.  All servers have
the same unit-gain weights (plugin/unit_weights.py) and accept drafts for real: at depth 0 no step holds
anything of the simulation.  `timeline.py` shows what a step consists of.
"""

import asyncio
import os
import random

from kit import setups
from kit.profiles import summarize
from kit.session import Kit, Target

from controller.bench.arms import parse_arm

LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,32,128,256").split(",")]
TIMELINE = [int(c) for c in os.environ.get("TIMELINE", "1,32").split(",")]
STEPS = int(os.environ.get("STEPS", "60"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
GEARS = os.environ.get("GEARS", "off-cold,off-warm,off-frozen").split(",")
PARTS = os.environ.get("PARTS", "equal,speed,sampled,timeline").split(",")
DEPTHS = tuple(int(d) for d in os.environ.get("DEPTHS", "0,2,4").split(","))
OWN = os.environ.get("OWN", "1") == "1"
UNIT = {"BENCH_UNIT_WEIGHTS": "1"}
MODEL = os.environ.get("MODEL", "llama8b")
KV_TOKENS = 130_000
"""256 requests of 456 tokens, and what is reserved for drafts: a smaller pool takes some back."""
K = {
    "attention": os.environ.get("ATTENTION", "triton"),
    "model": MODEL,
    "draft": setups.draft_of(MODEL),
    "kv_tokens": KV_TOKENS,
}
TIMELINE_S = 25.0
"""What a level of the timeline takes at most."""
COLD = parse_arm("off-cold")


async def run(kit: Kit) -> None:
    wanted = [setups.plain(env=UNIT, **K), setups.table("specgov", DEPTHS, env=UNIT, **K)]
    if OWN:
        wanted.append(setups.table("sglang", (0, 2), env=UNIT | {"SPECGOV_PLAIN_DECODE": "0"}, **K))
    servers = await kit.start_what_can(*wanted)
    plain, ours = servers["plain"], servers["specgov"]
    own = [servers[name] for name in ("sglang",) if name in servers]
    for server in (ours, *own):
        await kit.acceptance(server, -1.0)
        state = await server.control.state()
        kit.record("speculation", server=server.name, body=state)
        kit.say(server.name, (state or {}).get("plain_decode"), (state or {}).get("reason"))
    if "equal" in PARTS:
        async with kit.part("equal tokens"):
            await equal(kit, plain, ours)
    if "speed" in PARTS:
        spare_s = TIMELINE_S * len(TIMELINE) * ("timeline" in PARTS)
        await speed(kit, plain, ours, own, LEVELS, temperature=0.0, spare_s=spare_s)
    if "timeline" in PARTS:
        for concurrency in TIMELINE:
            if not kit.has_time(TIMELINE_S, f"timeline C={concurrency}"):
                continue
            async with kit.part(f"timeline C={concurrency}"):
                await timeline(kit, plain, ours, concurrency)
    if "sampled" in PARTS:
        await speed(kit, plain, ours, [], [32, 128], temperature=1.0)
    for server in (ours, *own):
        await after(kit, server)


async def after(kit, server) -> None:
    """What the server says in the end; whoever comes next finds it free."""
    async with kit.part(f"after {server.name}"):
        state = await server.control.state() or {}
        errors = [rank.get("hook_errors") for rank in state.get("telemetry", [])]
        kit.record("after", server=server.name, plain_decode=state.get("plain_decode"), hook_errors=errors)
        kit.say(server.name, state.get("plain_decode"), "hook errors", errors)
        await server.control.release()


async def speed(kit, plain, ours, own, levels, temperature, spare_s=0.0) -> None:
    """Batches of every arm, alternated: A B C D, D C B A, ...; SGLang's own depth 0 in the first round.

    A round at a level begins only where time for all of it is left, and `spare_s` for what comes after.
    """
    for number in range(ROUNDS if temperature == 0 else 1):
        targets = [*Target.of(plain), *Target.of(ours, *GEARS)]
        for concurrency in levels:
            mine = targets + (Target.of(own[0], "off-warm") if own and number == 0 else [])
            needs_s = sum(batch_s(concurrency, own=t.server in own) for t in mine)
            if not kit.has_time(needs_s + spare_s, f"round {number}, C={concurrency}"):
                return
            for target in mine[:: -1 if number % 2 else 1]:
                async with kit.part(f"{target.label} C={concurrency} round {number}"):
                    await whole_batch(kit, target, concurrency, number, temperature)


def batch_s(concurrency: int, *, own: bool) -> float:
    """About what a batch takes on an 8B shape, rounded up; SGLang's own depth 0 as on Triton."""
    return 3 + concurrency / 12 if own else 2 + concurrency / 60


async def whole_batch(kit, target, concurrency: int, number: int, temperature: float) -> None:
    """One batch to its end; the span is from the first result to the last, as the step log has it."""
    concurrency = kit.engine.concurrency(concurrency)
    await put(target.server, target.arm)
    length = (200, 384 if concurrency == 1 else 256) if kit.engine.pins_cpus else (8, 24)
    rng = random.Random(f"{number} {concurrency}")
    low, high = (1000, 30000) if kit.engine.pins_cpus else (3, 500)
    prompts = [[rng.randint(low, high) for _ in range(length[0])] for _ in range(concurrency)]
    await target.server.http.post("/flush_cache")
    sampling = {"temperature": temperature, "max_new_tokens": length[1], "ignore_eos": True}
    from_s = kit.now()
    await answers(target.server, prompts, sampling)
    to_s = kit.now()
    if not await in_use(target):
        raise RuntimeError(f"{target.label} was not in use")
    notes = {"settling": f"temperature {temperature:g}"} if temperature else {}
    kit.record(
        "window", label=target.label, server=target.server.name, arm=target.arm.label, C=concurrency,
        wanted_C=concurrency, from_s=from_s, to_s=to_s + 0.05, hook_tok_s=None, round=number,
        whole_batch_s=to_s - from_s, batch_tokens=concurrency * length[1], **notes,
    )  # fmt: skip
    kit.say(f"{target.label:22} C={concurrency:<4} {concurrency * length[1] / (to_s - from_s):8.0f} tok/s")
    await target.server.dump()


async def put(server, arm) -> None:
    """Put an arm in force on an idle server; `in_use` tells afterwards."""
    if arm.fixed is not None:
        await server.control.apply(arm.fixed, lease_s=600)


async def in_use(target) -> bool:
    """Whether the steps that ran were those of the arm."""
    state = await target.server.control.state() if target.arm.fixed is not None else None
    return state is None or all(
        (rank["depth"], rank["gear"]) == (target.arm.fixed.depth, target.arm.fixed.gear.value)
        for rank in state["telemetry"]
    )


async def answers(server, prompts, sampling) -> list[list[int]]:
    """The output tokens of prompts that arrive in one call."""
    body = {"input_ids": prompts, "sampling_params": sampling, "stream": False}
    found = (await server.http.post("/generate", json=body)).raise_for_status().json()
    return [answer["output_ids"] for answer in (found if isinstance(found, list) else [found])]


async def equal(kit, plain, ours) -> None:
    """Greedy tokens of the plain server and of depth 0, from empty caches: alone, then in one batch."""
    rng = random.Random(3)
    low, high, lengths, count = (
        (1000, 30000, (100, 300), 96) if kit.engine.pins_cpus else (3, 500, (5, 9), 16)
    )
    prompts = [[rng.randint(low, high) for _ in range(rng.randint(*lengths))] for _ in range(32)]
    sampling = {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True}
    await put(ours, COLD)
    for how, groups in (("alone", [[p] for p in prompts[:6]]), ("together", [prompts])):
        found = {}
        for server in (plain, ours):
            await server.http.post("/flush_cache")
            found[server.name] = [a for group in groups for a in await answers(server, group, sampling)]
        both = list(zip(found[plain.name], found[ours.name], strict=True))
        differ = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None) for a, b in both
        ]
        same = sum(a == b for a, b in both)
        kit.record(
            "equal",
            how=how,
            same=same,
            of=len(both),
            first_difference=differ,
            distinct=len({tuple(a) for a, _ in both}),
        )
        kit.say(
            "equal tokens",
            how,
            f"{same} of {len(both)}; first differences",
            [d for d in differ if d is not None],
        )


async def timeline(kit, plain, ours, concurrency: int) -> None:
    """A profile of GPU work alone, so that the host runs at its own speed; what it shows is journalled."""
    rng = random.Random(1)
    concurrency = kit.engine.concurrency(concurrency)
    prompts = [[rng.randint(3, 500) for _ in range(100)] for _ in range(concurrency)]
    longest = min(500, (KV_TOKENS - 10_000) // concurrency - 100) if kit.engine.pins_cpus else 60
    for target in [*Target.of(plain), *Target.of(ours, "off-cold", "off-warm")]:
        await put(target.server, target.arm)
        folder = kit.out / "trace" / f"{target.label.replace('/', '-')}-C{concurrency}"
        await profile(target.server, folder, prompts, longest)
        if not await in_use(target):
            raise RuntimeError(f"{target.label} was not in use")
    for path in sorted((kit.out / "trace").glob(f"*-C{concurrency}/*.trace.json.gz")):
        summary = summarize(path)
        kit.record("timeline", summary=summary)
        kit.say(summary["trace"], {k: v for k, v in summary.items() if k.endswith("us") or k == "steps"})


async def profile(server, folder, prompts, longest: int) -> None:
    """A trace of `STEPS` steps of a batch that is decoding, into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    sampling = {"temperature": 0.0, "max_new_tokens": longest, "ignore_eos": True}
    run = asyncio.create_task(answers(server, prompts, sampling))
    await asyncio.sleep(0.8)
    asked = {"output_dir": str(folder), "num_steps": STEPS, "activities": ["GPU"]}
    await server.http.post("/start_profile", json=asked)
    await run
    for _ in range(20):
        if any(folder.glob("*.gz")):
            break
        await asyncio.sleep(0.25)
