"""The other kinds of load: a scenario of phases, an arrival trace; each arm lives through the whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controller.bench.campaign import Campaign, ordered
from controller.bench.engine import EngineRefusedError
from controller.bench.failed import errors_of
from controller.bench.load import OpenLoop
from controller.bench.offered import offered
from controller.bench.prompts import Prompt, PromptSource
from controller.bench.scenario import Phase
from controller.bench.target import Target

Arrivals = Sequence[tuple[float, Prompt]]


async def run_scenario(
    campaign: Campaign, phases: Sequence[Phase], source_of: Callable[[str | None], PromptSource], rounds: int
) -> None:
    """Every target through all phases, `rounds` times in alternated order; one window a phase."""
    await campaign.claim()
    async with campaign.watching():
        for number in range(rounds):
            for group in ordered(campaign.targets, number):
                for target in group:
                    try:
                        await _phases(campaign, target, phases, source_of, number)
                    except EngineRefusedError as problem:
                        loop = target.server.loop
                        records = loop.records if loop is not None else []
                        campaign.fail(target.label, None, problem, errors_of(records))
                    finally:
                        await campaign.end(target.server)


async def _phases(
    campaign: Campaign,
    target: Target,
    phases: Sequence[Phase],
    source_of: Callable[[str | None], PromptSource],
    number: int,
) -> None:
    loop = target.server.begin(source_of(phases[0].prompts), campaign.rng, campaign.stream_every)
    await loop.scale(phases[0].concurrency)
    await campaign.until_flowing(target.server, loop)
    async with campaign.in_force(target, sum(phase.seconds for phase in phases)):
        await target.confirm()
        for number_of, phase in enumerate(phases, start=1):
            if phase.state:
                await target.server.set_state(phase.state)
            loop.use(source_of(phase.prompts))
            await loop.scale(phase.concurrency)
            share = loop.stream_share
            notes: dict[str, Any] = {"concurrency": phase.concurrency, "phase": phase.name, "round": number}
            window = await campaign.measure(
                target, loop.records, partial(asyncio.sleep, phase.seconds), stream_share=share, **notes
            )
            if window.away and number_of < len(phases):
                raise EngineRefusedError(
                    f"the server was away in phase {phase.name!r} ({window.away}); it came back in another "
                    "state than the phases before had brought it to: later ones of this round are left out"
                )


async def run_trace(campaign: Campaign, arrivals: Arrivals, rounds: int) -> None:
    """Every target through the trace, `rounds` times in alternated order; one window for the whole."""
    if not arrivals:
        raise ValueError("arrivals must hold at least one request, got none")
    await campaign.claim()
    async with campaign.watching():
        for number in range(rounds):
            for group in ordered(campaign.targets, number):
                for target in group:
                    await _trace(campaign, target, arrivals, number)


async def _trace(campaign: Campaign, target: Target, arrivals: Arrivals, number: int) -> None:
    load = OpenLoop(target.server.client)
    try:
        async with campaign.in_force(target, arrivals[-1][0]):
            work = partial(_confirmed, load, target, arrivals)
            asked = partial(offered, load.records)
            await campaign.measure(target, load.records, work, offered=asked, phase="trace", round=number)
    except EngineRefusedError as problem:
        campaign.fail(target.label, None, problem, errors_of(load.records))
    finally:
        await campaign.end(target.server, load.records)


async def _confirmed(load: OpenLoop, target: Target, arrivals: Arrivals) -> None:
    """Send the trace; raises `EngineRefusedError` when the arm is not in use once requests are running."""
    running = asyncio.create_task(load.run(arrivals), name="open loop")
    try:
        await asyncio.sleep(arrivals[0][0])
        await target.confirm()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
