"""What plain_decode_proof.py found:  proof.py OUT.json page.md NAME[=FOLDER] ...

Written as JSON and as the section `proof` of a page.
A NAME without a folder is taken from OUT.json as it stands there.  `samples`: a chi-square test that two
servers sample from one distribution, over their pairs of first two tokens; rare pairs are put together until
at least five of each are expected.  The same over the first tokens alone (a prefill's, whatever the depth),
over the second given the first, and over that without the pairs that one server never says: where only the
likeliest tokens are sampled from, rounding decides which of two near ties is the last of them.  Each sample
of a vocabulary stands against the first one of it.
"""

from __future__ import annotations

import collections
import json
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from off_table import measured, speed  # noqa: E402 - the path comes first
from sections import fill, runs, table  # noqa: E402

LEAST_EXPECTED = 5
DECODE_LINE = re.compile(r"Decode batch.*#running-req: (\d+).*cuda graph: (\w+)")


def merged(a: dict[str, int], b: dict[str, int], total_a: int, total_b: int) -> list[tuple[int, int]]:
    """Counts per category of both; the last one holds all that is rare or was not kept."""
    smaller = min(total_a, total_b) / (total_a + total_b)
    frequent = [k for k in a.keys() | b.keys() if (a.get(k, 0) + b.get(k, 0)) * smaller >= LEAST_EXPECTED]
    table = [(a.get(k, 0), b.get(k, 0)) for k in sorted(frequent)]
    rest = (total_a - sum(x for x, _ in table), total_b - sum(y for _, y in table))
    return [*table, rest] if sum(rest) * smaller >= LEAST_EXPECTED else table


def chi_square(first: dict, second: dict) -> dict:
    """Of two `samples` records."""
    a, b = first["counts"], second["counts"]
    seen = a.keys() & b.keys()
    return {
        "servers": [first["server"], second["server"]],
        "n": [first["n"], second["n"]],
        "accepted_drafts": second.get("accepted_drafts"),
        **_test([merged(a, b, first["n"], second["n"])]),
        "first": _test([_counts(_firsts(a), _firsts(b))]),
        "second": _test(_by_first(a, b)),
        "second_if_seen_by_both": _test(_by_first(_only(a, seen), _only(b, seen))),
        "seen_by_one": {
            server["server"]: sum(n for pair, n in server["counts"].items() if pair not in seen)
            for server in (first, second)
        },
    }


def _test(tables: list[list[tuple[int, int]]]) -> dict:
    """Chi-square and degrees of freedom summed over tables of counts of both, and its p."""
    results = [stats.chi2_contingency(list(zip(*t, strict=True)), correction=False) for t in tables]
    statistic, freedom = sum(float(r.statistic) for r in results), sum(int(r.dof) for r in results)
    return {
        "categories": sum(map(len, tables)),
        "chi_square": round(statistic, 2),
        "degrees_of_freedom": freedom,
        "p": float(f"{stats.chi2.sf(statistic, freedom):.2g}"),
    }


def _firsts(counts: dict[str, int]) -> dict[str, int]:
    firsts: collections.Counter[str] = collections.Counter()
    for pair, n in counts.items():
        firsts[pair.split()[0]] += n
    return firsts


def _only(counts: dict[str, int], pairs: Collection[str]) -> dict[str, int]:
    return {pair: n for pair, n in counts.items() if pair in pairs}


def _counts(a: dict[str, int], b: dict[str, int]) -> list[tuple[int, int]]:
    return merged(a, b, sum(a.values()), sum(b.values()))


def _by_first(a: dict[str, int], b: dict[str, int]) -> list[list[tuple[int, int]]]:
    """A table for each first token that both said."""
    firsts = sorted(_firsts(a).keys() & _firsts(b).keys())
    of = lambda counts, first: {p: n for p, n in counts.items() if p.split()[0] == first}  # noqa: E731
    tables = [_counts(of(a, first), of(b, first)) for first in firsts]
    return [t for t in tables if len(t) > 1]


