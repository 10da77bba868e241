"""A small SGLang in memory: the endpoints that the sidecar uses, with the protocol's rules, no scheduler.

Batches are decoded by calling `decode`; time is the caller's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

FIXTURES = Path(__file__).parent.parent / "fixtures"
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class FakeEngine:
    """One DP rank, one TP rank, depths 0 to 3."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.built_depths = [0, 1, 2, 3]
        self.gears = ["warm", "cold"]
        self.controllable, self.reason = True, None
        self.plugin = True
        self.protocol = 1
        self.running, self.queue = 0, 0
        self.puts: list[dict[str, Any]] = []
        self.deletes: list[str | None] = []
        self.fail: dict[str, Any] = {}
        """Path, or method and path -> a response, or an exception, given instead."""
        self.lose_put_answer = False
        self.ignore_plan = False
        self.lagging_rank = False
        self.admin_key: str | None = None
        self.info = json.loads((FIXTURES / "server_info_overlap.json").read_text())
        self.start()

    def start(self) -> None:
        """A fresh process: all counters at 0, nothing in force."""
        self.started_unix_s = 1_795_959_000.0 + self.clock()
        self.plan: dict[str, Any] | None = None
        self.expires_s, self.expired = 0.0, 0
        self.sequence, self.holder = 0, None
        self.decode_steps, self.depth, self.gear, self.batch_size = 0, 3, "on", 0
        self.cells: dict[tuple[int, int, str], dict[str, Any]] = {}
        self.hook_errors = 0

    def transport(self) -> httpx.ASGITransport:
        """For an httpx client."""
        routes = [
            Route("/v1/loads", self._loads),
            Route("/metrics", self._metrics),
            Route("/server_info", self._info),
        ]
        routes += [Route("/speculation", self._speculation, methods=["GET", "PUT", "DELETE"])]
        return httpx.ASGITransport(app=Starlette(routes=routes), raise_app_exceptions=True)

    def decode(self, batch_size: int, steps: int = 10, seconds: float = 0.02) -> None:
        """`steps` decode steps of `batch_size` requests, each with all its drafts accepted."""
        self.running = self.batch_size = batch_size
        self._expire()
        row = {"depth": 3}
        if self.plan and not self.ignore_plan:
            row = [r for r in self.plan["schedule"] if r["min_batch_size"] <= batch_size][-1]
        self.depth = row["depth"]
        self.gear = "on" if self.depth else row.get("gear", "warm")
        bucket = max(b for b in BUCKETS if b <= batch_size)
        cell = self.cells.setdefault((bucket, self.depth, self.gear), _empty(self.depth))
        cell["steps"] += steps
        cell["request_steps"] += steps * batch_size
        cell["tokens"] += steps * batch_size * (self.depth + 1)
        cell["accepted"][self.depth] += steps * batch_size
        cell["timed_steps"] += steps
        cell["timed_seconds"] += steps * seconds
        cell["timed_seconds_sq"] += steps * seconds**2
        cell["timed_request_steps"] += steps * batch_size
        cell["timed_context_tokens"] += steps * batch_size * 100
        self.decode_steps += steps

    def state(self) -> dict[str, Any]:
        """The body of `GET /speculation`."""
        self._expire()
        left = max(0.0, self.expires_s - self.clock()) if self.plan else 0.0
        acked = self.sequence - 1 if self.lagging_rank else self.sequence
        return {
            "protocol": self.protocol,
            "plugin_version": "0.1.0",
            "sglang_version": "0.5.23",
            "controllable": self.controllable,
            "reason": self.reason,
            "built_depths": self.built_depths,
            "gears": self.gears,
            "initial_depth": 3,
            "fallback": "native",
            "state": "governed" if self.plan else ("fallback" if self.sequence else "native"),
            "schedule": self.plan["schedule"] if self.plan else None,
            "probe": self.plan["probe"] if self.plan else None,
            "sequence": self.sequence,
            "holder": self.holder if self.plan else None,
            "lease": {"lease_s": 15.0, "left_s": left, "expired": self.expired},
            "plain_decode": {"in_force": False, "backend": "TorchNativeAttnBackend", "reason": "not adapted"},
            "chain_verify": {"in_force": False, "backend": "TorchNativeAttnBackend", "reason": "not known"},
            "ranks": [{"dp_rank": 0, "tp_rank": 0, "sequence": acked, "decode_steps": self.decode_steps}],
            "ranks_agree": None,
            "telemetry": [
                {
                    "dp_rank": 0,
                    "started_unix_s": self.started_unix_s,
                    "decode_steps": self.decode_steps,
                    "prefill_batches": 0,
                    "switches": 0,
                    "probe_steps": 0,
                    "probe_bursts": 0,
                    "hook_errors": self.hook_errors,
                    "depth": self.depth,
                    "gear": self.gear,
                    "batch_size": self.batch_size,
                    "cells": [
                        {"batch_bucket": bucket, "depth": depth, "gear": gear, **cell}
                        for (bucket, depth, gear), cell in self.cells.items()
                    ],
                }
            ],
        }

    def _expire(self) -> None:
        if self.plan and self.clock() >= self.expires_s:
            self.plan, self.expired = None, self.expired + 1

    def _failure(self, path: str) -> Response | None:
        failure = self.fail.get(path)
        if isinstance(failure, Exception):
            raise failure
        return failure

    async def _loads(self, request: Request) -> Response:
        load = {
            "timestamp": 1_795_959_000.0,
            "dp_rank": 0,
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.queue,
            "num_used_tokens": self.running * 100,
            "max_running_requests": 8,
            "token_usage": 0.1,
        }
        body = {"timestamp": "2026-11-29T13:30:00.100000+00:00", "version": "0.5.23", "loads": [load]}
        return self._failure("/v1/loads") or JSONResponse(body)

    async def _metrics(self, request: Request) -> Response:
        lines = [
            f'sglang:num_running_reqs{{tp_rank="0"}} {self.running}.0',
            f'sglang:num_queue_reqs{{tp_rank="0"}} {self.queue}.0',
            f'sglang:num_used_tokens{{tp_rank="0"}} {self.running * 100}.0',
            'sglang:token_usage{tp_rank="0"} 0.1',
        ]
        return self._failure("/metrics") or PlainTextResponse("\n".join(lines))

    async def _info(self, request: Request) -> Response:
        return self._failure("/server_info") or JSONResponse(self.info)

    async def _speculation(self, request: Request) -> Response:
        failure = self._failure(f"{request.method} /speculation") or self._failure("/speculation")
        if failure:
            return failure
        if not self.plugin:
            return JSONResponse({"detail": "Not Found"}, 404)
        if self.admin_key and request.headers.get("authorization") != f"Bearer {self.admin_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        if request.method == "PUT":
            return self._put(await request.json())
        if request.method == "DELETE":
            return self._delete(request.query_params.get("holder"))
        return JSONResponse(self.state())

    def _put(self, plan: dict[str, Any]) -> Response:
        self._expire()
        if not self.controllable:
            return _error(503, None, str(self.reason))
        if self.plan and self.holder != plan["holder"]:
            return _error(409, "holder", f"{self.holder} holds a live lease")
        if plan["sequence"] <= self.sequence:
            return _error(409, "sequence", f"sequence must be above {self.sequence}, got {plan['sequence']}")
        for i, row in enumerate(plan["schedule"]):
            if row["depth"] not in self.built_depths:
                return _error(422, f"schedule[{i}].depth", f"must be a built depth, got {row['depth']}")
        self.puts.append(plan)
        self.plan, self.sequence, self.holder = plan, plan["sequence"], plan["holder"]
        self.expires_s = self.clock() + plan["lease_s"]
        if self.lose_put_answer:
            raise httpx.ReadError("connection reset")
        return JSONResponse(self.state(), 202 if self.lagging_rank else 200)

    def _delete(self, holder: str | None) -> Response:
        self._expire()
        if self.plan and holder not in (None, self.holder):
            return _error(409, "holder", f"{self.holder} holds a live lease")
        self.deletes.append(holder)
        self.plan = None
        return JSONResponse(self.state())


def _error(status: int, field: str | None, message: str) -> Response:
    return JSONResponse({"error": {"field": field, "message": message}}, status)


def _empty(depth: int) -> dict[str, Any]:
    names = ("steps", "request_steps", "tokens", "timed_steps", "timed_request_steps", "timed_context_tokens")
    lists = {"accepted": [0] * (depth + 1), "accepted_after_cold": [0] * (depth + 1)}
    return {**dict.fromkeys(names, 0), "timed_seconds": 0.0, "timed_seconds_sq": 0.0, **lists}
