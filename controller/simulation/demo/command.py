"""What `specgov demo` does: starts engine and sidecar, loads them, and says what it brought."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live

from controller.cli._common import show_json
from controller.errors import BadRequestError
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile
from controller.simulation.demo.engine_only import load_for_ever, print_line, serve_idle, serve_loaded
from controller.simulation.demo.load import Phase, draw_arrivals, plan_phases
from controller.simulation.demo.outcome import (
    Trajectory,
    compare,
    held_arm,
    off_arm,
    summary,
    whole_run,
)
from controller.simulation.demo.rehearsal import SECONDS, learns, rehearse
from controller.simulation.demo.run import DemoSettings, Stage, check_ports, drive, set_up
from controller.simulation.demo.view import DemoView, PlainProgress, phase_table, whole_table
from controller.simulation.engine import EngineConfig
from policies import registry

DEFAULT_POLICY = "goodput"
POLICY_PARAMS: dict[str, dict[str, Any]] = {"threshold": {"gear": "cold"}}


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """The options of the command."""

    seconds: float
    profile: str
    acceptance: str
    policy: str
    rehearse: bool
    as_json: bool
    keep: bool
    engine_only: bool
    idle: bool
    """Of `engine_only`: without its load."""
    engine_port: int
    api_port: int
    seed: int


def run(request: DemoRequest) -> None:
    """Run the demo; raises `BadRequestError`, `SettingsError`, `DemoError`."""
    if request.engine_only and (request.as_json or request.api_port):
        raise BadRequestError("--engine-only must be without --json and --api-port: no sidecar is started")
    if request.idle and not request.engine_only:
        raise BadRequestError(
            "--idle must be given with --engine-only: a demo without its load shows nothing"
        )
    console = Console(stderr=request.as_json)
    show = not request.as_json
    try:
        settings = _settings(request)
        check_ports(settings)
    except (OSError, ValueError) as error:
        raise BadRequestError(str(error)) from None
    simulated = (
        f"Simulated: an embedded engine with the step times of profile {settings.profile.name}, no GPU;"
    )
    if request.engine_only:
        print_line(console, f"{simulated} the control endpoint is the real one.")
        with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
            asyncio.run(_engine_only(settings, request, console))
        return
    print_line(console, f"{simulated} the sidecar, its policy and the control endpoint are the real ones.")
    try:
        if request.rehearse and learns(settings.policy):
            with _waiting(
                console, f"{settings.policy} learns from {SECONDS:.0f} s of such a load, in virtual time"
            ):
                settings = dataclasses.replace(settings, knowledge=rehearse(settings))
        report = asyncio.run(_demo(settings, request.seconds, console, show=show, keep=request.keep))
    except KeyboardInterrupt:
        if request.keep:  # how it is meant to end
            return
        raise
    if request.as_json:
        show_json(report)


async def _engine_only(settings: DemoSettings, request: DemoRequest, console: Console) -> None:
    if request.idle:
        await serve_idle(settings, console)
    else:
        await serve_loaded(settings, request.seconds, console)


def _settings(request: DemoRequest) -> DemoSettings:
    registry.find(request.policy)
    return DemoSettings(
        profile=load_profile(request.profile),
        acceptance=parse_acceptance(request.acceptance),
        engine=EngineConfig(),
        policy=request.policy,
        policies=POLICY_PARAMS,
        seed=request.seed,
        engine_port=request.engine_port,
        api_port=request.api_port,
    )


async def _demo(
    settings: DemoSettings, seconds: float, console: Console, *, show: bool, keep: bool
) -> dict[str, Any]:
    phases = plan_phases(settings.profile, settings.acceptance, settings.engine, seconds)
    arrivals = draw_arrivals(phases, np.random.default_rng(settings.seed))
    title = f"policy {settings.policy}; simulated from profile {settings.profile.name}"
    view = DemoView(phases, title)
    async with set_up(settings) as stage:
        if keep:
            _show_urls(console, stage)
        with _screen(console, view, phases, stage, show=show) as watch:
            governed = await drive(stage.live, stage.engine_url, arrivals, seconds, watch)
        report = await asyncio.to_thread(_report, settings, phases, stage, governed)
        report |= {"override_s": round(view.override_s, 1), "decisions": view.log}
        if show:
            _show(console, settings, report)
        if keep:
            await _keep(console, stage, phases, settings.seed)
    return report


@contextlib.contextmanager
def _screen(
    console: Console, view: DemoView, phases: tuple[Phase, ...], stage: Stage, *, show: bool
) -> Iterator[Callable[[float], None]]:
    """A function that takes note of the sidecar's turns and, with `show`, keeps the screen up to date."""
    if not show:
        yield lambda at_s: view.note(at_s, stage.last)
        return
    if not console.is_terminal:
        progress = PlainProgress(phases, lambda line: print_line(console, line))

        def tell(at_s: float) -> None:
            view.note(at_s, stage.last)
            progress.update(at_s, view.log, stage.live.engine.last_arm)

        yield tell
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
    compared = runs | {"governed": governed}
    whole = whole_run(compared)
    return {
        "simulated": True,
        "profile": {"name": settings.profile.name, **settings.profile.about},
        "policy": settings.policy,
        "rehearsed_seconds": 0.0 if settings.knowledge is None else SECONDS,
        "seconds": phases[-1].end_s,
        "always_on_depth": on[0],
        "requests": len(governed.requests),
        "failed_requests": sum(request.finish_s is None for request in governed.requests),
        "switches": policy.switches,
        "probe_steps": policy.probe_steps,
        "decode_steps": policy.decode_steps,
        "phases": compare(phases, compared),
        "whole_run": whole,
        "summary": summary(whole),
    }


