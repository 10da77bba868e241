"""`specgov demo`: starts an embedded engine and the sidecar, loads them, and says what it brought."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.live import Live

from controller.errors import SettingsError
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import InvalidProfileError, load_profile
from controller.simulation.demo.load import Phase, draw_arrivals, plan_phases
from controller.simulation.demo.outcome import Trajectory, compare, held_arm, off_arm
from controller.simulation.demo.run import DemoError, DemoSettings, Stage, drive, set_up
from controller.simulation.demo.view import DemoView, outcome_table
from controller.simulation.engine import EngineConfig

POLICY = "threshold"
POLICY_PARAMS: dict[str, dict[str, Any]] = {"threshold": {"gear": "cold"}}
_USAGE, _FAILED, _INTERRUPTED = 2, 1, 130


def demo(  # noqa: PLR0917 options of a command
    seconds: Annotated[float, typer.Option(min=8, max=110, help="Length of the load.")] = 60.0,
    profile: Annotated[
        str, typer.Option(help="Cost profile: a file, or a shipped one.")
    ] = "h200_llama8b_triton",
    acceptance: Annotated[str, typer.Option(help="Accepted drafts per position, or over time.")] = "0.745",
    policy: Annotated[str | None, typer.Option(help="Who decides; default: as specgov run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="No screen, JSON at the end.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Go on until Ctrl-C, API and metrics up.")] = False,
    engine_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    api_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, noise and acceptance.")] = 1,
) -> None:
    """See a sidecar turn speculation down and up on a simulated server, and what that brings."""
    console = Console(stderr=as_json)
    try:
        settings = DemoSettings(
            profile=load_profile(profile),
            acceptance=parse_acceptance(acceptance),
            engine=EngineConfig(),
            policy=policy or POLICY,
            policies=POLICY_PARAMS,
            seed=seed,
            engine_port=engine_port,
            api_port=api_port,
        )
        report = asyncio.run(_demo(settings, seconds, console, show=not as_json, keep=keep))
    except (InvalidProfileError, SettingsError, OSError, ValueError) as error:
        console.print(f"specgov demo: {error}", style="red", markup=False)
        raise typer.Exit(_USAGE) from None
    except DemoError as error:
        console.print(f"specgov demo: {error}", style="red", markup=False)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if keep else _INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(report, indent=1))


async def _demo(
    settings: DemoSettings, seconds: float, console: Console, *, show: bool, keep: bool
) -> dict[str, Any]:
    phases = plan_phases(settings.profile, settings.acceptance, settings.engine, seconds)
    arrivals = draw_arrivals(phases, np.random.default_rng(settings.seed))
    title = f"policy {settings.policy}; simulated from profile {settings.profile.name}"
    view = DemoView(phases, title)
    async with set_up(settings) as stage:
        with _screen(console, view, stage, show=show) as watch:
            governed = await drive(stage, arrivals, seconds, watch)
        report = await asyncio.to_thread(_report, settings, phases, stage, governed)
        report["decisions"] = view.log
        if show:
            console.print(outcome_table(report["phases"], _caption(settings, report)))
        if keep:
            await _keep(console, stage, phases, settings.seed)
    return report


@contextlib.contextmanager
def _screen(
    console: Console, view: DemoView, stage: Stage, *, show: bool
) -> Iterator[Callable[[float], None]]:
    """A function that takes note of the sidecar's turns and, with `show`, keeps the screen up to date."""
    if not show:
        yield lambda at_s: view.note(at_s, stage.last)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as screen:

        def watch(at_s: float) -> None:
            view.note(at_s, stage.last)
            screen.update(view.draw(at_s, stage))

        yield watch


def _report(
    settings: DemoSettings, phases: tuple[Phase, ...], stage: Stage, governed: Trajectory
) -> dict[str, Any]:
    """Replay the governed run's own arrivals with speculation always on and always off, and compare."""
    arms = stage.live.engine.arms
    on = max(arms)
    held = {"always_on": on, "always_off": off_arm(arms)}
    runs = {
        name: held_arm(
            settings.profile,
            settings.acceptance,
            settings.engine,
            arm,
            governed.requests,
            seed=settings.seed,
            end_s=phases[-1].end_s,
        )
        for name, arm in held.items()
    }
    policy = stage.server.control.policy
    return {
        "simulated": True,
        "profile": {"name": settings.profile.name, **settings.profile.about},
        "policy": settings.policy,
        "seconds": phases[-1].end_s,
        "always_on_depth": on[0],
        "requests": len(governed.requests),
        "failed_requests": sum(request.finish_s is None for request in governed.requests),
        "switches": policy.switches,
        "probe_steps": policy.probe_steps,
        "decode_steps": policy.decode_steps,
        "phases": compare(phases, runs | {"governed": governed}),
    }


def _caption(settings: DemoSettings, report: dict[str, Any]) -> str:
    about = settings.profile.about
    measured = ", ".join(
        str(about[key]) for key in ("gpu", "attention_backend", "model") if about.get(key) is not None
    )
    return (
        f"Simulated, from step times in profile {settings.profile.name} ({measured}). Always on: depth"
        f" {report['always_on_depth']}. {report['requests']} requests; the other two columns replay exactly"
        f" the arrivals of the governed run. {report['switches']} changes of depth."
    )


async def _keep(console: Console, stage: Stage, phases: tuple[Phase, ...], seed: int) -> None:
    """Repeat the load until interrupted, so that there is something to look at."""
    for name, url in (
        ("status", f"{stage.api_url}/v1/status"),
        ("decisions", f"{stage.api_url}/v1/decisions"),
        ("API", f"{stage.api_url}/docs"),
        ("sidecar metrics", f"{stage.api_url}/metrics"),
        ("simulated engine", stage.engine_url),
        ("engine metrics", f"{stage.engine_url}/metrics"),
        ("engine control", f"{stage.engine_url}/speculation"),
    ):
        console.print(f"{name:17} {url}", markup=False, highlight=False, soft_wrap=True)
    console.print("The load goes on and on; Ctrl-C ends it.")
    for turn in itertools.count(seed + 1):
        arrivals = draw_arrivals(phases, np.random.default_rng(turn))
        await drive(stage, arrivals, phases[-1].end_s, lambda _: None)
