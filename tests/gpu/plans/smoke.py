"""Does everything work?  8-layer model, two small servers side by side, 2 minutes; after any change.

The hook loads and answers, a plan goes in force and the depth follows, the two recorders agree, a bad plan is
refused with its field, a lease ends, off is plain decoding or says why not, the sidecar's preflight passes.
"""

import asyncio
import os

from kit import setups
from kit.session import Kit, Target
from kit.sidecar import SPECGOV

from controller.bench.arms import parse_arm

ARMS = ("off-cold", "depth-4", "off-warm", "depth-2", "depth-1")


async def run(kit: Kit) -> None:
    plain, table = await kit.start(setups.small(setups.plain()), setups.small(setups.table()), limit_s=200)
    async with kit.part("the hook answers"):
        state = await table.control.state()
        kit.record("speculation", server=table.name, body=state)
        kit.say(
            {
                k: (state or {}).get(k)
                for k in ("controllable", "reason", "built_depths", "gears", "plain_decode", "state")
            }
        )
        kit.record("speculation", server=plain.name, body=await plain.control.state())
    async with kit.part("arms follow"):
        await kit.alternate(
            [*Target.of(plain), *Target.of(table, *ARMS)], [1, 16], rounds=1, settle_s=0.4, window_s=1.0
        )
    async with kit.part("a bad plan is refused"):
        answer = await table.http.put(
            "/speculation",
            json={
                "schedule": [{"min_batch_size": 1, "depth": 9}],
                "lease_s": 5,
                "sequence": 10**6,
                "holder": table.control.holder,
            },
        )
        kit.record("refused", status=answer.status_code, body=answer.text[:500])
        kit.say("a depth that was not built:", answer.status_code, answer.text[:200])
    async with kit.part("a lease ends"):
        await kit.load(table, 8)
        await asyncio.sleep(kit.ramp_s(8))
        await kit.apply(table, parse_arm("off-cold"), lease_s=1.0)
        await asyncio.sleep(2.5)
        state = await table.control.state() or {}
        kit.record("lease", state=state.get("state"), lease=state.get("lease"))
        kit.say("after the lease:", state.get("state"), state.get("lease"))
        await kit.stop_load(table)
    async with kit.part("acceptance can be set"):
        await kit.acceptance(table, setups.LOW)
        await kit.alternate(Target.of(table, "depth-4"), [16], rounds=1, window_s=1.0, acceptance=setups.LOW)
    async with kit.part("preflight"):
        command = [*SPECGOV, "preflight", "--engine", table.url, "--json"]
        process = await asyncio.create_subprocess_exec(
            *command,
            env=kit.sidecar_environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        text = (await process.communicate())[0].decode(errors="replace")
        kit.record("preflight", status=process.returncode, text=text[-6000:])
        kit.say("preflight:", process.returncode, text[-700:])
    if os.environ.get("SMOKE_SIDECAR", "1") == "1":
        async with kit.part("the sidecar governs"):
            sidecar = await kit.sidecar(table, policy="threshold")
            for concurrency in (2, 24, 2):
                await kit.load(table, concurrency)
                await asyncio.sleep(3.0)
                await kit.window(Target.of(table)[0], concurrency, 1.5, sidecar=True)
            await kit.stop_load(table)
            await sidecar.stop()
