"""How far a benchmark is: a bar on a terminal, else a line per window on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a benchmark is about to do."""

    windows: int
    seconds: float
    """About so many, waits aside."""
    starts: int = 0
    """How often a load is started anew."""
    wait_s: float = 0.0
    """At most so long at each start, until nearly every client has been answered; 0: no such wait."""

    drain_s: float = 0.0
    """At most so long after each window for its last requests to be answered; 0: no such wait."""

    def __str__(self) -> str:
        text = f"{self.windows} windows, about {self.seconds / 60:.1f} min"
        if self.drain_s:
            return f"{text}, and after each a wait for the last answers, at most {self.drain_s:g} s"
        if not (self.starts and self.wait_s):
            return text
        times = "once" if self.starts == 1 else f"{self.starts} times"
        return f"{text}, and {times} a wait until the clients are answered, at most {self.wait_s:g} s"


@contextmanager
def showing(console: Console, errors: Console, plan: Plan) -> Iterator[Tell]:
    """A function to call with every result of the windows planned."""
    if not console.is_terminal:
        yield PlainProgress(plan, lambda line: errors.print(line, markup=False, soft_wrap=True))
        return
    console.print(str(plan), markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("starting", total=plan.windows)
        yield lambda result: progress.update(task, advance=1, description=line_of(result))


class PlainProgress:
    """A line at the start and one per result; for no terminal."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._windows = plan.windows
        self._say = say
        self._done = 0
        say(str(plan))

    def __call__(self, result: Window | Failure) -> None:
        """Say what was found."""
        self._done += 1
        self._say(f"{self._done} of {self._windows}  {line_of(result)}")


def line_of(result: Window | Failure) -> str:
    """A result in a few words."""
    at = "" if result.concurrency is None else f" C={result.concurrency}"
    if isinstance(result, Failure):
        return f"{result.label}{at}: failed"
    if result.away is not None:
        return f"{result.label}{at}: left out, the server was away ({result.away})"
    guess = " (a guess)" if result.stats.guessed else ""
    failed = f", {result.stats.errors} requests failed" if result.stats.errors else ""
    stalled = f", {result.stats.stalled} streams stalled" if result.stats.stalled else ""
    return f"{result.label}{at}: {result.stats.output_tok_s:.0f} tok/s{guess}{failed}{stalled}"
