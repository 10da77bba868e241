"""A server under test and what is measured on it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from controller.bench.arms import AS_IS, BenchArm
from controller.bench.client import Client, Dialect
from controller.bench.engine import EngineControl, EngineRefusedError
from controller.bench.load import ClosedLoop
from controller.bench.prompts import PromptSource

CONFIRM_WITHIN_S = 10.0
_ALIVE_WITHIN_S = 5.0


class ServerGoneError(Exception):
    """A server that is measured as it is no longer answers; ends the benchmark, not one arm."""


_OTHER_API = {
    Dialect.SGLANG: "for a server that is not SGLang give --dialect openai, or openai-chat",
    Dialect.OPENAI: "for a server with /v1/chat/completions alone give --dialect openai-chat",
    Dialect.CHAT: "for a server with /v1/completions alone give --dialect openai",
}


class RequestsFailError(Exception):
    """Every request of the warm-up failed: so would those of every window; ends the benchmark."""

    def __init__(self, client: Client, failed: int, first: str) -> None:
        url = str(client.http.base_url).rstrip("/") + client.path
        remedy = "mend the server, or what is asked of it"
        if "HTTP 404" in first:
            remedy = _OTHER_API[client.dialect]
        super().__init__(
            f"every request of the warm-up failed, {failed} in all, at {url} (the first: {first}): {remedy}"
        )


@dataclass(slots=True)
class ServerUnderTest:
    """One server: where requests go, and how it is steered (`None`: it cannot be)."""

    name: str
    client: Client
    control: EngineControl | None = None
    loop: ClosedLoop | None = field(default=None, init=False)

    def begin(self, source: PromptSource, rng: random.Random, stream_every: int) -> ClosedLoop:
        """A fresh closed loop without clients yet."""
        self.loop = ClosedLoop(self.client, source, rng, stream_every=stream_every)
        return self.loop

    async def set_state(self, values: Mapping[str, float]) -> None:
        """POST /set_internal_state; raises `EngineRefusedError` unless every value was taken."""
        answer = await self.client.http.post("/set_internal_state", json={"server_args": dict(values)})
        if answer.status_code != httpx.codes.OK or "true" not in answer.text.lower():
            raise EngineRefusedError(f"/set_internal_state refused {dict(values)}: {answer.text[:200]}")

    async def state(self) -> dict[str, Any] | None:
        """The answer of `GET /speculation`; `None` where there is none, of a server that answers at all.

        Raises `httpx.HTTPError` or `ServerGoneError` for one that does not: its window is no measurement.
        """
        if self.control is not None:
            return await self.control.state()
        try:
            await self.client.http.get("/v1/models", timeout=_ALIVE_WITHIN_S)  # whatever it says
        except (httpx.NetworkError, httpx.ProtocolError) as problem:
            url = str(self.client.http.base_url).rstrip("/")
            why = f"{type(problem).__name__}: {problem}"
            raise ServerGoneError(f"the server at {url} no longer answers ({why})") from None
        except httpx.TimeoutException:
            pass  # a busy server is no dead one
        return None

    async def end(self) -> None:
        """End the load, if there is one."""
        if self.loop is not None:
            await self.loop.end()


@dataclass(frozen=True, slots=True)
class Target:
    """One column of the comparison: a server and an arm."""

    server: ServerUnderTest
    arm: BenchArm
    asked: bool = False
    """Whether `--arms` names the arm."""

    @property
    def label(self) -> str:
        """The arm; for an `as-is` that nobody named the server's name."""
        return self.server.name if self.arm.label == AS_IS and not self.asked else self.arm.label

    async def apply(self, lease_s: float) -> None:
        """Put the arm in force; policies, and `as-is` where others are held, are the caller's business.

        Raises `EngineRefusedError`.
        """
        control = self.server.control
        if self.arm.label == AS_IS or self.arm.policy is not None:
            return
        if control is None:
            raise EngineRefusedError(
                f"{self.server.name} has no /speculation, so it cannot run {self.arm.label}"
            )
        if self.arm.fixed is None:
            await control.until_released(limit_s=CONFIRM_WITHIN_S)
            return
        await control.apply(self.arm.fixed, lease_s=lease_s)

    async def confirm(self) -> None:
        """Wait until telemetry shows a fixed arm in use (needs load); raises `EngineRefusedError`."""
        if self.arm.fixed is not None and self.server.control is not None:
            await self.server.control.until_in_use(self.arm.fixed, limit_s=CONFIRM_WITHIN_S)
