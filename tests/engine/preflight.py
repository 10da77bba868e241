"""What `specgov preflight` says of a running server."""

import asyncio
import json
import sys

from tests.engine.server import ROOT

COMMAND = [sys.executable, "-c", "from controller.cli import main; main()", "preflight", "--json"]


async def preflight(server, *, passes):
    """{check: what was found; what mends it} of what does not pass; the exit code must fit."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--engine", server.url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == (0 if passes else 3), output
    return {
        c["name"]: f"{c['found']}; {c['mend']}"
        for c in json.loads(output)["checks"]
        if c["verdict"] != "pass"
    }
