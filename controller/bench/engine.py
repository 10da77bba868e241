"""The control endpoint of one server (`/speculation`, docs/protocol.md), as the benchmark uses it.

Every plan carries a lease, so that a benchmark that dies leaves the server to its own fallback.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from policies.types import Arm

_POLL_S = 0.02
BENCH = "specgov-bench"


def holder_of(run_id: str, host: str, pid: int) -> str:
    """The lease holder of one run, which must not pass for another and can be traced to its process.

    At most 128 printable characters, as docs/protocol.md asks: a long `host` is cut, and what is not a
    letter, a digit, a dot or a dash becomes a dash.  `run_id`: 1 to 32 letters or digits.
    """
    named = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:64]
    return f"{BENCH}/{named}-{pid}-{run_id}"


class EngineRefusedError(Exception):
    """The server would not do what an arm asks; the message says why and what to do."""


class LeaseHeldError(Exception):
    """Another holder's lease is live, so that no arm can be held; the message names it and the remedy.

    Not an `EngineRefusedError`: it ends the benchmark, not one arm.
    """

    def __init__(self, holder: str) -> None:
        kind = "benchmark" if holder.startswith(BENCH) else "sidecar"
        super().__init__(
            f"{holder} holds the lease of this server: stop that {kind} (its lease then ends by itself),"
            " or measure the server as it is with --arms as-is"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What the hook has counted so far, over all DP ranks."""

    decode_steps: int
    tokens: int
    request_steps: int


@dataclass(slots=True)
class EngineControl:
    """Puts arms in force on one server, over an `httpx.AsyncClient` that the caller owns."""

    http: httpx.AsyncClient
    clock: Callable[[], float]
    holder: str
    """See `holder_of`."""

    async def state(self) -> dict[str, Any] | None:
        """The answer of `GET /speculation`; `None` where the server has no such endpoint."""
        answer = await self.http.get("/speculation")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code != httpx.codes.OK:
            raise EngineRefusedError(f"GET /speculation: HTTP {answer.status_code}: {answer.text[:200]}")
        state: dict[str, Any] = answer.json()
        return state

    async def progress(self) -> Progress | None:
        """Counters of the hook; `None` without it."""
        state = await self.state()
        return None if state is None else progress_of(state)

    async def apply(self, arm: Arm, *, lease_s: float) -> dict[str, Any]:
        """Put a one-row schedule in force; see `put`."""
        row: dict[str, Any] = {"min_batch_size": 1, "depth": arm.depth}
        if not arm.depth:
            row["gear"] = arm.gear.value
        return await self.put([row], lease_s=lease_s)

    async def put(
        self, rows: list[dict[str, Any]], *, lease_s: float, probe: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Put a schedule in force; raises `EngineRefusedError` when it is refused, or `LeaseHeldError`.

        It may be accepted without every rank having acknowledged it: `until_in_use` tells.
        """
        state = await self.state()
        if state is None:
            raise EngineRefusedError(
                "no /speculation here: install the specgov plugin in the engine, or use as-is"
            )
        plan = {
            "schedule": rows,
            "probe": probe,
            "lease_s": lease_s,
            "sequence": (state.get("sequence") or 0) + 1,
            "holder": self.holder,
        }
        answer = await self.http.put("/speculation", json=plan)
        if answer.status_code not in (httpx.codes.OK, httpx.codes.ACCEPTED):
            await self._end_if_held(answer)
            raise EngineRefusedError(f"PUT /speculation: HTTP {answer.status_code}: {answer.text[:300]}")
        applied: dict[str, Any] = answer.json()
        return applied

    async def release(self) -> None:
        """Hand the server back to its fallback; `until_released` tells when its ranks have followed."""
        answer = await self.http.delete("/speculation", params={"holder": self.holder})
        if answer.status_code not in (httpx.codes.OK, httpx.codes.ACCEPTED):
            await self._end_if_held(answer)
            raise EngineRefusedError(f"DELETE /speculation: HTTP {answer.status_code}: {answer.text[:200]}")

    async def until_released(self, *, limit_s: float) -> None:
        """Hand the server back, and wait until its state shows no lease and every rank at another order.

        Raises `EngineRefusedError` when that is not seen within `limit_s`, or `LeaseHeldError`.
        """
        start_s = self.clock()
        before = await self.state() or {}
        await self.release()
        while True:
            state = await self.state() or {}
            self.check_free(state)
            if _is_released(before, state):
                return
            if self.clock() - start_s > limit_s:
                raise EngineRefusedError(
                    f"handed back, but not seen to be after {limit_s:g} s: the lease is of "
                    f"{state.get('holder') or 'nobody'}, ranks are at the orders {_orders(state)}"
                )
            await asyncio.sleep(_POLL_S)

    def check_free(self, state: Mapping[str, Any]) -> None:
        """Raise `LeaseHeldError` when `state` shows the live lease of another holder."""
        holder = state.get("holder")
        if holder is not None and holder != self.holder:
            raise LeaseHeldError(holder)

    async def _end_if_held(self, answer: httpx.Response) -> None:
        """A 409 is another's lease, or a sequence that somebody was quicker with: the state tells."""
        if answer.status_code == httpx.codes.CONFLICT:
            self.check_free(await self.state() or {})

    async def until_in_use(self, arm: Arm, *, limit_s: float) -> float:
        """Wait until telemetry shows `arm` on every DP rank; returns the seconds it took.

        An acknowledged plan is not yet an applied one.  Needs load, since only decode steps are counted.
        Raises `EngineRefusedError` when it is not seen within `limit_s`.
        """
        start_s = self.clock()
        while True:
            state = await self.state()
            seen = arms_in_use(state or {})
            if seen and set(seen) == {(arm.depth, arm.gear.value)}:
                return self.clock() - start_s
            if self.clock() - start_s > limit_s:
                raise EngineRefusedError(
                    f"arm {arm} acknowledged but not in use after {limit_s:g} s, telemetry shows {seen}"
                )
            await asyncio.sleep(_POLL_S)


def _is_released(before: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether no plan is in force any more that was `before`; a rank that cannot be seen is left out."""
    if state.get("holder") is not None:
        return False
    pairs = zip(_orders(before), _orders(state), strict=False)
    return before.get("holder") is None or all(old != new for old, new in pairs if new is not None)


def _orders(state: Mapping[str, Any]) -> list[int | None]:
    """The latest command that each rank has applied."""
    return [rank.get("order") for rank in state.get("ranks") or []]


def arms_in_use(state: Mapping[str, Any]) -> list[tuple[int | None, str | None]]:
    """(depth, gear) of the latest decode step of each DP rank."""
    return [(rank.get("depth"), rank.get("gear")) for rank in state.get("telemetry") or []]


def progress_of(state: Mapping[str, Any]) -> Progress:
    """Sum the hook's counters over ranks and cells."""
    ranks = state.get("telemetry") or []
    cells = [cell for rank in ranks for cell in rank["cells"]]
    return Progress(
        decode_steps=sum(rank["decode_steps"] for rank in ranks),
        tokens=sum(cell["tokens"] for cell in cells),
        request_steps=sum(cell["request_steps"] for cell in cells),
    )
