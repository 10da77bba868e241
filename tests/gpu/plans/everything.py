"""The plans threshold, off, governed and switching on the same three servers: for a short lease of a GPU.

PARTS=threshold,off,governed,switching; the options of the single plans apply.  The parts stand in the order
of their weight; what does not fit is left out and listed.  A start of 2 minutes, then 13 (PLAN_SECONDS=900).
"""

import os

import governed
import off
import switching
import threshold
from kit import setups
from kit.session import Kit, Target

PARTS = os.environ.get("PARTS", "threshold,off,governed,switching").split(",")
K = governed.K


async def run(kit: Kit) -> None:
    plain, table, steered = await kit.start(
        setups.plain(**K), setups.table(**K), setups.table("governed", **K)
    )
    for server in (table, steered):
        kit.record("speculation", server=server.name, body=await server.control.state())
    if "threshold" in PARTS:
        async with kit.part("threshold"):
            sidecar = await kit.sidecar(steered, policy="threshold")
            targets = [*Target.of(plain), *Target.of(table, "depth-4"), *Target.of(steered)]
            await threshold.measure(kit, targets, rounds=1)
            await sidecar.stop()
    if "off" in PARTS:
        await off.measure(kit, [*Target.of(plain), *Target.of(table, *off.GEARS)], off.ROUNDS)
    if "governed" in PARTS:
        await governed.measure(kit, plain, table)
    if "switching" in PARTS and kit.has_time(55, "switching"):
        await switching.bursts_and_toggles(kit, table)
