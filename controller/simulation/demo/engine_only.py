"""`specgov demo --engine-only`: the simulated server under its load, for a sidecar that you start.

With `--idle` under none, for a load that you bring.
"""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
from rich.console import Console

from controller.simulation.demo.load import Phase, draw_arrivals, plan_phases
from controller.simulation.demo.run import DemoError, DemoSettings, drive
from controller.simulation.live import LiveEngine
from controller.simulation.server import make_server
from controller.simulation.serving import serve_engine

LOAD_AGAIN_S = 1.0


async def serve_loaded(settings: DemoSettings, seconds: float, console: Console) -> None:
    """Serve the engine and repeat a load of `seconds` until interrupted."""
    phases = plan_phases(settings.profile, settings.acceptance, settings.engine, seconds)
    server = make_server(settings.profile, settings.acceptance, settings.engine, seed=settings.seed)
    async with serve_engine(server, settings.host, settings.engine_port) as url:
        print_line(console, f"engine    {url}")
        print_line(console, f"govern it specgov run --engine {url}")
        print_line(console, "The load rises and falls on and on; Ctrl-C ends it.")
        await load_for_ever(console, server.live, url, phases, settings.seed)


async def serve_idle(settings: DemoSettings, console: Console) -> None:
    """Serve the engine, and send it nothing, until interrupted."""
    server = make_server(settings.profile, settings.acceptance, settings.engine, seed=settings.seed)
    async with serve_engine(server, settings.host, settings.engine_port) as url:
        print_line(console, f"engine     {url}")
        print_line(console, f"measure it specgov bench --engine {url}")
        print_line(console, "Nothing is sent to it; Ctrl-C ends it.")
        await asyncio.Event().wait()


async def load_for_ever(
    console: Console, live: LiveEngine, url: str, phases: tuple[Phase, ...], seed: int
) -> None:
    """The phases again and again, each time with other arrivals."""
    for turn in itertools.count(seed):
        arrivals = draw_arrivals(phases, np.random.default_rng(turn))
        try:
            await drive(live, url, arrivals, phases[-1].end_s, lambda _: None)
        except DemoError as error:  # whoever tries things out beside it keeps his sidecar
            print_line(console, f"{error}; the load starts anew")
            await asyncio.sleep(LOAD_AGAIN_S)


def print_line(console: Console, line: str) -> None:
    """One line as it is, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
