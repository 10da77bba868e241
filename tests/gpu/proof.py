"""What plain_decode_proof.py found:  proof.py OUT.json page.md NAME=FOLDER ...

Written as JSON and as the section `proof` of a page.
`samples`: a chi-square test that two servers sample from one distribution, over their pairs of first two
tokens; rare pairs are put together until at least five of each are expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from off_table import measured, speed  # noqa: E402 - the path comes first
from sections import fill, table  # noqa: E402

LEAST_EXPECTED = 5


def merged(a: dict[str, int], b: dict[str, int], total_a: int, total_b: int) -> list[tuple[int, int]]:
    """Counts per category of both; the last one holds all that is rare or was not kept."""
    smaller = min(total_a, total_b) / (total_a + total_b)
    frequent = [k for k in a.keys() | b.keys() if (a.get(k, 0) + b.get(k, 0)) * smaller >= LEAST_EXPECTED]
    table = [(a.get(k, 0), b.get(k, 0)) for k in sorted(frequent)]
    rest = (total_a - sum(x for x, _ in table), total_b - sum(y for _, y in table))
    return [*table, rest] if sum(rest) * smaller >= LEAST_EXPECTED else table


def chi_square(first: dict, second: dict) -> dict:
    """Of two `samples` records."""
    table = merged(first["counts"], second["counts"], first["n"], second["n"])
    result = stats.chi2_contingency(list(zip(*table, strict=True)), correction=False)
    return {
        "servers": [first["server"], second["server"]],
        "n": [first["n"], second["n"]],
        "categories": len(table),
        "chi_square": round(float(result.statistic), 2),
        "degrees_of_freedom": int(result.dof),
        "p": round(float(result.pvalue), 4),
    }


def found(folder: Path) -> dict:
    """Of one run."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    samples = [r for r in records if r["kind"] == "samples"]
    keys = ("how", "same", "of", "first_difference", "distinct")
    return {
        "equal": [{k: r[k] for k in keys if k in r} for r in records if r["kind"] == "equal"],
        "samples": [chi_square(samples[0], other) for other in samples[1:]],
        "in_force": {r["server"]: r["body"]["plain_decode"] for r in records if r["kind"] == "speculation"},
        "windows": measured(folder)["windows"],
        "failed": [r for r in records if r["kind"] == "failed"],
    }


def page(runs: dict[str, dict]) -> Iterator[str]:
    """The section, line by line."""
    for name, run in runs.items():
        yield f"### {name}\n"
        yield from (f"- `{server}`: {json.dumps(status)}" for server, status in run["in_force"].items())
        yield ""
        rows = [(e["how"], f"{e['same']} of {e['of']}", _first(e["first_difference"])) for e in run["equal"]]
        head = ("greedy tokens: server and plan", "answers equal", "first difference at token, median")
        yield from table(head, rows)
        for s in run["samples"]:
            yield f"Samples of {' and '.join(s['servers'])}, {s['n'][0]} each, {s['categories']} categories:"
            test = f"chi-square {s['chi_square']} with {s['degrees_of_freedom']} degrees of freedom"
            yield f"{test}, p = {s['p']}.\n"
        if run["windows"]:
            yield from speed(run["windows"])
        yield from (
            f"- failed: {f.get('part') or f.get('server')}: {f['error'][:200]}" for f in run["failed"]
        )


def _first(differences: list[int | None]) -> int | None:
    at = sorted(d for d in differences if d is not None)
    return at[len(at) // 2] if at else None


def main() -> None:
    """Every folder."""
    pairs = [argument.split("=", 1) for argument in sys.argv[3:]]
    runs = {name: found(Path(folder)) for name, folder in pairs}
    Path(sys.argv[1]).write_text(json.dumps(runs, separators=(",", ":")) + "\n")
    fill(Path(sys.argv[2]), "proof", page(runs))


if __name__ == "__main__":
    main()
