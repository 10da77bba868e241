"""Tensor parallel: do all ranks take every switch at the same step, and what do off and on bring there?

TP=2|4|8, MODEL=llama8b, ATTENTION=triton, SWITCHES=1000, LEVELS=1,32,128.  A machine with TP GPUs.
Switches at 10 Hz, gears included; then leases that end and probes that run.  About 2 minutes of starts, 100 s
a thousand switches, 25 s a level.
"""

import asyncio
import os

from kit import setups
from kit.session import Kit, Target

from controller.bench.arms import parse_arm

TP = int(os.environ.get("TP", "2"))
SWITCHES = int(os.environ.get("SWITCHES", "1000"))
LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,32,128").split(",")]
K = {
    "attention": os.environ.get("ATTENTION", "triton"),
    "model": os.environ.get("MODEL", "llama8b"),
    "gpus": ",".join(map(str, range(TP))),
}
ARMS = ("depth-4", "off-cold", "depth-1", "off-warm", "depth-2")
PERIOD_S = 0.1


async def run(kit: Kit) -> None:
    flags = ("--tp", str(TP), "--disable-custom-all-reduce")
    servers = [setups.plain(**K), setups.table(**K)]
    plain, table = await kit.start(*(s.but(args=s.args + flags) for s in servers))
    async with kit.part("switches"):
        await switches(kit, table)
    async with kit.part("leases end and probes run"):
        await leases_and_probes(kit, table)
    targets = [*Target.of(plain), *Target.of(table, "depth-1", "depth-4", "off-cold")]
    for level in LEVELS:
        if kit.has_time(30, f"C={level}"):
            await kit.alternate(targets, [level], rounds=1)


async def switches(kit: Kit, server) -> None:
    """Another arm every tenth of a second; the step logs of all ranks must hold the same sequence."""
    await kit.load(server, 32)
    await asyncio.sleep(kit.ramp_s(32))
    began_s = kit.now()
    for n in range(SWITCHES):
        arm = parse_arm(ARMS[n % len(ARMS)])
        await server.control.apply(arm.fixed, lease_s=60)
        await asyncio.sleep(max(0.0, began_s + (n + 1) * PERIOD_S - kit.now()))
    state = await server.control.state()
    kit.record("ranks", server=server.name, tp=TP, switches=SWITCHES, s=kit.now() - began_s, state=state)
    await kit.stop_load(server)


async def leases_and_probes(kit: Kit, server) -> None:
    """Leases of a second run out under load; probes of every depth run between."""
    await kit.load(server, 16)
    await asyncio.sleep(kit.ramp_s(16))
    probe = {"depth": 4, "every_steps": 50, "burst_steps": 5, "bursts": 1000}
    probe |= {"min_batch_size": 1, "max_batch_size": 256}
    for n in range(5):
        await server.control.put([{"min_batch_size": 1, "depth": n % 2}], lease_s=1, probe=probe)
        await asyncio.sleep(2.5)
    state = await server.control.state()
    kit.record("ranks", server=server.name, tp=TP, leases=5, state=state)
    await kit.stop_load(server)
