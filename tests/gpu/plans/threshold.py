"""The sidecar with `threshold` under a closed loop of C = 2, 64, 2, beside depth 4 and no speculation.

Three servers side by side on one GPU, measured one after another, twice.  About 5 minutes.
"""

import asyncio
from collections.abc import Sequence

from kit import setups
from kit.session import Kit, Target

PHASES = (2, 64, 2)
SETTLE_S, WINDOW_S = 2.5, 7.0


async def run(kit: Kit) -> None:
    plain, fixed, governed = await kit.start(setups.plain(), setups.fixed(4), setups.table("governed"))
    sidecar = await kit.sidecar(governed, policy="threshold")
    await measure(kit, [Target.of(server)[0] for server in (plain, fixed, governed)], rounds=2)
    await sidecar.stop()


async def measure(kit: Kit, targets: Sequence[Target], rounds: int) -> None:
    """Every target through the phases, in alternated order."""
    for number in range(rounds):
        if not kit.has_time(len(targets) * 34, f"threshold, round {number}"):
            return
        for target in targets[:: -1 if number else 1]:
            async with kit.part(f"C = 2, 64, 2 on {target.label}, round {number}"):
                await phases(kit, target, number)


async def phases(kit: Kit, target: Target, number: int) -> None:
    """One target through the phases."""
    for phase, concurrency in enumerate(PHASES):
        await kit.load(target.server, concurrency, stream_every=8)
        if phase == 0:
            await asyncio.sleep(kit.ramp_s(concurrency))
            await kit.apply(target.server, target.arm)
        notes = {"round": number, "phase": phase}
        # the first moments of a phase are a window of their own: how fast does the depth follow?
        await kit.window(target, concurrency, SETTLE_S, settling=True, **notes)
        await kit.window(target, concurrency, WINDOW_S, settling=False, **notes)
    await kit.stop_load(target.server)
    await asyncio.sleep(0.5)
