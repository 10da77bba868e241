"""Pages of docs/results: prose by hand, figures between markers, which are made anew from the raw JSON.

<!-- NAME: begin, made by tests/gpu/... -->
...
<!-- NAME: end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path


def fill(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what stands between the markers of one section; raises `ValueError` when they are not there."""
    text = page.read_text()
    pattern = re.compile(
        rf"(<!-- {re.escape(name)}: begin[^\n]*-->\n).*?(<!-- {re.escape(name)}: end -->)", re.DOTALL
    )
    body = "\n".join(lines).strip("\n")
    new, count = pattern.subn(lambda m: f"{m[1]}\n{body}\n\n{m[2]}", text)
    if count != 1:
        raise ValueError(f"{page} must have one section {name!r} between its markers, got {count}")
    page.write_text(new)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> Iterator[str]:
    """A Markdown table; the first `left` columns are text, the others figures."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "".join(" --- |" if i < left else " ---: |" for i in range(len(head)))
    for row in rows:
        yield "| " + " | ".join("-" if cell is None else str(cell) for cell in row) + " |"
    yield ""


def runs(out: Path, arguments: Iterable[str], measured: Callable[[Path], dict]) -> dict[str, dict]:
    """What each NAME=FOLDER measured, into `out` too; a NAME alone stays as `out` has it."""
    before = json.loads(out.read_text()) if out.exists() else {}
    pairs = [argument.partition("=")[::2] for argument in arguments]
    found = {name: measured(Path(folder)) if folder else before[name] for name, folder in pairs}
    out.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    return found
