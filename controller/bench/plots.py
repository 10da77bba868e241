"""Pictures of an outcome, as PNG.  Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from controller.bench.outcome import Outcome
from controller.bench.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's palette: told apart by the colour-blind too."""


def draw(outcome: Outcome) -> Iterator[tuple[str, Figure]]:
    """(file name, picture) of what the outcome can show; raises `ImportError` without matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    if any(outcome.throughput().values()):
        figure = Figure(figsize=(9, 9), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        guessed = {label for label, _ in outcome.guessed()}
        known = {f"{k} (a guess)" if k in guessed else k: v for k, v in outcome.throughput().items()}
        _curves(above, known, "output tokens / s")
        _crossovers(above, outcome)
        tpot = outcome.estimates(lambda w: None if w.stats.tpot_p50_s is None else w.stats.tpot_p50_s * 1e3)
        _curves(below, tpot, "median TPOT, ms")
        below.set_xlabel("requests at once")
        above.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
        yield "throughput.png", figure
    if outcome.depths:
        figure = Figure(figsize=(11, 5), layout="constrained")
        _depths(figure.subplots(), outcome)
        yield "depth.png", figure


def _curves(axes: Axes, curves: Mapping[str, Mapping[int, Estimate]], title: str) -> None:
    for i, (label, curve) in enumerate(curves.items()):
        points = sorted(curve)
        if points:
            means = [curve[c].mean for c in points]
            errors = [curve[c].half_width or 0.0 for c in points]
            style = "o-" if i < len(COLOURS) else "s--"
            axes.errorbar(
                points, means, yerr=errors, fmt=style, color=COLOURS[i % len(COLOURS)], label=label, ms=4
            )
    levels = sorted({c for curve in curves.values() for c in curve})
    positive = all(point.mean > 0 for curve in curves.values() for point in curve.values())
    if len(levels) > 1:
        axes.set_xscale("log", base=2)
    if len(levels) > 1 and positive:
        axes.set_yscale("log")
    else:  # nothing grows along one concurrency, and a window without a token has no logarithm
        axes.set_ylim(bottom=0)
    axes.set_xticks(levels)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylabel(title)
    axes.grid(visible=True, which="major", alpha=0.3)


def _crossovers(axes: Axes, outcome: Outcome) -> None:
    advice = outcome.advice()
    for crossing in advice.crossovers if advice else ():
        axes.axvline(crossing.concurrency, color="0.4", ls=":", lw=1)
        axes.annotate(
            f"crossover at {crossing.concurrency:.0f}",
            (crossing.concurrency, 0.02),
            xycoords=("data", "axes fraction"),
        )


def _depths(axes: Axes, outcome: Outcome) -> None:
    start_s = min(sample.at_s for sample in outcome.depths)
    for i, label in enumerate(outcome.labels()):
        mine = [
            (s.at_s - start_s, s.depth) for s in outcome.depths if s.label == label and s.depth is not None
        ]
        if mine:
            colour = COLOURS[i % len(COLOURS)]
            axes.plot(
                [at for at, _ in mine],
                [depth for _, depth in mine],
                ".",
                color=colour,
                label=label,
                ms=3,
            )
    batch = axes.twinx()
    sized = [(s.at_s - start_s, s.batch_size) for s in outcome.depths if s.batch_size is not None]
    batch.plot([at for at, _ in sized], [size for _, size in sized], color="0.8", lw=0.8, zorder=0)
    batch.set_ylabel("batch size")
    axes.set(xlabel="seconds", ylabel="draft depth in use", title="Depth in use over time")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.06, 1))
