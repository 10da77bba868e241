"""Pictures of docs/results out of what analyse.py made:  plots.py KIND results.json picture.png [PLAN ...]

KIND: `throughput` (output tokens per second of every arm over concurrency, as a share of the server without
speculation, a panel a plan), `trace` (of `mixed` or the PLANs named: by second, every arm, the policy's depth
below; plans that stand together have no arm in common), `verify` (of chain_verify.py: output tokens per
second and median step, every depth of both verifies).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from figures.phases import POLICY, windows_of  # noqa: E402 - the path comes first

STYLES = {
    "plain": ("no speculation", "#222222", "-", "o"),
    "depth-1": ("fixed depth 1", "#9ecae1", "-", None),
    "depth-2": ("fixed depth 2", "#4292c6", "-", None),
    "depth-4": ("fixed depth 4", "#084594", "-", None),
    "off-cold": ("off (cold)", "#888888", ":", None),
    "adaptive": ("SGLang adaptive", "#d95f02", "--", "s"),
    "governed warm": ("specgov", "#1b9e3f", "-", "D"),
    "governed settled": ("specgov", "#1b9e3f", "-", "D"),
    "governed cold": ("specgov, first 8 s", "#1b9e3f", ":", "x"),
    "governed": ("specgov", "#1b9e3f", "-", None),
}


def arm_of(row: dict) -> str:
    """`plain`, `depth-4`, `governed warm`, ..."""
    temperature = row.get("temperature") if row["label"] == "governed" else None
    return f"governed {temperature}" if temperature else row["label"].rpartition("/")[2]


def throughput(results: dict, path: Path) -> None:
    """A panel for every plan that had a server without speculation; a level without it has no point."""
    results = {
        name: plan for name, plan in results.items() if any(arm_of(row) == "plain" for row in plan["summary"])
    }
    count = len(results)
    rows = -(-count // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(10, 3.6 * rows), squeeze=False)
    for (name, plan), axis in zip(results.items(), axes.flat, strict=False):
        lines: dict[str, dict[int, float]] = {}
        for row in plan["summary"]:
            lines.setdefault(arm_of(row), {})[row["C"]] = row["tok_s"]
        if "governed warm" in lines:
            lines.pop("governed settled", None)
        plain = lines["plain"]
        for arm in (a for a in STYLES if a in lines):
            draw(axis, arm, [(c, v / plain[c]) for c, v in sorted(lines[arm].items()) if c in plain])
        levels = sorted(plain)
        axis.set(xscale="log", title=name, xlabel="concurrent requests", ylabel="tok/s / no speculation")
        axis.set_ylim(bottom=0)
        axis.set_xticks(levels, [str(c) for c in levels])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    for axis in list(axes.flat)[count:]:
        axis.axis("off")
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=9)
    save(figure, path, bottom=0.14 if rows == 1 else 0.07)


def draw(axis: Axes, arm: str, points: list[tuple[float, float]], *, marked: bool = True) -> None:
    """One arm."""
    label, color, line, marker = STYLES[arm]
    width = 2.2 if arm.startswith("governed") else 1.3
    axis.plot(
        *zip(*points, strict=True),
        line,
        color=color,
        marker=marker if marked else None,
        label=label,
        ms=4,
        lw=width,
    )


def verify(results: dict, path: Path) -> None:
    """Means over all windows of all runs, and each window as a dot."""
    windows = [w for plan in results.values() for w in plan["windows"] if w.get("tok_s")]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    texts = (("tok_s", "output tokens per second"), ("step_ms_p50", "median step, ms"))
    for axis, (key, text) in zip(axes, texts, strict=True):
        for label in dict.fromkeys(w["label"] for w in windows):
            by_level: dict[int, list[float]] = {}
            for w in (w for w in windows if w["label"] == label):
                by_level.setdefault(w["C"], []).append(w[key])
            draw_verify(axis, label, sorted(by_level.items()))
        levels = sorted({w["C"] for w in windows})
        axis.set(xscale="log", yscale="log", xlabel="concurrent requests", title=text)
        axis.set_xticks(levels, [str(c) for c in levels])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.grid(alpha=0.25)
    handles = {line.get_label(): line for line in axes[0].get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=9)
    save(figure, path, bottom=0.16)


def draw_verify(axis: Axes, label: str, points: list[tuple[int, list[float]]]) -> None:
    """One depth of one server; SGLang's own verify dashed."""
    server, _, arm = label.rpartition("/")
    name, color, _, _ = STYLES[arm]
    names = {"own": f"{name}, SGLang's verify", "chain": f"{name}, decode kernel"}
    line = "--" if server == "own" else "-"
    means = [sum(values) / len(values) for _, values in points]
    axis.plot([c for c, _ in points], means, line, color=color, label=names.get(server, name), lw=1.4)
    dots = [(c, value) for c, values in points for value in values]
    axis.scatter(*zip(*dots, strict=True), color=color, s=6)


def trace(results: dict, path: Path, *plans: str) -> None:
    """Tokens by second of every arm, phases after each other; below it the policy's depth."""
    arms = windows_of(results, plans or ("mixed",))
    windows = [w for found in arms.values() for w in found]
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 5.5), sharex=True, gridspec_kw={"height_ratios": [3, 1]}
    )
    for start_s, w in starts(next(iter(arms.values()))):
        above.axvline(start_s, color="#cccccc", lw=0.8)
        above.text(start_s, above_top(windows), f" C {w['C']}\n p {w['acceptance']}", fontsize=8)
    for arm, found in arms.items():
        draw(above, arm, list(seconds(found)), marked=False)
        if arm == POLICY:
            depths = [
                (start_s + at, depth) for start_s, w in starts(found) for at, _, depth in w["depth_over_time"]
            ]
            below.step(*zip(*depths, strict=True), where="post", color=STYLES[arm][1], lw=1.2)
    above.set(ylabel="output tokens of each second", ylim=(0, above_top(windows) * 1.12))
    figure.legend(fontsize=9, loc="lower center", ncols=6)
    below.set(ylabel="specgov's depth", xlabel="seconds", yticks=[0, 1, 2, 4])
    for axis in (above, below):
        axis.grid(alpha=0.25)
    save(figure, path, bottom=0.05)


def starts(windows: list[dict]) -> Iterator[tuple[float, dict]]:
    """Each phase and when it begins, as if each had begun when the one before ended."""
    start_s = 0.0
    for w in windows:
        yield start_s, w
        start_s += round(w["to_s"] - w["from_s"])


def seconds(windows: list[dict]) -> Iterator[tuple[float, int]]:
    """Each second's middle and its tokens."""
    for start_s, w in starts(windows):
        yield from ((start_s + i + 0.5, tokens) for i, tokens in enumerate(w["tok_s_by_second"]))


def above_top(windows: list[dict]) -> float:
    """A little above the highest second."""
    return 1.02 * max(max(w["tok_s_by_second"]) for w in windows)


def save(figure: plt.Figure, path: Path, *, bottom: float) -> None:
    """Small enough to be kept."""
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    {"throughput": throughput, "trace": trace, "verify": verify}[sys.argv[1]](
        json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]), *sys.argv[4:]
    )
