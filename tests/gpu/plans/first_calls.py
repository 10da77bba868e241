"""Does every kernel that a server needs run here, and agree with PyTorch?  Half a minute, no server.

The first thing to run with a bundle that was not run on this kind of machine: kernels/first_calls.py.
"""

import asyncio
import sys
from pathlib import Path

from kit import setups
from kit.session import Kit

SCRIPT = Path(__file__).resolve().parent.parent / "kernels" / "first_calls.py"


async def run(kit: Kit) -> None:
    setup = setups.plain()
    if kit.rehearsed:
        await kit.start(setup)
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-B", str(SCRIPT), str(kit.out / "first_calls.jsonl"),
        env=kit.engine.environment(setup, kit.out),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    kit.record("first_calls", failed=process.returncode, text=said.decode(errors="replace")[-12000:])
    kit.say(said.decode(errors="replace")[-6000:])
