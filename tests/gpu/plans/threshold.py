"""The sidecar with `threshold` under a closed loop of C = 2, 64, 2, beside depth 4 and no speculation.

Three servers side by side on one GPU, measured one after another, twice.  About 5 minutes.
"""

import asyncio

from kit import setups
from kit.session import Kit, Target

PHASES = (2, 64, 2)
SETTLE_S, WINDOW_S = 2.5, 7.0


async def run(kit: Kit) -> None:
    servers = await kit.start(setups.plain(), setups.fixed(4), setups.table("governed"))
    sidecar = await kit.sidecar(servers[2], policy="threshold")
    for number in range(2):
        if number and not kit.has_time(110, "second round"):
            break
        for server in servers[:: -1 if number else 1]:
            async with kit.part(f"{server.name} round {number}"):
                for phase, concurrency in enumerate(PHASES):
                    await kit.load(server, concurrency, stream_every=8)
                    # the first moments of a phase are a window of their own: how fast does the depth follow?
                    await kit.window(
                        Target.of(server)[0], concurrency, SETTLE_S, round=number, phase=phase, settling=True
                    )
                    await kit.window(
                        Target.of(server)[0], concurrency, WINDOW_S, round=number, phase=phase, settling=False
                    )
                await kit.stop_load(server)
                await asyncio.sleep(0.5)
    await sidecar.stop()
