"""Draws the pod dashboard from its own queries, as a Prometheus that scraped a real run answers them.

`python -m tests.e2e.plot_dashboard docs/dashboard.png`.  It stands in for a picture of Grafana, which the
tests do not have; it shows the same panels, series and numbers.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tests.e2e.prometheus import Prometheus, prometheus
from tests.e2e.stage import stage
from tests.e2e.test_dashboards import DASHBOARDS, filled_in

WAVE = (2, 4, 12, 24, 40, 60, 80, 60, 40, 24, 12, 4, 2, 2)
PHASE_S = 8.0
PANELS = (
    "Load",
    "Depth in use",
    "Decode steps by depth",
    "Output tokens per second",
    "What governing brought",
    "Time of a decode step",
    "Acceptance by position",
    "Turns by reason",
)
PERCENT = ("What governing brought", "Acceptance by position")


def _panels() -> dict[str, list[dict[str, Any]]]:
    """Targets by panel title; a title that stands for a figure and a plot has both."""
    found: dict[str, list[dict[str, Any]]] = {}
    for panel in DASHBOARDS["specgov-pod"]["panels"]:
        for each in (panel, *panel.get("panels", [])):
            if each.get("type") == "timeseries":
                found[each["title"]] = each["targets"]
    return found


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found.group(1), ""), template).strip()


def _draw(axes: Axes, server: Prometheus, panel: str, instance: str, start: float, end: float) -> None:
    scale = 100 if panel in PERCENT else 1
    for target in _panels()[panel]:
        for series in server.query_range(filled_in(target["expr"], instance), start, end, 1.0):
            at = [t - start for t, _ in series["values"]]
            values = [scale * float(value) for _, value in series["values"]]
            style = "steps-post" if panel == "Depth in use" else "default"
            axes.plot(
                at,
                values,
                label=_legend(target["legendFormat"], series["metric"]),
                drawstyle=style,
                linewidth=1.3,
            )
    axes.set_title(panel + (", %" if scale == 100 else ""), loc="left", fontsize=10, fontweight="bold")
    axes.legend(fontsize=7, frameon=False, loc="best", ncols=2)
    axes.grid(alpha=0.25)
    axes.set_xlim(0, end - start)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Run the load, then draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("flags", nargs="*", help="settings of the sidecar, e.g. policy.name=goodput")
    given = parser.parse_args()
    mpl.use("agg")
    flags = {"loop.period_s": 0.5, **dict(flag.split("=", 1) for flag in given.flags)}
    with tempfile.TemporaryDirectory() as folder, stage(flags) as running:
        instance = f"127.0.0.1:{running.api_port}"
        with prometheus(Path(folder), {"specgov": instance}) as server:
            start = time.time()
            for concurrency in WAVE:
                running.concurrency = concurrency
                time.sleep(PHASE_S)
            figure, axes = plt.subplots(4, 2, figsize=(12, 12), layout="constrained")
            for each, panel in zip(axes.flat, PANELS, strict=True):
                _draw(each, server, panel, instance, start, time.time())
            figure.supxlabel("seconds; simulated engine, real sidecar, real Prometheus", fontsize=9)
            given.picture.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(given.picture, dpi=80)


if __name__ == "__main__":
    main()
