"""Which extras a server that is compatible with OpenAI's refuses: tried before there is load.

vLLM and SGLang take `continuous_usage_stats` and `ignore_eos`; servers that check every field answer 400 or
422 to what they do not know.  Such a server can be measured all the same, with less known of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from controller.bench.client import CONTINUOUS_USAGE, IGNORE_EOS, STREAM_OPTIONS, Client
from controller.bench.prompts import Prompt

WITHIN_S = 30.0
"""For each try; one that takes longer was not refused."""
_REFUSALS = (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY)
_TRIES = (
    (),
    (CONTINUOUS_USAGE,),
    (IGNORE_EOS,),
    (CONTINUOUS_USAGE, IGNORE_EOS),
    (STREAM_OPTIONS,),
    (STREAM_OPTIONS, IGNORE_EOS),
)
"""What is left out, in the order of what that costs."""


async def refused(client: Client, prompt: Prompt, *, streamed: bool) -> frozenset[str]:
    """The extras without which the server takes a request, the fewest; none where it refuses all alike.

    One request of one token where nothing is refused, else up to six.  Raises `httpx.ConnectError`.
    """
    short = replace(prompt, output_tokens=1)
    for without in _TRIES:
        if not await _is_refused(replace(client, without=frozenset(without)), short, streamed=streamed):
            return frozenset(without)
    return frozenset()


async def _is_refused(client: Client, prompt: Prompt, *, streamed: bool) -> bool:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await client.status(prompt, streamed=streamed) in _REFUSALS
    except httpx.ConnectError:
        raise
    except (httpx.HTTPError, TimeoutError):
        return False
