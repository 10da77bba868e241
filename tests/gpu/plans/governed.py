"""specgov's goodput policy, cold and warm, against no speculation, fixed 1/2/4, off and SGLang's own rule.

ATTENTION=triton|fa3, ACCEPTANCE=0.745, LEVELS=1,8,32,64,128,256, ROUNDS=2, WINDOW_S=2, COLD_S=8,
TICK_S=0.25, ADAPTIVE_LEVELS=16,64,256 (empty: none), COLD_ONLY=1 (no other arm, from cold).
Two servers: `plain`, and `table`, on which the fixed arms and the sidecar take turns: one server against
itself, since two servers on one GPU differ by more than what is looked for.  At every level a sidecar that
knows nothing is started: `cold` is the window in which the load arrives and it learns (the page shows it by
second), `settled` the one after.  It is then ended; in each round one is started anew with what the last one
had written down: these windows, alternated with those of the others, are `warm`.  ARRIVALS=1: the load
arrives at every fixed arm too, for as long as at `cold`, which is compared with that.
Starts 2 minutes (70 s when the machine has started such servers before), a level 20 s and 32 s a round.
"""

import os
from collections.abc import Sequence

from kit import setups
from kit.server import Server
from kit.session import Kit, Target

levels = lambda key, default: [int(c) for c in os.environ.get(key, default).split(",") if c]  # noqa: E731
LEVELS, ADAPTIVE_LEVELS = levels("LEVELS", "1,8,32,64,128,256"), levels("ADAPTIVE_LEVELS", "16,64,256")
ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_S = float(os.environ.get("WINDOW_S", "2"))
COLD_S = float(os.environ.get("COLD_S", "8"))
TICK_S = float(os.environ.get("TICK_S", "0.25"))
P = float(os.environ.get("ACCEPTANCE", str(setups.HIGH)))
ARRIVALS = os.environ.get("ARRIVALS") == "1"
COLD_ONLY = os.environ.get("COLD_ONLY") == "1"
K = {"attention": os.environ.get("ATTENTION", "triton"), "acceptance": P}


async def run(kit: Kit) -> None:
    if COLD_ONLY:
        (table,) = await kit.start(setups.table(**K))
        for level in LEVELS:
            if kit.has_time(COLD_S + WINDOW_S + 6, f"C={level}"):
                async with kit.part(f"governed at C={level}"):
                    await learn(kit, table, level)
        return
    plain, table = await kit.start(setups.plain(**K), setups.table(**K))
    await measure(kit, plain, table)
    if ADAPTIVE_LEVELS and kit.has_time(90 + 12 * len(ADAPTIVE_LEVELS), "SGLang adaptive"):
        await kit.stop(table)
        (own,) = await kit.start(setups.adaptive(**K))
        for level in ADAPTIVE_LEVELS:
            # its rule needs a moment to settle after a change of load
            targets = [*Target.of(own), *Target.of(plain)]
            timing = {"settle_s": 2.0, "window_s": WINDOW_S}
            notes = {"acceptance": P, "pass_number": "SGLang's rule"}
            await kit.alternate(targets, [level], rounds=1, **timing, **notes)


async def measure(kit: Kit, plain: Server, table: Server) -> None:
    """At every level: from cold, settled, then warm and alternated with the others."""
    fixed = [*Target.of(plain), *Target.of(table, "depth-1", "depth-2", "depth-4", "off-cold")]
    for level in LEVELS:
        rounds_s = (WINDOW_S * 6 + 18) * ROUNDS
        if not kit.has_time(rounds_s + 22, f"C={level}"):
            continue
        async with kit.part(f"governed at C={level}"):
            await learn(kit, table, level)
            if ARRIVALS and kit.has_time(rounds_s + len(fixed) * (COLD_S + 2), f"arrivals at C={level}"):
                await arrive(kit, fixed, level)
            notes = {"temperature": "warm", "acceptance": P}
            targets = [*fixed, governed(table, settings_at(level))]
            await kit.alternate(targets, [level], rounds=ROUNDS, window_s=WINDOW_S, **notes)


async def learn(kit: Kit, table: Server, level: int) -> None:
    """A sidecar that knows nothing meets the load, learns, and ends; what it knows stays."""
    me = governed(table)
    sidecar = await kit.sidecar(table, **settings_at(level))
    await kit.load(table, level)
    await kit.window(me, level, COLD_S, temperature="cold", acceptance=P)
    await kit.window(me, level, WINDOW_S, temperature="settled", acceptance=P)
    await kit.stop_load(table)
    await sidecar.stop()
    await kit.until_free(table)


async def arrive(kit: Kit, targets: Sequence[Target], level: int) -> None:
    """The load arrives at every arm in turn, which holds its depth from the first step on."""
    for target in targets:
        if target.arm.fixed is not None:
            await target.server.control.apply(target.arm.fixed, lease_s=60)
        await kit.load(target.server, level)
        await kit.window(target, level, COLD_S, arriving=True, acceptance=P)
        await kit.stop_load(target.server)


def governed(table: Server, settings: dict[str, object] | None = None) -> Target:
    """What a sidecar does with the server; it is started where `settings` are given."""
    return Target(table, Target.of(table)[0].arm, "governed", settings)


def settings_at(level: int) -> dict[str, object]:
    """A sidecar's, with a store of its own at every level."""
    return {"policy": "goodput", "fresh": f"level-{level}", "loop__period_s": TICK_S}
