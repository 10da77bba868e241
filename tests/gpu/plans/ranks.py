"""Tensor parallel: do all ranks take every switch at the same step, and what do off and on bring there?

TP=4|8 (2), SHAPE=llama70b|deepseek|llama8b, ATTENTION=triton, SWITCHES=1000, LEASES=5, LEVELS=1,32,128,8,64,
ROUNDS=2, ACCEPTANCE=0.745, ADAPTIVE=1 (SGLang's own rule beside it), AFTER=FILE (start at once, measure when
that file is there: another plan on the same GPUs is then done).  A machine with TP GPUs.

Switches at 10 Hz under load, gears included; leases that end while probes run; then throughput of no
speculation, each depth, off, SGLang's rule and the sidecar, alternated.  Starts about 2 minutes (three
servers side by side), 105 s a thousand switches, 15 s of leases, a level about 32 s a round.
"""

import asyncio
import os
from pathlib import Path

from kit import setups
from kit.server import Server
from kit.session import Kit, Target

from controller.bench.arms import parse_arm
from controller.bench.engine import EngineRefusedError

TP = int(os.environ.get("TP", "4"))
SHAPE = os.environ.get("SHAPE", "llama70b")
SWITCHES = int(os.environ.get("SWITCHES", "1000"))
LEASES = int(os.environ.get("LEASES", "5"))
LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,32,128,8,64").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_S = float(os.environ.get("WINDOW_S", "2"))
P = float(os.environ.get("ACCEPTANCE", str(setups.HIGH)))
K = {
    "attention": os.environ.get("ATTENTION", "triton"),
    "model": SHAPE,
    "draft": setups.draft_of(SHAPE),
    "gpus": ",".join(map(str, range(TP))),
    "graph_batch_sizes": (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128),
    "acceptance": P,
}
ARMS = ("depth-4", "off-cold", "depth-1", "off-warm", "depth-2", "off-frozen")
"""In this order each switch changes the depth, so that the step log shows where it fell."""
FIXED = ("off-cold", "depth-1", "depth-2", "depth-4")
PERIOD_S = 0.1
LEVEL_S = 45.0


async def run(kit: Kit) -> None:
    wanted = [setups.plain(**K), setups.table(**K)]
    wanted += [setups.adaptive(**K)] if os.environ.get("ADAPTIVE", "1") == "1" else []
    servers = await kit.start_what_can(*wanted)
    if "AFTER" in os.environ and not await kit.until_there(Path(os.environ["AFTER"])):
        return
    table = servers.get("table")
    if table is not None:
        state = await table.control.state()
        kit.record("speculation", server=table.name, body=state)
        kit.say("table", (state or {}).get("plain_decode"), (state or {}).get("reason"))
        async with kit.part("switches"):
            await switches(kit, table)
        async with kit.part("leases end and probes run"):
            await leases_and_probes(kit, table)
    for number in range(ROUNDS):
        for level in LEVELS:
            if kit.has_time(LEVEL_S, f"C={level}, round {number}"):
                await throughput(kit, servers, level, number)


async def throughput(kit: Kit, servers: dict[str, Server], level: int, number: int) -> None:
    """One round of a level: every arm once, then the sidecar on the server with the table."""
    targets = Target.of(servers["plain"]) if "plain" in servers else []
    targets += Target.of(servers["table"], *FIXED) if "table" in servers else []
    notes = {"acceptance": P, "pass_number": number}
    await kit.alternate(targets, [level], rounds=1, reverse=bool(number % 2), window_s=WINDOW_S, **notes)
    if "adaptive" in servers:
        # its rule needs a moment to settle after a change of load
        mine = Target.of(servers["adaptive"])
        await kit.alternate(mine, [level], rounds=1, settle_s=2.0, window_s=WINDOW_S, **notes)
    if "table" in servers:
        async with kit.part(f"governed C={level} round {number}"):
            await governed(kit, servers["table"], level, notes)


async def governed(kit: Kit, table: Server, level: int, notes: dict) -> None:
    """The sidecar takes over: its first seconds at this level, then what it settled on."""
    await table.control.release()
    sidecar = await kit.sidecar(table, policy="goodput", fresh="all", loop__period_s=0.25)
    me = Target(table, parse_arm("as-is"), "governed")
    await kit.load(table, level)
    await asyncio.sleep(kit.ramp_s(level))
    await kit.window(me, level, 4.0, temperature="settling", round=0, **notes)
    for _ in range(2):
        await kit.window(me, level, WINDOW_S, temperature="settled", round=0, **notes)
    await kit.stop_load(table)
    await sidecar.stop()
    await kit.until_free(table)


async def switches(kit: Kit, server: Server) -> None:
    """Another arm every tenth of a second; the step logs of all ranks must hold the same sequence."""
    await kit.load(server, 32)
    await asyncio.sleep(kit.ramp_s(32))
    from_s = kit.now()
    for n in range(SWITCHES):
        arm, began_s = parse_arm(ARMS[n % len(ARMS)]), kit.now()
        try:
            await server.control.apply(arm.fixed, lease_s=60)
        except EngineRefusedError as problem:
            kit.record("refused_switch", server=server.name, n=n, error=str(problem))
        facts = {"put_s": began_s, "acknowledged_s": kit.now(), "period_s": PERIOD_S}
        kit.record("toggle", server=server.name, n=n, arm=arm.label, **facts)
        await asyncio.sleep(max(0.0, from_s + (n + 1) * PERIOD_S - kit.now()))
    state, to_s = await server.control.state(), kit.now()
    kit.record("ranks", server=server.name, tp=TP, switches=SWITCHES, s=to_s - from_s, state=state)
    spans = {"C": kit.engine.concurrency(32), "period_s": PERIOD_S, "from_s": from_s, "to_s": to_s}
    kit.record("toggles", server=server.name, switches=SWITCHES, state=state, **spans)
    await kit.stop_load(server)


async def leases_and_probes(kit: Kit, server: Server) -> None:
    """Leases of a second run out under load; probes of another depth run between."""
    await kit.load(server, 16)
    await asyncio.sleep(kit.ramp_s(16))
    probe = {"depth": 4, "every_steps": 50, "burst_steps": 5, "bursts": 1000}
    probe |= {"min_batch_size": 1, "max_batch_size": 256}
    for n in range(LEASES):
        await server.control.put([{"min_batch_size": 1, "depth": n % 2}], lease_s=1, probe=probe)
        await asyncio.sleep(2.5)
    state = await server.control.state()
    kit.record("ranks", server=server.name, tp=TP, leases=LEASES, state=state)
    await kit.stop_load(server)
