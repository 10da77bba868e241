"""How far a benchmark is: a bar on a terminal, else a line per window on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from controller.bench.campaign import Failure, Window

Tell = Callable[[Window | Failure], None]


@contextmanager
def showing(console: Console, errors: Console, windows: int, seconds: float) -> Iterator[Tell]:
    """A function to call with every result of the `windows` expected, which may take `seconds` in all."""
    if not console.is_terminal:
        yield PlainProgress(windows, seconds, lambda line: errors.print(line, markup=False, soft_wrap=True))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("starting", total=windows)
        yield lambda result: progress.update(task, advance=1, description=line_of(result))


class PlainProgress:
    """A line at the start and one per result; for no terminal."""

    def __init__(self, windows: int, seconds: float, say: Callable[[str], None]) -> None:
        self._windows = windows
        self._say = say
        self._done = 0
        say(f"{windows} windows, about {seconds / 60:.1f} min")

    def __call__(self, result: Window | Failure) -> None:
        """Say what was found."""
        self._done += 1
        self._say(f"{self._done} of {self._windows}  {line_of(result)}")


def line_of(result: Window | Failure) -> str:
    """A result in a few words."""
    at = "" if result.concurrency is None else f" C={result.concurrency}"
    if isinstance(result, Failure):
        return f"{result.label}{at}: failed"
    return f"{result.label}{at}: {result.stats.output_tok_s:.0f} tok/s"
