"""How a benchmark ends when it does not end well: what is said, and what was measured until then."""

from __future__ import annotations

import signal

from controller.bench.outcome import Outcome
from controller.errors import SpecgovError

ELSEWHERE = "repeat the command with another --output, or with --overwrite to replace them"
REPEAT = f"; once that is mended, {ELSEWHERE}"


class BenchError(SpecgovError):
    """Nothing could be measured: the server is away, or cannot do what was asked for."""


class MeasuredBenchError(BenchError):
    """Something was measured, and something went wrong; `outcome` holds it, `None`: nothing was after all."""

    def __init__(self, message: str, outcome: Outcome | None) -> None:
        super().__init__(message)
        self.outcome = outcome


class IncompleteBenchError(MeasuredBenchError):
    """It ended before its last window; `outcome` holds what was measured until then, if anything.

    `kept` says where it is, or why it is nowhere.
    """

    def __init__(self, outcome: Outcome | None, kept: str, why: str, remedy: str = "") -> None:
        found = outcome if outcome is not None and outcome.windows else None
        what = "nothing was measured"
        if found is not None:
            what = f"{windows_of(found)} measured, {kept}"
        super().__init__(f"{why}: {what}{remedy}", found)


class InterruptedBenchError(IncompleteBenchError):
    """Ctrl-C or SIGTERM ended the benchmark."""

    def __init__(self, outcome: Outcome | None, told: signal.Signals, kept: str) -> None:
        found = outcome is not None and bool(outcome.windows)
        remedy = f"; to measure them all, {ELSEWHERE}" if found else ""
        super().__init__(outcome, kept, f"interrupted by {told.name}", remedy)
        self.told = told


class UnansweredBenchError(MeasuredBenchError):
    """It ran to its end, and no request did; `outcome` holds its windows."""

    def __init__(self, outcome: Outcome, kept: str) -> None:
        failed, errors = outcome.failed()
        stalled = sum(window.stats.stalled for window in outcome.windows)
        why = "no token came: does the server run, and are windows (--window) as long as an answer?"
        if stalled:
            why = f"{stalled} streams stalled: mend the server"
        if failed:
            why = f"{failed} failed (the first: {errors[0].text}): mend the server, or what is asked of it"
        super().__init__(f"no request finished in {windows_of(outcome)}, {why}; {kept}{REPEAT}", outcome)


class AwayBenchError(MeasuredBenchError):
    """The server was away in some windows, which are left out."""

    def __init__(self, outcome: Outcome, kept: str) -> None:
        gone = outcome.away()
        super().__init__(
            f"the server was away in {len(gone)} of {windows_of(outcome)} (the first: {gone[0].label}, "
            f"{gone[0].away}): those are in no figure; {kept}{REPEAT}",
            outcome,
        )


def windows_of(outcome: Outcome) -> str:
    """How many windows there are, in words."""
    count = len(outcome.windows)
    return "1 window" if count == 1 else f"{count} windows"
