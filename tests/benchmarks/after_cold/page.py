"""The tables and the picture of docs/results/after-cold.md: `... .page results.json page.md picture.png`.

`python -m tests.benchmarks.after_cold.page`; fills the section `figures` of the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

sys.path[:0] = [str(Path(__file__).resolve().parent.parent.parent / "gpu")]
from sections import fill, table  # noqa: E402 - the path comes first

COLOURS = {
    "warm-32": "#1b9e3f",
    "cold-8": "#9ecae1",
    "cold-32": "#4292c6",
    "cold-128": "#084594",
    "frozen-32": "#d95f02",
}


INTRODUCTION = (
    "Mean ± standard error (bootstrap over requests). p1 to p3: of the steps in which the drafts before it",
    "were accepted, how often this one was, *after the spell / the same requests over the same tokens",
    "without it*. Factor: what every p would have to be multiplied by to give the tokens per step seen.\n",
)


def age(entry: dict[str, Any]) -> str:
    """A bin's name: `first step`, `1-7`, `128 on`, `all`."""
    begin, end = entry["from"], entry["to"]
    if begin == 0:
        return "all" if end is None else "first step"
    return f"{begin} on" if end is None else f"{begin}-{end - 1}"


def with_error(value: float | None, error: float | None, digits: int = 2) -> str | None:
    """`0.50 ± 0.02`."""
    if value is None:
        return None
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def page(results: dict[str, Any]) -> Iterator[str]:
    """The section, line by line."""
    yield from INTRODUCTION
    for arm, found in results["arms"].items():
        spells = found["spell_steps"]
        yield f"### {arm}\n"
        yield (
            f"{found['requests']} requests, {min(spells)} to {max(spells)} steps off, drafting again at "
            f"{min(found['rise_at_tokens'])} to {max(found['rise_at_tokens'])} tokens;"
        )
        yield (
            f"{found['equal_answers']} of {results['requests']} answers are those without a spell. "
            f"Of {found['roots_in_both']} steps that begin where one of the other arm does, "
            f"{found['of_which_accepted_the_same']} accepted as many drafts.\n"
        )
        head = ["tokens since the rise", "steps", "p1", "p2", "p3", "tokens a step", "ratio", "factor"]
        yield from table(head, map(row, found["bins"]))


def row(entry: dict[str, Any]) -> list[str | None]:
    """One bin."""
    pairs = zip(entry["p"], entry["p_error"], entry["baseline_p"], strict=True)
    acceptance = [
        f"{with_error(p, error)} / {with_error(base, None)}" if p is not None else None
        for p, error, base in pairs
    ]
    both = (entry["tokens_per_step"], entry["baseline_tokens_per_step"])
    tokens = " / ".join(with_error(value, None) or "-" for value in both)
    ratio = with_error(entry["tokens_ratio"], entry["tokens_ratio_error"])
    return [age(entry), str(entry["steps"]), *acceptance, tokens, ratio, with_error(entry["factor"], None)]


def picture(results: dict[str, Any], path: Path) -> None:
    """Ratio of p1 (left) and of tokens per step (right) to the same text without a spell, by age."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axis, title in zip(axes, ("first draft accepted", "tokens a step"), strict=True):
        for i, (arm, found) in enumerate(results["arms"].items()):
            bins = found["bins"][:-1]
            first = title.startswith("first")
            values = [b["ratio"][0] if first else b["tokens_ratio"] for b in bins]
            errors = [b["ratio_error"][0] if first else b["tokens_ratio_error"] for b in bins]
            places = [n + (i - 2) * 0.06 for n in range(len(bins))]
            axis.errorbar(
                places, values, errors, marker="o", ms=4, lw=1.3, capsize=2, label=arm, color=COLOURS[arm]
            )
        axis.axhline(1.0, color="#888888", lw=0.8)
        axis.set(title=title, xlabel="tokens since the rise")
        axis.set_xticks(range(len(bins)), [age(b) for b in bins])
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("after the spell / without it")
    axes[1].legend(fontsize=9, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Fill the page, draw the picture."""
    results = json.loads(Path(sys.argv[1]).read_text())
    fill(Path(sys.argv[2]), "figures", page(results))
    picture(results, Path(sys.argv[3]))


if __name__ == "__main__":
    main()