def _show(console: Console, settings: DemoSettings, report: dict[str, Any]) -> None:
    console.print(phase_table(report["phases"]))
    console.print(whole_table(report["whole_run"]))
    console.print(report["summary"], style="bold", highlight=False, markup=False)
    if report["override_s"]:
        console.print(
            f"An override was in force for {report['override_s']:.1f} s: these are its results too.",
            style="yellow",
            highlight=False,
        )
    console.print(_caption(settings, report), style="dim", highlight=False, markup=False)


@contextlib.contextmanager
def _waiting(console: Console, what: str) -> Iterator[None]:
    """Say `what` is waited for: a spinner, or without a terminal a line."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        print_line(console, what)
        yield


def _caption(settings: DemoSettings, report: dict[str, Any]) -> str:
    about = settings.profile.about
    measured = ", ".join(
        str(about[key]) for key in ("gpu", "attention_backend", "model") if about.get(key) is not None
    )
    rehearsed = "" if settings.knowledge is None else f", which had seen {SECONDS:.0f} s of such a load"
    return (
        f"Simulated, from step times in profile {settings.profile.name} ({measured})."
        f" On and off: always; on is depth {report['always_on_depth']}."
        f" {report['requests']} requests; on and off replay exactly the arrivals of the governed run."
        f" {report['switches']} changes of depth by policy {settings.policy}{rehearsed}."
    )


def _show_urls(console: Console, stage: Stage) -> None:
    for name, url in (
        ("status page", f"{stage.api_url}/"),
        ("status", f"{stage.api_url}/v1/status"),
        ("decisions", f"{stage.api_url}/v1/decisions"),
        ("API", f"{stage.api_url}/docs"),
        ("sidecar metrics", f"{stage.api_url}/metrics"),
        ("simulated engine", stage.engine_url),
        ("engine metrics", f"{stage.engine_url}/metrics"),
        ("engine control", f"{stage.engine_url}/speculation"),
    ):
        print_line(console, f"{name:17} {url}")
    print_line(console, f"export SPECGOV_URL={stage.api_url}")


async def _keep(console: Console, stage: Stage, phases: tuple[Phase, ...], seed: int) -> None:
    """Repeat the load until interrupted, so that there is something to look at."""
    print_line(
        console,
        "The load goes on and on; Ctrl-C ends it.  What specgov status says it brought leaves out the batch"
        " sizes at which the other choice never ran, and with them most of what was gained; the table has"
        " them all (see docs/grafana.md).",
    )
    await load_for_ever(console, stage.live, stage.engine_url, phases, seed + 1)
