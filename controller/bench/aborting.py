"""The end of a load on an SGLang server: its requests are aborted by id, while they are still connected.

Closing their connections is not enough.  SGLang notices closed ones late, and an order to abort that
overtakes its request (just sent, not yet known to the server) is lost: the request then runs on without a
client, and the next window has one more than it counts.  So the order is given up to three times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence

import httpx

from controller.bench.client import Client
from controller.bench.records import RequestRecord

TRIES = 3
AGAIN_S = 0.3
"""A server ends an aborted request within a step or two."""
AT_ONCE = 64
"""Each takes a connection beside those of the requests, and the files of this process may be few."""
WITHIN_S = 5.0
"""All of it."""


async def abort_running(
    client: Client, newest: Callable[[], Sequence[RequestRecord]], tasks: Collection[asyncio.Task[None]]
) -> None:
    """Abort what runs, and wait a little for `tasks`, which follow those requests, to see its end.

    One by one, since others may have requests on the server.  Where that fails they are left to the caller,
    who closes their connections; so are those without an id, of servers that know no abort.
    """
    with contextlib.suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            for _ in range(TRIES):
                running = [r for r in newest() if r.ended_s is None and r.rid is not None]
                if not running:
                    return
                for record in running:
                    record.aborted = True
                rids = [r.rid for r in running if r.rid is not None]
                for first in range(0, len(rids), AT_ONCE):
                    await asyncio.gather(*(client.abort(rid) for rid in rids[first : first + AT_ONCE]))
                await asyncio.wait(tasks, timeout=AGAIN_S)
