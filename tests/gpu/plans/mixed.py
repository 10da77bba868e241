"""A trace with load and acceptance shifting, the same for every arm: total output tokens and latency.

The arms run one after another (they share a GPU).  TRACE_SCALE=1 is a minute an arm; ATTENTION=triton|fa3.
"""

import asyncio
import os

from kit import setups
from kit.session import Kit, Target

SCALE = float(os.environ.get("TRACE_SCALE", "1"))
K = {"attention": os.environ.get("ATTENTION", "triton")}
ARMS = os.environ.get("ARMS", "plain,depth-2,depth-4,off-cold,governed").split(",")
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


async def run(kit: Kit) -> None:
    plain, table = await kit.start(setups.plain(**K), setups.table(**K))
    for arm in ARMS:
        seconds = sum(s for s, _, _ in TRACE) * SCALE
        if not kit.has_time(seconds + 10, f"trace under {arm}"):
            continue
        async with kit.part(f"trace under {arm}"):
            server = plain if arm == "plain" else table
            sidecar = await kit.sidecar(table, policy="goodput", fresh="trace") if arm == "governed" else None
            target = Target.of(server, *([arm] if arm not in ("plain", "governed") else []))[0]
            for phase, (phase_s, concurrency, p) in enumerate(TRACE):
                if server is table:
                    await kit.acceptance(table, p)
                await kit.load(server, concurrency, stream_every=8)
                if phase == 0:
                    await asyncio.sleep(kit.ramp_s(concurrency))
                    await kit.apply(server, target.arm, lease_s=3600)
                await kit.window(target, concurrency, phase_s * SCALE, trace=arm, phase=phase, acceptance=p)
            await kit.stop_load(server)
            if sidecar is not None:
                await sidecar.stop()
            elif server is table:
                await table.control.release()
