"""`specgov replay`: policies against a recorded load and a measured cost profile, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controller.simulation.acceptance import AFTER_COLD_FACTOR, parse_acceptance
from controller.simulation.arrivals import InvalidArrivalsError, describe_bad_rows, read_arrivals
from controller.simulation.cost_profile import InvalidProfileError, load_profile
from controller.simulation.engine import EngineConfig
from controller.simulation.replay import Run, Scenario, fixed_arms, replay_arm, replay_policy
from controller.simulation.report import run_to_json, scenario_to_json
from policies import guards, registry
from policies.base import Learner, Policy

_errors = Console(stderr=True)
_USAGE = 2


def replay(
    profile: Annotated[str, typer.Option(help="Cost profile: a file, or the name of a shipped one.")],
    arrivals: Annotated[Path, typer.Option(help="Trace: Azure or BurstGPT CSV, Mooncake or own JSONL.")],
    policy: Annotated[list[str] | None, typer.Option(help="Policy by name; may be given again.")] = None,
    acceptance: Annotated[
        str, typer.Option(help="Per position: 0.745, 0.8/0.7/0.6, or over time 0.745@0,0.366@300,...")
    ] = "0.745",
    rate_scale: Annotated[float, typer.Option(help="Arrivals this many times as fast.")] = 1.0,
    duration: Annotated[
        float | None, typer.Option(help="Seconds: cut the trace there, or repeat it until then.")
    ] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Let policies learn on a first pass.")] = False,
    baselines: Annotated[bool, typer.Option(help="Also replay always-off and every fixed depth.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a trace with bad rows.")] = False,
    plain_decode: Annotated[bool, typer.Option(help="Off-cold costs what plain decoding costs.")] = True,
    max_running: Annotated[int, typer.Option(min=1, max=4096, help="Running requests at most.")] = 256,
    kv_tokens: Annotated[int, typer.Option(min=1, help="Size of the KV pool in tokens.")] = 1_000_000,
    noise: Annotated[float, typer.Option(min=0, max=1, help="Spread of step times (log).")] = 0.03,
    after_cold: Annotated[
        float, typer.Option(min=0, max=1, help="Acceptance after a cold spell, as a factor.")
    ] = AFTER_COLD_FACTOR,
    tick: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds between decisions.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of noise and acceptance.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG, SVG or PDF).")] = None,
) -> None:
    """Replay a trace under one or more policies and report regret, latency, switches and probes."""
    try:
        trace = read_arrivals(arrivals, strict=strict).scaled(rate_scale)
        scenario = Scenario(
            profile=load_profile(profile),
            trace=trace.lasting(duration) if duration else trace,
            acceptance=parse_acceptance(acceptance),
            engine=EngineConfig(
                max_running_requests=max_running,
                kv_tokens=kv_tokens,
                noise=noise,
                after_cold_factor=after_cold,
                plain_decode=plain_decode,
            ),
            seed=seed,
            tick_s=tick,
        )
        names = policy or ["goodput"]
        for name in names:
            registry.find(name)
        fixed = fixed_arms(scenario)
    except (InvalidArrivalsError, InvalidProfileError, OSError, ValueError) as error:
        _errors.print(f"specgov replay: {error}", style="red", markup=False)
        raise typer.Exit(_USAGE) from None
    if trace.bad_rows:
        _errors.print(f"{arrivals}: left out {describe_bad_rows(trace)}", style="yellow", markup=False)
    runs = list(_policy_runs(scenario, names, warm=warm))
    base = list(_baseline_runs(scenario)) if baselines else []
    report = {
        "simulated": True,
        **scenario_to_json(scenario, acceptance),
        "warm": warm,
        "policies": {run.name: run_to_json(run, fixed) for run in runs},
        "baselines": {run.name: run_to_json(run, fixed) for run in base},
    }
    if plot is not None:
        _plot(plot, scenario, runs)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _show(report)


def guarded(name: str) -> tuple[Policy, Policy]:
    """The policy called `name` with its default parameters: bare, and in its default guards."""
    spec = registry.find(name)
    bare = spec.make(spec.params())
    return bare, guards.stack(bare, guards.GuardParams())


def _policy_runs(scenario: Scenario, names: list[str], *, warm: bool) -> Iterator[Run]:
    for name in names:
        bare, policy = guarded(name)
        if warm and isinstance(bare, Learner):
            with _progress(f"{name} learns", scenario) as advance:
                replay_policy(scenario.with_seed(scenario.seed + 1), policy, advance)
            learned = bare.export_state()
            bare, policy = guarded(name)
            assert isinstance(bare, Learner)
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
    with Progress(*columns, TimeElapsedColumn(), console=_errors, transient=True) as bars:
        task = bars.add_task(name, total=scenario.trace.duration_s)
        yield lambda seconds: bars.update(task, completed=seconds)


def _plot(path: Path, scenario: Scenario, runs: list[Run]) -> None:
    try:
        from controller.simulation.replay_plot import plot_replay  # noqa: PLC0415 needs matplotlib

        plot_replay(path, scenario, runs)
    except ImportError:
        _errors.print("--plot needs matplotlib: pip install 'specgov[plot]'", style="red", markup=False)
        raise typer.Exit(_USAGE) from None


def _show(report: dict[str, Any]) -> None:
    profile, trace = report["profile"]["name"], report["arrivals"]
    caption = (
        f"Simulated from profile {profile}; {trace['requests']} requests in {trace['seconds']:.0f} s;"
        f" acceptance {report['acceptance']}"
    )
    table = Table(title="Replay", caption=caption)
    for heading in ("", "regret", "vs best fixed", "vs off", "decode s", "tok/s", "TPOT p50/p99 ms"):
        table.add_column(heading, justify="left" if not heading else "right")
    for heading in ("TTFT p50/p99 s", "switches/min", "plans/min", "probes"):
        table.add_column(heading, justify="right")
    for group in ("policies", "baselines"):
        for name, run in report[group].items():
            table.add_row(name, *_cells(run))
        table.add_section()
    Console().print(table)


def _cells(run: dict[str, Any]) -> list[str]:
    tpot, ttft = run["tpot_s"], run["ttft_s"]
    return [
        _percent(run["regret"]),
        _percent(run["against_best_fixed"]),
        _percent(run["against"].get("always_off")),
        f"{run['decode_seconds']:.1f}",
        f"{run['output_tok_s'] or 0:.0f}",
        "-" if tpot["p50"] is None else f"{tpot['p50'] * 1e3:.1f} / {tpot['p99'] * 1e3:.1f}",
        "-" if ttft["p50"] is None else f"{ttft['p50']:.2f} / {ttft['p99']:.2f}",
        _number(run["switches"]["per_minute_median"]),
        _number(run["plan_changes"]["per_minute_median"]),
        _percent(run["probe_share"]),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
