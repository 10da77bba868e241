"""Bursts, switch latency, the standing cost of the hook, and grammars while switching.  About 5 minutes.

PARTS=bursts,standing,grammar, ROUNDS=4 and STANDING_LEVELS=1,32 (of the standing cost).
"""

import asyncio
import json
import os

from kit import setups
from kit.session import Kit, Target

from controller.bench.arms import parse_arm

PARTS = os.environ.get("PARTS", "bursts,standing,grammar").split(",")
ROUNDS = int(os.environ.get("ROUNDS", "4"))
STANDING_LEVELS = [int(c) for c in os.environ.get("STANDING_LEVELS", "1,32").split(",")]
ON, OFF = parse_arm("depth-4"), parse_arm("off-cold")
BURST = [{"min_batch_size": 1, "depth": 4}, {"min_batch_size": 48, "depth": 0, "gear": "cold"}]
SCHEMA = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["color", "n", "ok", "tags"],
        "properties": {
            "color": {"enum": ["red", "green", "blue"]},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 4},
        },
    }
)


async def run(kit: Kit) -> None:
    # what the hook costs, and not what its verify brings
    wanted = [setups.table("hooked", env={"SPECGOV_CHAIN_VERIFY": "0"})]
    if "standing" in PARTS:
        wanted += [setups.table(name, hook=False) for name in ("stock", "stock2")]
    if "grammar" in PARTS:
        wanted.append(setups.grammar(setups.table("words", (0, 1, 3))))
    servers = {server.name: server for server in await kit.start(*wanted)}
    if "bursts" in PARTS:
        await bursts_and_toggles(kit, servers["hooked"])
    if "standing" in PARTS:
        await standing_cost(kit, *(servers[name] for name in ("hooked", "stock", "stock2")))
    if "grammar" in PARTS:
        async with kit.part("grammar while switching"):
            await constrained(kit, servers["words"], total_s=15, period_s=0.25)


async def standing_cost(kit: Kit, hooked, *stock) -> None:
    """The plugin and nothing governed beside two servers without it, which differ by nothing: the control."""
    async with kit.part("standing cost"):
        await hooked.control.release()
        for server in (hooked, *stock):
            # every draft accepted: SGLang's rule then stays at the deepest, and all servers do the same work
            await kit.acceptance(server, 1.0)
        for of in ("hooked/native", stock[1].name):
            kit.record("compare", of=of, to=stock[0].name)
        await kit.alternate(
            [*Target.of(hooked, "native"), *(target for server in stock for target in Target.of(server))],
            STANDING_LEVELS,
            rounds=ROUNDS,
            settle_s=1.5,
            window_s=3.0,
        )


async def bursts_and_toggles(kit, server) -> None:
    """Three bursts, then switches every half and every tenth of a second."""
    for number in range(3):
        async with kit.part(f"burst {number}"):
            await burst(kit, server)
    async with kit.part("switch latency"):
        await toggle(kit, server, concurrency=32, period_s=0.5, total_s=20)
        await toggle(kit, server, concurrency=32, period_s=0.1, total_s=10)


async def burst(kit, server) -> None:
    """C 2, then 128 at once, under one schedule: how many steps does the depth take to follow?"""
    await kit.load(server, 2)
    await asyncio.sleep(1.0)
    await server.control.put(BURST, lease_s=60)
    await asyncio.sleep(1.0)
    kit.record("burst", server=server.name, schedule=BURST, small=2, large=128)
    await kit.load(server, 128)
    await kit.window(Target.of(server)[0], 128, 3.0, burst=True)
    await kit.stop_load(server)


async def toggle(kit, server, *, concurrency: int, period_s: float, total_s: float) -> None:
    """On and off by turns under load; every switch is confirmed by telemetry."""
    await kit.load(server, concurrency)
    await asyncio.sleep(kit.ramp_s(concurrency))
    end_s, n = kit.now() + total_s, 0
    from_s = kit.now()
    while kit.now() < end_s:
        arm, began_s = (OFF, ON)[n % 2], kit.now()
        await server.control.apply(arm.fixed, lease_s=60)
        kit.record(
            "toggle",
            server=server.name,
            n=n,
            arm=arm.label,
            put_s=began_s,
            acknowledged_s=kit.now(),
            period_s=period_s,
        )
        n += 1
        await asyncio.sleep(max(0.0, began_s + period_s - kit.now()))
    kit.record(
        "toggles",
        server=server.name,
        C=concurrency,
        period_s=period_s,
        switches=n,
        from_s=from_s,
        to_s=kit.now(),
        state=await server.control.state(),
    )
    await kit.stop_load(server)


async def constrained(kit, server, *, total_s: float, period_s: float) -> None:
    """JSON-schema requests at real acceptance while switching; how many drafts were accepted is counted."""
    await kit.acceptance(server, -1.0)
    end_s = kit.now() + total_s
    counts = {"valid": 0, "invalid": 0, "accepted_drafts": 0, "switches": 0}
    bad: list[str] = []

    async def client(number: int) -> None:
        while kit.now() < end_s:
            body = {
                "input_ids": [97 + (number * 7 + i) % 26 for i in range(20)],
                "stream": False,
                "sampling_params": {"temperature": 1.0, "max_new_tokens": 200, "json_schema": SCHEMA},
            }
            answer = (await server.http.post("/generate", json=body)).json()
            counts["accepted_drafts"] += int(answer.get("meta_info", {}).get("spec_num_correct_drafts") or 0)
            try:
                found = json.loads(answer["text"])
                good = set(found) == {"color", "n", "ok", "tags"} and found["color"] in (
                    "red",
                    "green",
                    "blue",
                )
            except (KeyError, ValueError):
                good = False
            counts["valid" if good else "invalid"] += 1
            if not good and len(bad) < 5:
                bad.append(json.dumps(answer)[:500])

    async def switcher() -> None:
        while kit.now() < end_s - 0.3:
            arm = parse_arm(("off-cold", "depth-3", "off-warm", "depth-1")[counts["switches"] % 4])
            await server.control.apply(arm.fixed, lease_s=60)
            counts["switches"] += 1
            await asyncio.sleep(period_s)

    await asyncio.gather(switcher(), *(client(i) for i in range(8)))
    await server.dump()
    kit.record("grammar", server=server.name, **counts, bad=bad)
    kit.say("grammar", counts, bad[:1])
