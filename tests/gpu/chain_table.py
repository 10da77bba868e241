"""What plans/chain_verify.py found, from what analyse.py made:  chain_table.py results.json page.md

Sections of the page: `equal` (answers equal and right drafts refused), `servers` (every depth of SGLang's
verify, of the decode kernel and no speculation, by concurrency), `kernels` (milliseconds a layer of the three
kernels that can answer a verify, by heads, tokens per request, context and batch).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from sections import fill, table  # noqa: E402 - the path comes first

KERNELS = ("prefill_kernel", "decode_kernel", "split_kernel")


def equal(results: dict) -> Iterator[str]:
    """A table for each run that asked."""
    for name, plan in results.items():
        if "equal" not in plan:
            continue
        yield f"#### {name}\n"
        rows = [
            (e["server"], e["arm"], e["how"], f"{e['same']} of {e['of']}", e["steps"], refused(e))
            for e in plan["equal"]
        ]
        head = ("server", "depth", "prompts", "answers equal", "verifies", "of these, a draft refused")
        yield from table(head, rows, left=3)


def refused(e: dict) -> str:
    """Verifies that did not accept all."""
    count = e["steps"] - e["steps_with_all_accepted"]
    return f"{count} ({100 * count / e['steps']:.1f} %)" if count else "none"


def servers(results: dict) -> Iterator[str]:
    """Tokens per second and the median step, a table for each run that measured."""
    for name, plan in results.items():
        found = {(r["C"], r["label"]): r for r in plan["summary"]}
        if not found:
            continue
        labels = [label for label in labels_of() if any(key[1] == label for key in found)]
        levels = sorted({c for c, _ in found})
        yield f"#### {name}: output tokens per second\n"
        yield from table(("C", *labels), [(c, *(rate(found, c, label) for label in labels)) for c in levels])
        yield f"#### {name}: median step, ms\n"
        yield from table(("C", *labels), [(c, *(step(found, c, label) for label in labels)) for c in levels])


def step(found: dict, c: int, label: str) -> str | None:
    """The median step, ms."""
    row = found.get((c, label))
    return row and f"{row['step_ms_p50']:.2f}"


def labels_of() -> list[str]:
    """Columns: each depth of SGLang's verify beside the same of ours."""
    return ["plain", *(f"{server}/depth-{depth}" for depth in (1, 2, 4) for server in ("own", "chain"))]


def rate(found: dict, c: int, label: str) -> str | None:
    """Tokens per second, and for the decode kernel how much more than SGLang's verify at that depth."""
    row = found.get((c, label))
    own = found.get((c, label.replace("chain/", "own/")))
    if row is None or not label.startswith("chain/") or own is None:
        return row and f"{row['tok_s']:.0f}"
    return f"{row['tok_s']:.0f} ({100 * (row['tok_s'] / own['tok_s'] - 1):+.0f} %)"


def kernels(results: dict) -> Iterator[str]:
    """All shapes, then how far the outputs are from float32."""
    shapes = [shape for plan in results.values() for shape in plan.get("kernels", [])]
    head = (
        "heads",
        "depth",
        "context",
        "batch",
        "prefill",
        "decode",
        "split",
        "decode/prefill",
        "decode/split",
    )
    order = lambda s: (s["heads"], s["width"], s["context"], s["batch"])  # noqa: E731
    yield from table(head, [kernel_row(s) for s in sorted(shapes, key=order)])
    yield "Largest error against float32 arithmetic:\n"
    contexts = sorted({(s["heads"], s["context"]) for s in shapes})
    rows = [(heads, context, *errors(shapes, heads, context)) for heads, context in contexts]
    yield from table(("heads", "context", "prefill", "decode", "split"), rows)


def kernel_row(shape: dict) -> tuple[object, ...]:
    """Milliseconds, and what the decode kernel takes of the others'."""
    ms = [shape[name].get("ms") for name in KERNELS]
    text = [None if v is None else f"{v:.3f}" for v in ms]
    prefill, decode, split = ms
    shares = [f"{decode / other:.2f}" if decode and other else None for other in (prefill, split)]
    return (shape["heads"], shape["width"] - 1, shape["context"], shape["batch"], *text, *shares)


def errors(shapes: list[dict], heads: str, context: int) -> Iterator[str]:
    """Of each kernel, over the shapes of these heads and this context."""
    mine = [s for s in shapes if (s["heads"], s["context"]) == (heads, context)]
    for name in KERNELS:
        yield f"{max(s[name]['largest_error'] for s in mine if 'largest_error' in s[name]):.5f}"


def main() -> None:
    """All three sections."""
    results, page = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for name, lines in (("equal", equal), ("servers", servers), ("kernels", kernels)):
        fill(page, name, lines(results))


if __name__ == "__main__":
    main()
