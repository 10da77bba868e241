"""A trace with load and acceptance shifting, the same for every arm: total output tokens and latency.

The arms run one after another (they share a GPU), most telling first.  TRACE_SCALE=1 is a minute an arm (10:
the ten-minute trace), ATTENTION=triton|fa3, ARMS=plain,governed,adaptive,depth-4,depth-2,depth-1,off-cold;
own/depth-2, chain/depth-2 and so on: on a server with SPECGOV_CHAIN_VERIFY=0 or 1; unnamed, as the plugin
has it by default, or as that variable says in the plan's own environment.
"""

import asyncio
import os
from collections.abc import Mapping

from kit import setups
from kit.server import Server
from kit.session import Kit, Target

SCALE = float(os.environ.get("TRACE_SCALE", "1"))
K = {"attention": os.environ.get("ATTENTION", "triton")}
ARMS = os.environ.get("ARMS", "plain,governed,adaptive,depth-4,depth-2,depth-1,off-cold").split(",")
TICK_S = float(os.environ.get("TICK_S", "0.25"))
# seconds, concurrency, acceptance per position
TRACE = (
    (8, 4, 0.745),
    (10, 96, 0.745),
    (8, 16, 0.745),
    (8, 16, 0.366),
    (10, 128, 0.366),
    (8, 8, 0.745),
    (8, 64, 0.745),
)


SERVERS = {
    "plain": setups.plain(**K),
    "adaptive": setups.adaptive(**K),
    "table": setups.table(**K),
    "own": setups.table("own", env={"SPECGOV_CHAIN_VERIFY": "0"}, **K),
    "chain": setups.table("chain", env={"SPECGOV_CHAIN_VERIFY": "1"}, **K),
}


def server_of(arm: str) -> str:
    """Which of `SERVERS` runs an arm of the trace."""
    name = arm.partition("/")[0]
    return name if name in SERVERS else "table"


async def run(kit: Kit) -> None:
    await traces(kit, await kit.start_what_can(*(SERVERS[n] for n in dict.fromkeys(map(server_of, ARMS)))))


async def traces(kit: Kit, servers: Mapping[str, Server]) -> None:
    """Every arm whose server is there, one after the other, by `server_of`."""
    for arm in ARMS:
        server = servers.get(server_of(arm))
        seconds = sum(s for s, _, _ in TRACE) * SCALE
        if server is None or not kit.has_time(seconds + 10, f"trace under {arm}"):
            continue
        async with kit.part(f"trace under {arm}"):
            await trace(kit, server, arm)


async def trace(kit: Kit, server: Server, arm: str) -> None:
    """All phases under one arm; a sidecar begins knowing nothing."""
    depth = arm.rpartition("/")[2]
    target = Target.of(server, *([depth] if depth.startswith(("depth-", "off-")) else []))[0]
    sidecar = None
    if arm == "governed":
        target = Target(server, target.arm, arm)
        sidecar = await kit.sidecar(server, policy="goodput", fresh="trace", loop__period_s=TICK_S)
    for phase, (phase_s, concurrency, p) in enumerate(TRACE):
        if server.setup.speculative:
            await kit.acceptance(server, p)
        await kit.load(server, concurrency, stream_every=8)
        if phase == 0:
            await asyncio.sleep(kit.ramp_s(concurrency))
            await kit.apply(server, target.arm, lease_s=min(3600.0, 600.0 * max(1.0, SCALE)))
        await kit.window(target, concurrency, phase_s * SCALE, trace=arm, phase=phase, acceptance=p)
    await kit.stop_load(server)
    if sidecar is not None:
        await sidecar.stop()
        await kit.until_free(server)
    elif target.arm.fixed is not None:
        await server.control.release()
