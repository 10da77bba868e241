"""A steerable server in virtual time, behind an httpx transport: streams really stream."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict

import httpx


class Stream(httpx.AsyncByteStream):
    """Bytes as an async generator makes them."""

    def __init__(self, chunks):
        self._chunks = chunks

    async def __aiter__(self):
        async for chunk in self._chunks:
            yield chunk


class FakeServer(httpx.AsyncBaseTransport):
    """Gives `tokens_per_step` tokens every `step_s`, by the depth in force; counts as the hook does."""

    def __init__(self, step_s=None, tokens_per_step=None, *, hook=True):
        self.step_s = step_s or {0: 0.010, 2: 0.020}
        self.tokens_per_step = tokens_per_step or {0: 1, 2: 3}
        self.hook = hook
        self.depth, self.gear = 0, "cold"
        self.own_depth, self.own_gear = 0, "cold"
        """Where it goes when its lease is given back."""
        self.slow_release = 0
        """So many questions after that still find its rank where it was."""
        self.sequence = self.order = 0
        self.holder = None
        self.calls = []
        self.aborted = []
        self.heeds_aborts_after = 0
        """So many orders to abort come before their request is known, and are lost."""
        self._ended = set()
        self._releasing = False
        self.rids = []
        self.running = self.generated = 0
        self.cells = defaultdict(
            lambda: dict.fromkeys(("steps", "request_steps", "tokens", "timed_steps", "timed_seconds"), 0)
        )

    async def handle_async_request(self, request):
        body = json.loads(await request.aread() or b"{}")
        path = request.url.path
        if path == "/abort_request":
            self.aborted.append(body)
            if len(self.aborted) > self.heeds_aborts_after:
                self._ended.add(body["rid"])
        elif path != "/generate":
            self.calls.append((request.method, path))
        if path == "/speculation":
            return self._speculation(request.method, body)
        if path == "/generate":
            self.generated += 1
            self.rids.append(body.get("rid"))
            return await self._generate(body)
        return httpx.Response(200, json=[True])

    def _speculation(self, method, body):
        if not self.hook:
            return httpx.Response(404)
        if method == "PUT":
            row = body["schedule"][0]
            self.depth, self.gear, self.sequence = row["depth"], row.get("gear", "on"), body["sequence"]
            self.holder, self.order, self._releasing = body["holder"], self.order + 1, False
        if method == "DELETE":
            self._releasing, self.holder = self.holder is not None, None
        if method == "GET" and self._releasing:
            self.slow_release -= 1
            if self.slow_release < 0:
                self.depth, self.gear, self.order = self.own_depth, self.own_gear, self.order + 1
                self._releasing = False
        cells = [
            {
                "batch_bucket": 1,
                "depth": d,
                "gear": g,
                "timed_request_steps": c["request_steps"],
                "timed_context_tokens": 300 * c["request_steps"],
                **c,
            }
            for (d, g), c in self.cells.items()
        ]
        steps = sum(c["steps"] for c in cells)
        telemetry = [
            {
                "depth": self.depth,
                "gear": self.gear,
                "batch_size": self.running,
                "decode_steps": steps,
                "cells": cells,
            }
        ]
        state = {
            "controllable": True,
            "built_depths": [0, 2],
            "gears": ["warm", "cold"],
            "sequence": self.sequence,
            "holder": self.holder,
            "ranks": [{"dp_rank": 0, "tp_rank": 0, "order": self.order}],
            "telemetry": telemetry,
        }
        return httpx.Response(200, json=state)

    async def _generate(self, body):
        wanted = body["sampling_params"]["max_new_tokens"]
        if body["stream"]:
            return httpx.Response(200, stream=Stream(self._stream(wanted, body.get("rid"))))
        async for last in self._events(wanted, body.get("rid")):
            answer = last
        return httpx.Response(200, content=answer.removeprefix(b"data: ").strip())

    async def _stream(self, wanted, rid):
        async for event in self._events(wanted, rid):
            yield event
        yield b"data: [DONE]\n\n"

    async def _events(self, wanted, rid=None):
        self.running += 1
        try:
            tokens = 0
            while tokens < wanted and rid not in self._ended:
                depth, gear = self.depth, self.gear
                await asyncio.sleep(self.step_s[depth])
                new = min(self.tokens_per_step[depth], wanted - tokens)
                tokens += new
                cell = self.cells[depth, gear]
                for key, value in (
                    ("steps", 1),
                    ("request_steps", 1),
                    ("tokens", new),
                    ("timed_steps", 1),
                    ("timed_seconds", self.step_s[depth]),
                ):
                    cell[key] += value
                yield (
                    b"data: "
                    + json.dumps({"text": "x", "meta_info": {"completion_tokens": tokens}}).encode()
                    + b"\n\n"
                )
        finally:
            self.running -= 1


def http(transport):
    """A client over a transport."""
    return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=600)
