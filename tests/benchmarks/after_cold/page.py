"""The tables and the picture of docs/results/after-cold.md: `... .page results.json page.md picture.png`.

Run with `python -m tests.benchmarks.after_cold.page`; fills the section `figures` of the page.  The JSON has
what `measure.py` (or the GPU plan) wrote under `engine`, and what `offline.py` wrote, if it ran, under
`computed`.
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

from tests.benchmarks.after_cold.by_age import BINS, FOREVER  # noqa: E402

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


def page(engine: dict[str, Any], computed: dict[str, Any] | None) -> Iterator[str]:
    """The section, line by line."""
    yield from INTRODUCTION
    yield "### On the engine\n"
    yield from arms(engine)
    if computed is None:
        return
    yield "### Computed\n"
    yield "The same for more requests, in PyTorch with the same weights (`offline.py`). Of the engine's own"
    for name, found in computed["against_engine"].items():
        yield f"steps in {name}, {found['the_same']} of {found['steps']} accepted as many drafts as computed."
    yield "\np1 to p3 over all steps: " + ", ".join(map(str, computed["p"])) + ";"
    without = ", ".join(map(str, computed["p_with_no_entry_of_its_own"]))
    yield f"with a cache in which no entry at all is the request's own: {without}."
    yield ""
    yield from arms(computed)


def arms(results: dict[str, Any]) -> Iterator[str]:
    """A table for every arm."""
    for arm, found in results["arms"].items():
        spells, rises = found["spell_steps"], found["rise_at_tokens"]
        yield f"#### {arm}\n"
        yield f"{found['requests']} requests, {min(spells)} to {max(spells)} steps off, drafting again at"
        yield f"{min(rises)} to {max(rises)} tokens. Of {found['roots_in_both']} steps that begin where one"
        yield f"without the spell does, {found['of_which_accepted_the_same']} accepted as many drafts."
        if "equal_answers" in found:
            yield f"{found['equal_answers']} of {results['requests']} answers are those without a spell."
        yield ""
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


def picture(sides: dict[str, dict[str, Any]], path: Path) -> None:
    """Tokens per step beside the same text without a spell, by age: a panel for each way to know it."""
    figure, axes = plt.subplots(1, len(sides), figsize=(5 * len(sides), 3.8), sharey=True, squeeze=False)
    for axis, (title, results) in zip(axes[0], sides.items(), strict=True):
        for i, (arm, found) in enumerate(results["arms"].items()):
            bins = [entry for entry in found["bins"][:-1] if entry["tokens_ratio"] is not None]
            places = [n + (i - 2) * 0.06 for n in range(len(bins))]
            values = [entry["tokens_ratio"] for entry in bins]
            errors = [entry["tokens_ratio_error"] or 0.0 for entry in bins]
            look = {"marker": "o", "ms": 4, "lw": 1.3, "capsize": 2, "color": COLOURS[arm]}
            axis.errorbar(places, values, errors, label=arm, **look)
        axis.axhline(1.0, color="#888888", lw=0.8)
        axis.set(title=title, xlabel="tokens since the rise")
        ages = [age({"from": begin, "to": end if end < FOREVER else None}) for begin, end in BINS]
        axis.set_xticks(range(len(ages)), ages)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("tokens a step / without the spell")
    axes[0][0].legend(fontsize=9, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Fill the page, draw the picture."""
    results = json.loads(Path(sys.argv[1]).read_text())
    engine, computed = results["engine"], results.get("computed")
    fill(Path(sys.argv[2]), "figures", page(engine, computed))
    sides = {f"on the engine, {engine['requests']} requests": engine}
    if computed is not None:
        sides[f"computed, {computed['requests']} requests"] = computed
    picture(sides, Path(sys.argv[3]))


if __name__ == "__main__":
    main()
