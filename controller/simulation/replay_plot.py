"""The picture of a replay: depth under load, cumulative regret, and the goodput surface with the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from controller.simulation.acceptance import expected_tokens, survival
from controller.simulation.arms import Arm, arm_costs, arm_rows
from controller.simulation.replay import Run, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette: told apart by the colour-blind too."""


def plot_replay(path: str | Path, scenario: Scenario, runs: Sequence[Run]) -> None:
    """Write a PNG (or what the suffix says); raises `ImportError` without matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415 an optional dependency

    figure = Figure(figsize=(11, 12), layout="constrained")
    figure.suptitle(f"Simulated from profile {scenario.profile.name}")
    load, regret, surface = figure.subplots(3, 1, height_ratios=(1, 1, 1.2))
    _plot_depth(load, runs)
    _plot_regret(regret, runs)
    learned = next((run for run in runs if run.schedule is not None), None)
    _plot_surface(surface, scenario, learned, runs[0].end_s if runs else 0.0)
    figure.savefig(path, dpi=120)


def _plot_depth(axes: Axes, runs: Sequence[Run]) -> None:
    load = axes.twinx()
    if runs:
        times, running = _series(runs[0], "running")
        load.fill_between(times, running, color="0.88", step="post", label="running requests")
    load.set_ylabel("running requests")
    load.set_zorder(0)
    axes.set_zorder(1)
    axes.patch.set_visible(False)
    for run, colour in zip(runs, COLOURS, strict=False):
        times, depths = _mean_depths(run)
        axes.plot(times, depths, color=colour, lw=1.2, label=run.name)
    axes.set(xlabel="seconds", ylabel="mean draft depth", title="Depth in use, over the load")
    axes.legend(loc="upper right")


def _plot_regret(axes: Axes, runs: Sequence[Run]) -> None:
    for run, colour in zip(runs, COLOURS, strict=False):
        times, spent = _series(run, "spent_s")
        _, oracle = _series(run, "oracle_s")
        axes.plot(times, spent - oracle, color=colour, label=run.name)
    axes.set(xlabel="seconds", ylabel="decode seconds above the oracle", title="Cumulative regret")
    axes.legend(loc="upper left")


def _plot_surface(axes: Axes, scenario: Scenario, run: Run | None, end_s: float) -> None:
    arms, goodput = goodput_surface(scenario, end_s)
    sizes = np.arange(1, goodput.shape[1] + 1)
    rows = np.arange(len(arms))
    mesh = axes.pcolormesh(sizes, rows, goodput / goodput.max(axis=0), cmap="viridis", shading="nearest")
    axes.figure.colorbar(mesh, ax=axes, label="share of the best arm's tokens/s")
    axes.plot(sizes, goodput.argmax(axis=0), color="white", lw=3, label="best by true costs")
    if run is not None and run.schedule is not None:
        chosen = [run.schedule.arm_for(int(size)) for size in sizes]
        at = [arms.index((arm.depth, str(arm.gear))) for arm in chosen]
        axes.plot(sizes, at, color="red", lw=1.5, ls="--", label=f"schedule of {run.name} at the end")
    labels = [str(depth) if depth else f"off, {gear}" for depth, gear in arms]
    axes.set_yticks(rows, labels)
    axes.set(
        xscale="log", xlabel="batch size", ylabel="draft depth", title="Decode goodput at the end of the run"
    )
    axes.legend(loc="upper right")


def goodput_surface(scenario: Scenario, at_s: float) -> tuple[list[Arm], Any]:
    """Arms and expected tokens per second by (arm, batch size from 1), at the profile's own context."""
    size = scenario.engine.max_running_requests
    rows = arm_rows(scenario.profile, plain_decode=scenario.engine.plain_decode)
    costs = arm_costs(scenario.profile, rows, size)
    arms = sorted(costs)
    positions = scenario.acceptance.at(at_s).positions
    tokens = expected_tokens(survival(positions, max(depth for depth, _ in arms)))
    batch = np.arange(1, size + 1)
    return arms, np.array([batch * tokens[arm[0]] / costs[arm].base_s[1:] for arm in arms])


def _series(run: Run, name: str) -> tuple[Any, Any]:
    times = np.array([sample.at_s for sample in run.samples])
    return times, np.array([getattr(sample, name) for sample in run.samples], dtype=np.float64)


def _mean_depths(run: Run, window: int = 10) -> tuple[Any, Any]:
    """Mean depth over `window` samples by decode seconds; a gap where nothing was decoded."""
    times, depth_s = _series(run, "depth_s")
    _, spent_s = _series(run, "spent_s")
    depth_s, spent_s, times = depth_s[::window], spent_s[::window], times[::window]
    decoded = np.diff(spent_s)
    mean = np.divide(np.diff(depth_s), decoded, out=np.full(len(decoded), np.nan), where=decoded > 0)
    return times[1:], mean
