"""What `specgov replay` does: runs, progress, tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controller.cli._common import show_json
from controller.errors import BadRequestError
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.arrivals import Trace, describe_bad_rows, known_formats, read_arrivals
from controller.simulation.cost_profile import load_profile
from controller.simulation.engine import EngineConfig
from controller.simulation.replay import Run, Scenario, fixed_arms, replay_arm, replay_policy
from controller.simulation.report import run_to_json, scenario_to_json
from policies import guards, registry
from policies.base import Learner, Policy

_errors = Console(stderr=True)
DEFAULT_POLICY = "goodput"
PLOTS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The options of the command."""

    profile: str
    arrivals: Path
    policies: tuple[str, ...]
    acceptance: str
    rate_scale: float
    duration_s: float | None
    warm: bool
    baselines: bool
    strict: bool
    engine: EngineConfig
    tick_s: float
    seed: int
    as_json: bool
    plot: Path | None


def run(request: ReplayRequest) -> None:
    """Replay and print; raises `BadRequestError`."""
    _check_plot(request.plot)
    _check_duration(request.duration_s)
    scenario = _scenario(request)
    runs = list(_policy_runs(scenario, request.policies, warm=request.warm))
    base = list(_baseline_runs(scenario)) if request.baselines else []
    report = _report(scenario, request.acceptance, runs, base) | {"warm": request.warm}
    if request.plot is not None:
        _plot(request.plot, scenario, runs)
    if request.as_json:
        show_json(report)
    else:
        _show(report)


def _scenario(request: ReplayRequest) -> Scenario:
    try:
        for name in request.policies:
            registry.find(name)
        trace = _read(request).scaled(request.rate_scale)
        scenario = Scenario(
            profile=load_profile(request.profile),
            trace=trace if request.duration_s is None else trace.lasting(request.duration_s),
            acceptance=parse_acceptance(request.acceptance),
            engine=request.engine,
            seed=request.seed,
            tick_s=request.tick_s,
        )
        fixed_arms(scenario)
    except (OSError, ValueError) as error:
        raise BadRequestError(str(error)) from None
    if trace.bad_rows:
        text = f"{request.arrivals}: left out {describe_bad_rows(trace)}"
        _errors.print(text, style="yellow", markup=False, soft_wrap=True)
    return scenario


def _read(request: ReplayRequest) -> Trace:
    try:
        return read_arrivals(request.arrivals, strict=request.strict)
    except OSError as error:
        rule = f"must be a readable trace, got {request.arrivals}: {error.strerror}"
        raise BadRequestError(f"--arrivals {rule}; a trace is {known_formats()}") from None


def _report(scenario: Scenario, acceptance: str, runs: list[Run], base: list[Run]) -> dict[str, Any]:
    fixed = fixed_arms(scenario)
    return {
        "simulated": True,
        **scenario_to_json(scenario, acceptance),
        "policies": {run.name: run_to_json(run, fixed) for run in runs},
        "baselines": {run.name: run_to_json(run, fixed) for run in base},
    }


def guarded(name: str) -> tuple[Policy, Policy]:
    """The policy called `name` with its default parameters: bare, and in its default guards."""
    spec = registry.find(name)
    bare = spec.make(spec.params())
    return bare, guards.stack(bare, guards.GuardParams())


def _policy_runs(scenario: Scenario, names: tuple[str, ...], *, warm: bool) -> Iterator[Run]:
    for name in names:
        bare, policy = guarded(name)
        if warm and isinstance(bare, Learner):
            with _progress(f"{name} learns", scenario) as advance:
                replay_policy(scenario.with_seed(scenario.seed + 1), policy, advance)
            learned = bare.export_state()
            bare, policy = guarded(name)
            if isinstance(bare, Learner):
                bare.import_state(learned)
        with _progress(name, scenario) as advance:
            run = replay_policy(scenario, policy, advance)
        run.name = name
        yield run


def _baseline_runs(scenario: Scenario) -> Iterator[Run]:
    for name, arm in fixed_arms(scenario).items():
        with _progress(name, scenario) as advance:
            yield replay_arm(scenario, name, arm, advance)


@contextmanager
def _progress(name: str, scenario: Scenario) -> Iterator[Any]:
    columns = (TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    hidden = not _errors.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=_errors, transient=True, disable=hidden) as bars:
        task = bars.add_task(name, total=scenario.trace.duration_s)
        yield lambda seconds: bars.update(task, completed=seconds)


def _check_duration(duration_s: float | None) -> None:
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        rule = f"must be finite seconds > 0, got {duration_s:g}"
        raise BadRequestError(f"--duration {rule}; leave it out for the trace as long as it is")


def _check_plot(path: Path | None) -> None:
    """Before the replay, which may take an hour."""
    if path is None:
        return
    if path.suffix not in PLOTS or not path.absolute().parent.is_dir():
        rule = f"must be a file {', '.join(PLOTS)} in a folder that is there"
        raise BadRequestError(f"--plot {rule}, got {path}")
    if find_spec("matplotlib") is None:
        raise BadRequestError("--plot needs matplotlib: pip install 'specgov[plot]'")


def _plot(path: Path, scenario: Scenario, runs: list[Run]) -> None:
    from controller.simulation.replay_plot import plot_replay  # noqa: PLC0415 needs matplotlib

    try:
        plot_replay(path, scenario, runs)
    except OSError as error:
        text = f"--plot {path} could not be written: {error.strerror}"
        _errors.print(text, style="yellow", markup=False, soft_wrap=True)


def _show(report: dict[str, Any]) -> None:
    profile, trace = report["profile"]["name"], report["arrivals"]
    caption = (
        f"Simulated from profile {profile}; {trace['requests']} requests in {trace['seconds']:.0f} s;"
        f" acceptance {report['acceptance']}"
    )
    runs = [*report["policies"].values(), *report["baselines"].values()]
    refused = max((run["requests"]["rejected"] for run in runs), default=0)
    if refused:
        caption += f"; {refused} of them larger than the KV pool (--kv-tokens), and never served"
    table = Table(title="Replay", caption=caption)
    for heading in (
        "",
        "regret",
        "with cold\nharm",
        "vs best\nfixed",
        "decode\ns",
        "TPOT\nms",
        "switch\n/min",
        "probes",
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for group in ("policies", "baselines"):
        for name, run in report[group].items():
            table.add_row(name, *_cells(run))
        table.add_section()
    Console().print(table)


def _cells(run: dict[str, Any]) -> list[str]:
    tpot = run["tpot_s"]["p50"]
    return [
        _percent(run["regret"]),
        _percent(run["regret_with_cold_harm"]),
        _percent(run["against_best_fixed"]),
        f"{run['decode_seconds']:.1f}",
        "-" if tpot is None else f"{tpot * 1e3:.1f}",
        _number(run["switches"]["per_minute_median"]),
        _percent(run["probe_share"]),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