def found(folder: Path) -> dict:
    """Of one run."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    samples = [r for r in records if r["kind"] == "samples"]
    keys = ("how", "same", "of", "first_difference", "distinct")
    return {
        "equal": [{k: r[k] for k in keys if k in r} for r in records if r["kind"] == "equal"],
        "samples": [
            {"of": of, **chi_square(first, other)}
            for of, (first, *others) in _by_vocabulary(samples).items()
            for other in others
        ],
        "in_force": {r["server"]: r["body"]["plain_decode"] for r in records if r["kind"] == "speculation"},
        "windows": measured(folder)["windows"],
        "known": [r | _graphs(folder, r["server"], records) for r in records if r["kind"] == "known"],
        "failed": [r for r in records if r["kind"] == "failed"],
    }


def _graphs(folder: Path, server: str, records: list[dict]) -> dict[str, object]:
    """For which batch sizes graphs were captured, and which of the decode steps in its log ran with one.

    SGLang logs every 40th decode step.
    """
    (setup,) = [r["setup"] for r in records if r["kind"] == "start" and r["server"] == server]
    lines = (folder / f"{server}.log").read_text(errors="replace").splitlines()
    steps = [m for line in lines if (m := DECODE_LINE.search(line))]
    with_graph = [int(m[1]) for m in steps if m[2] == "True"]
    without = [int(m[1]) for m in steps if m[2] == "False"]
    return {
        "graphs_for": list(setup["graph_batch_sizes"]),
        "logged_steps_with_graph": len(with_graph),
        "logged_steps_without_graph": len(without),
        "requests_without_graph": [min(without), max(without)] if without else None,
    }


def _by_vocabulary(samples: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for sample in samples:
        groups.setdefault(sample.get("of", ""), []).append(sample)
    return groups


def page(found: dict[str, dict]) -> Iterator[str]:
    """The section, line by line."""
    for name, run in found.items():
        yield f"### {name}\n"
        yield from (f"- `{server}`: {json.dumps(status)}" for server, status in run["in_force"].items())
        yield ""
        rows = [(e["how"], f"{e['same']} of {e['of']}", _first(e["first_difference"])) for e in run["equal"]]
        head = ("greedy tokens: server and plan", "answers equal", "first difference at token, median")
        yield from table(head, rows) if rows else ()
        for s in run["samples"]:
            yield from _samples(s)
        for k in run.get("known", []):
            shown = {key: value for key, value in k.items() if key not in ("kind", "at")}
            yield "- " + ", ".join(f"{key} {value}" for key, value in shown.items()) + "\n"
        if run["windows"]:
            yield from speed(run["windows"])
        yield from (
            f"- failed: {f.get('part') or f.get('server')}: {f['error'][:200]}" for f in run["failed"]
        )


def _samples(s: dict) -> Iterator[str]:
    of = f"{s['of']}: " if s.get("of") else ""
    drafts = f" ({s['accepted_drafts']} accepted drafts)" if s.get("accepted_drafts") else ""
    yield f"Samples, {of}{' and '.join(s['servers'])}{drafts}, {s['n'][0]} each:\n"
    rows = [("pairs of tokens", s)]
    if "seen_by_one" in s:
        never = ", ".join(f"{server} {n}" for server, n in s["seen_by_one"].items())
        rows += [
            ("the first token", s["first"]),
            ("the second, given the first", s["second"]),
            (f"the same without pairs that one server never says ({never})", s["second_if_seen_by_both"]),
        ]
    head = ("of", "categories", "chi-square", "degrees of freedom", "p")
    keys = ("categories", "chi_square", "degrees_of_freedom", "p")
    yield from table(head, [(what, *(t[key] for key in keys)) for what, t in rows])


def _first(differences: list[int | None]) -> int | None:
    at = sorted(d for d in differences if d is not None)
    return at[len(at) // 2] if at else None


def main() -> None:
    """Every folder."""
    fill(Path(sys.argv[2]), "proof", page(runs(Path(sys.argv[1]), sys.argv[3:], found)))


if __name__ == "__main__":
    main()
