"""specgov's goodput policy, cold and warm, against no speculation, fixed 1/2/4, off and SGLang's own rule.

ATTENTION=triton|fa3, ACCEPTANCE=0.745, LEVELS=1,16,32,64,128,256, ROUNDS=2, WINDOW_S=2, COLD_S=6,
TICK_S=0.25, ADAPTIVE_LEVELS=16,64,256 (empty: none).
At every level a sidecar that knows nothing is started on the governed server; its first window is `cold`, the
later ones `warm`.  Starts 2 minutes, a round of a level about 24 s.
"""

import os

from kit import setups
from kit.server import Server
from kit.session import Kit, Target

levels = lambda key, default: [int(c) for c in os.environ.get(key, default).split(",") if c]  # noqa: E731
LEVELS, ADAPTIVE_LEVELS = levels("LEVELS", "1,16,32,64,128,256"), levels("ADAPTIVE_LEVELS", "16,64,256")
ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_S = float(os.environ.get("WINDOW_S", "2"))
COLD_S = float(os.environ.get("COLD_S", "6"))
TICK_S = float(os.environ.get("TICK_S", "0.25"))
P = float(os.environ.get("ACCEPTANCE", str(setups.HIGH)))
K = {"attention": os.environ.get("ATTENTION", "triton"), "acceptance": P}


async def run(kit: Kit) -> None:
    plain, table, governed = await kit.start(
        setups.plain(**K), setups.table(**K), setups.table("governed", **K)
    )
    await measure(kit, plain, table, governed)
    await kit.stop(table)
    if ADAPTIVE_LEVELS and kit.has_time(90 + 9 * len(ADAPTIVE_LEVELS), "SGLang adaptive"):
        (own,) = await kit.start(setups.adaptive(**K))
        for level in ADAPTIVE_LEVELS:
            # its rule needs a moment to settle after a change of load
            await kit.alternate(
                [*Target.of(own), *Target.of(plain)],
                [level],
                rounds=1,
                settle_s=2.0,
                window_s=WINDOW_S,
                acceptance=P,
            )


async def measure(kit: Kit, plain: Server, table: Server, governed: Server) -> None:
    """At every level: from cold, then alternated with the others."""
    fixed = [*Target.of(plain), *Target.of(table, "depth-1", "depth-2", "depth-4", "off-cold")]
    (me,) = Target.of(governed)
    for level in LEVELS:
        if not kit.has_time(26 * ROUNDS + 15, f"C={level}"):
            continue
        async with kit.part(f"governed at C={level}"):
            name = f"cold-{level}"
            sidecar = await kit.sidecar(governed, policy="goodput", fresh=name, loop__period_s=TICK_S)
            await kit.load(governed, level)
            await kit.window(me, level, COLD_S, temperature="cold", acceptance=P)
            await kit.stop_load(governed)
            notes = {"temperature": "warm", "acceptance": P}
            await kit.alternate([*fixed, me], [level], rounds=ROUNDS, window_s=WINDOW_S, **notes)
            await sidecar.stop()
