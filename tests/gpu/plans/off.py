"""Off that is off: every gear of depth 0 against a server without speculation, side by side, alternated.

ATTENTION=triton|flashinfer|fa3, LEVELS=1,32,128,256, ROUNDS=3, MODEL=llama8b.  SGLang's own depth 0 is
a third server with plain decoding switched off.  Per backend about 2 minutes of starts and 75 s a round.
"""

import os
from collections.abc import Sequence

from kit import setups
from kit.session import Kit, Target

LEVELS = [int(c) for c in os.environ.get("LEVELS", "1,32,128,256").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "3"))
GEARS = os.environ.get("GEARS", "off-cold,off-warm,off-frozen").split(",")
K = {"attention": os.environ.get("ATTENTION", "triton"), "model": os.environ.get("MODEL", "llama8b")}
OWN_OFF = {"SPECGOV_PLAIN_DECODE": "0"}


async def run(kit: Kit) -> None:
    plain, table, own = await kit.start(
        setups.plain(**K),
        setups.table("specgov", (0, 2), **K),
        setups.table("sglang", (0, 2), env=OWN_OFF, **K),
    )
    for server in (table, own):
        kit.record("speculation", server=server.name, body=await server.control.state())
    targets = [*Target.of(plain), *Target.of(table, *GEARS), *Target.of(own, "off-warm")]
    await measure(kit, targets, ROUNDS)


async def measure(kit: Kit, targets: Sequence[Target], rounds: int) -> None:
    """Every level once a round, so that a plan that is cut short has all of them."""
    for number in range(rounds):
        if kit.has_time(80, f"off, round {number}"):
            reverse = bool(number % 2)
            timing = {"settle_s": 0.8, "window_s": 3.0}
            await kit.alternate(targets, LEVELS, rounds=1, reverse=reverse, pass_number=number, **timing)
