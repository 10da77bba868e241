"""The pictures of the documentation, made from one run: `python -m tests.e2e.pictures docs/pictures`.

The status page as Chromium shows it, and the pod dashboard drawn from its own queries, as a Prometheus that
scraped the run answers them.  The latter stands in for a picture of Grafana, which the tests do not have.
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
from PIL import Image

from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile
from controller.simulation.demo.rehearsal import rehearse
from controller.simulation.demo.run import DemoSettings
from controller.simulation.engine import EngineConfig
from tests.e2e.chromium import DESKTOP, PHONE, chromium, emulate, screenshot
from tests.e2e.prometheus import Prometheus, prometheus
from tests.e2e.stage import ACCEPTANCE, PROFILE, stage
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


def _with_gaps(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The points with a break wherever some are missing, as Grafana shows them."""
    at: list[float] = []
    values: list[float] = []
    for t, value in points:
        if at and t - at[-1] > 1.5:
            at.append(t)
            values.append(float("nan"))
        at.append(t)
        values.append(value)
    return at, values


def _draw(axes: Axes, server: Prometheus, panel: str, instance: str, start: float, end: float) -> None:
    scale = 100 if panel in PERCENT else 1
    for target in _panels()[panel]:
        for series in server.query_range(filled_in(target["expr"], instance), start, end, 1.0):
            at, values = _with_gaps([(t - start, scale * float(value)) for t, value in series["values"]])
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


def _dashboard(server: Prometheus, instance: str, start: float, target: Path) -> None:
    mpl.use("agg")
    figure, axes = plt.subplots(4, 2, figsize=(12, 12), layout="constrained")
    for each, panel in zip(axes.flat, PANELS, strict=True):
        _draw(each, server, panel, instance, start, time.time())
    figure.supxlabel("seconds; simulated engine, real sidecar, real Prometheus", fontsize=9)
    figure.savefig(target, dpi=80)


def _page(url: str, profile: Path, folder: Path) -> None:
    with chromium(profile) as browser:
        for name, size, dark in (
            ("desktop", DESKTOP, False),
            ("dark", DESKTOP, True),
            ("phone", PHONE, False),
        ):
            emulate(browser, size, dark=dark)
            browser.get(url)
            time.sleep(3)
            _shrink(screenshot(browser, folder / f"status-page-{name}.png"))


def _shrink(picture: Path) -> None:
    """256 colours are enough for a page of plain colours."""
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


def _demo(policy: str) -> DemoSettings:
    """The stage's engine, as the demo's rehearsal takes it."""
    return DemoSettings(load_profile(PROFILE), parse_acceptance(ACCEPTANCE), EngineConfig(), policy)


def main() -> None:
    """Let the policy learn in virtual time, run the load, then draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("flags", nargs="*", help="settings of the sidecar, e.g. policy.name=threshold")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    flags = {"policy.name": "goodput", "loop.period_s": 0.5, **dict(f.split("=", 1) for f in given.flags)}
    knowledge = rehearse(_demo(flags["policy.name"]))
    with tempfile.TemporaryDirectory() as made, stage(flags, knowledge=knowledge) as running:
        folder, instance = Path(made), f"127.0.0.1:{running.api_port}"
        with prometheus(folder, {"specgov": instance}) as server:
            start = time.time()
            for concurrency in WAVE:
                running.concurrency = concurrency
                time.sleep(PHASE_S)
            _page(running.url, folder, given.folder)
            _dashboard(server, instance, start, given.folder / "dashboard.png")
            _shrink(given.folder / "dashboard.png")


if __name__ == "__main__":
    main()
