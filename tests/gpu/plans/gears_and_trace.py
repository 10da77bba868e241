"""Off beside a plain server, what the draft's extend by decoding brings, then the trace, on one machine.

For one GPU and half an hour (PLAN_SECONDS=1600): the options of `plain_decode` and `mixed` apply, and
AFTER=FILE,FILE (start at once, measure when those files are there).  PARTS=extend,gears,trace,levels.

`extend`: two servers of 8 layers, one with SPECGOV_CHAIN_EXTEND=0, whose draft is as wide as that of the 8B
shape; EXTEND_LEVELS=64,256, and two rounds.  `gears`: whole batches of every gear and of the plain server.
`trace`: ARMS of `mixed`, which have their time kept for them.  `levels`: after them, on the same two servers,
the levels of `governed` with its options.
"""

import os
from pathlib import Path

import governed
import mixed
import plain_decode
from kit import setups
from kit.server import Server
from kit.session import Kit, Target

PARTS = os.environ.get("PARTS", "extend,gears,trace").split(",")
AFTER = [Path(name) for name in os.environ.get("AFTER", "").split(",") if name]
EXTEND_LEVELS = [int(c) for c in os.environ.get("EXTEND_LEVELS", "64,256").split(",")]
EXTEND_ARMS = ("depth-1", "depth-4", "off-warm")
TRACE_S = (
    ("trace" in PARTS) * len(mixed.ARMS) * (10 + mixed.SCALE * sum(seconds for seconds, _, _ in mixed.TRACE))
)
SMALL = {"model": "llama8l", "kv_tokens": 130_000, **mixed.K}


async def run(kit: Kit) -> None:
    wanted = []
    if {"gears", "trace", "levels"} & set(PARTS):
        kv_tokens = plain_decode.KV_TOKENS if "gears" in PARTS else setups.KV_TOKENS
        changes = {"env": plain_decode.UNIT, "kv_tokens": kv_tokens}
        wanted += [mixed.SERVERS[name].but(**changes) for name in ("plain", "table")]
    if "extend" in PARTS:
        wanted += [
            setups.table("decoded", **SMALL),
            setups.table("extended", **SMALL).but(env={"SPECGOV_CHAIN_EXTEND": "0"}),
        ]
    servers = await kit.start_what_can(*wanted)
    for name, server in servers.items():
        if name != "plain":
            state = await server.control.state() or {}
            kit.record("speculation", server=name, body=state)
            kit.say(name, state.get("plain_decode"), state.get("chain_verify"))
    for path in AFTER:
        await kit.until_there(path, spare_s=TRACE_S)
    if {"decoded", "extended"} <= set(servers):
        if kit.has_time(TRACE_S + 70, "extend"):
            await extend(kit, servers["extended"], servers["decoded"])
        await kit.stop(servers["decoded"], servers["extended"])
    if "gears" in PARTS and {"plain", "table"} <= set(servers) and kit.has_time(TRACE_S + 60, "gears"):
        await kit.acceptance(servers["table"], -1.0)
        await plain_decode.speed(
            kit, servers["plain"], servers["table"], [], plain_decode.LEVELS, 0.0, spare_s=TRACE_S
        )
        await plain_decode.after(kit, servers["table"])
    if "trace" in PARTS:
        await mixed.traces(kit, servers)
    if "levels" in PARTS and {"plain", "table"} <= set(servers):
        await kit.acceptance(servers["table"], governed.P)
        await governed.measure(kit, servers["plain"], servers["table"])


async def extend(kit: Kit, *servers: Server) -> None:
    """Whole batches, so that no arrival falls into a step; A B, B A."""
    for number in range(2):
        for concurrency in EXTEND_LEVELS:
            targets = [t for arm in EXTEND_ARMS for server in servers for t in Target.of(server, arm)]
            for target in targets[:: -1 if number % 2 else 1]:
                async with kit.part(f"{target.label} C={concurrency} round {number}"):
                    await plain_decode.whole_batch(kit, target, concurrency, number, 0.0)
