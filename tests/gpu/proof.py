"""Read what plain_decode_proof.py found:  proof.py OUT/plain_decode_proof > proof.json

`samples`: a chi-square test that two servers sample from one distribution, over their pairs of first two
tokens; rare pairs are put together until at least five of each are expected.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scipy import stats

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


def main() -> None:
    """One folder."""
    lines = Path(sys.argv[1], "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    samples = [r for r in records if r["kind"] == "samples"]
    keys = ("how", "same", "of", "first_difference", "distinct")
    out = {
        "equal": [{k: r[k] for k in keys if k in r} for r in records if r["kind"] == "equal"],
        "samples": [chi_square(samples[0], other) for other in samples[1:]],
        "in_force": {r["server"]: r["body"]["plain_decode"] for r in records if r["kind"] == "speculation"},
        "failed": [r for r in records if r["kind"] == "failed"],
    }
    json.dump(out, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
