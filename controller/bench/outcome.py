"""What a benchmark found, as one record: JSON both ways, and the figures drawn from its windows.  Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from controller.bench.advice import Advice, advise
from controller.bench.arms import parse_arm
from controller.bench.between import Between
from controller.bench.campaign import DepthSample, Failure, Window
from controller.bench.cells import CellCount, merge
from controller.bench.failed import ErrorCount, add_up
from controller.bench.flowing import SlowStart
from controller.bench.offered import Offered
from controller.bench.records import WindowStats
from controller.bench.statistics import Estimate, estimate

SCHEMA = 1
LATE_S = 0.05
"""A load generator that was later than this measured itself."""

MIN_ROUNDS = 2
"""Fewer windows have no spread, so nothing tells a difference from chance."""
MIN_FINISHED = 8
"""Finished requests of one arm at one concurrency, over its windows.

Fewer answers are too few different prompts to stand for a workload's acceptance.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was measured."""

    about: Mapping[str, Any]
    """When, of what, with which options."""
    windows: Sequence[Window]
    depths: Sequence[DepthSample] = ()
    failures: Sequence[Failure] = ()
    plain: Sequence[str] = field(default=())
    """Labels of servers known to run without speculation."""
    ended_by: str | None = None
    """What ended it before its last window: a signal, or a sentence; `None`: it is complete."""
    slow_starts: Sequence[SlowStart] = ()
    """Loads that were measured before they were under way."""
    between: Sequence[Between] = ()
    """What happened outside of windows, and is in no figure."""

    def labels(self) -> list[str]:
        """Every target, in the order first seen."""
        return list(dict.fromkeys(w.label for w in self.windows))

    def measured(self) -> list[Window]:
        """The windows that every figure is drawn from: those in which the server was not away."""
        return [w for w in self.windows if w.away is None]

    def away(self) -> list[Window]:
        """The others."""
        return [w for w in self.windows if w.away is not None]

    @property
    def complete(self) -> bool:
        """Whether every window was measured."""
        return self.ended_by is None and not self.away()

    def estimates(self, value: Callable[[Window], float | None]) -> dict[str, dict[int, Estimate]]:
        """Mean and interval of `value` by label and concurrency; windows without it are left out."""
        values: dict[tuple[str, int], list[float]] = defaultdict(list)
        for window in self.measured():
            found = value(window)
            if window.concurrency is not None and window.phase is None and found is not None:
                values[window.label, window.concurrency].append(found)
        out: dict[str, dict[int, Estimate]] = {label: {} for label in self.labels()}
        for (label, concurrency), each in values.items():
            out[label][concurrency] = estimate(each)
        return out

    def throughput(self) -> dict[str, dict[int, Estimate]]:
        """Output tokens per second as the clients saw them.

        A window in which nothing came counts with 0.  Those whose tokens are a guess are left out where
        others are not (`guessed`).
        """
        guessed = self.guessed()

        def known(window: Window) -> float | None:
            only = (window.label, window.concurrency) in guessed
            return None if window.stats.guessed and not only else window.stats.output_tok_s

        return self.estimates(known)

    def guessed(self) -> set[tuple[str, int | None]]:
        """(label, concurrency) at which every window that saw tokens guesses how many there were."""
        points = self._points(self.measured())
        return {
            point
            for point, windows in points.items()
            if (flowing := [w for w in windows if w.stats.output_tok_s])
            and all(w.stats.guessed for w in flowing)
        }

    def _points(self, windows: Sequence[Window]) -> dict[tuple[str, int | None], list[Window]]:
        """Closed-loop windows by label and concurrency."""
        points: dict[tuple[str, int | None], list[Window]] = defaultdict(list)
        for window in windows:
            if window.concurrency is not None and window.phase is None:
                points[window.label, window.concurrency].append(window)
        return points

    def held_depths(self) -> dict[str, int]:
        """Depth of the labels that hold one: fixed arms, and servers known to be plain (0)."""
        fixed = {w.label: arm.depth for w in self.windows if (arm := parse_arm(w.arm).fixed) is not None}
        return {**dict.fromkeys(self.plain, 0), **fixed}

    def cells(self, label: str, concurrency: int | None = None) -> tuple[CellCount, ...]:
        """The hook's counts of one target, of all its windows or those of one concurrency."""
        mine = (w for w in self.measured() if w.label == label and concurrency in (None, w.concurrency))
        return merge(cell for window in mine for cell in window.cells)

    def batch_sizes(self) -> dict[int, float]:
        """Mean batch size that each concurrency made, by the hook; the concurrency itself where unknown."""
        out: dict[int, float] = {}
        for concurrency in sorted({w.concurrency for w in self.windows if w.concurrency is not None}):
            cells = [c for label in self.labels() for c in self.cells(label, concurrency)]
            steps = sum(c.steps for c in cells)
            out[concurrency] = sum(c.request_steps for c in cells) / steps if steps else float(concurrency)
        return out

    def thin(self) -> dict[tuple[str, int], str]:
        """(label, concurrency) of the closed loop with too little to advise from, and why."""
        return {
            (label, concurrency): reason
            for (label, concurrency), windows in self._points(self.windows).items()
            if concurrency is not None and (reason := _too_little(windows)) is not None
        }

    def advice(self) -> Advice | None:
        """The conclusion; `None` without a closed loop of several arms, or of one that holds a depth.

        A concurrency at which any arm is `thin` is left out for all, since arms are compared there.
        """
        curves = self._solid()
        barred = {label: why for label in curves if (why := self._not_in_schedule(label)) is not None}
        if len(curves) == len(barred) < 2:
            return None
        held = self.held_depths()
        return advise(curves, held, not_in_schedule=barred, batch_sizes=self.batch_sizes())

    def _solid(self) -> dict[str, dict[int, Estimate]]:
        """The throughput that advice may rest on; without arms of which nothing is left."""
        doubtful = {concurrency for _, concurrency in self.thin()}
        solid = {
            label: {c: value for c, value in curve.items() if c not in doubtful and value.mean > 0}
            for label, curve in self.throughput().items()
        }
        return {label: curve for label, curve in solid.items() if curve}

    def _not_in_schedule(self, label: str) -> str | None:
        """Why no schedule can hold this arm; `None`: one can."""
        arm = next(parse_arm(w.arm) for w in self.windows if w.label == label)
        if arm.fixed is not None:
            return None
        if arm.policy is not None:
            return "a policy, which makes its own"
        if arm.native:
            return "SGLang's own rule, which holds no depth"
        return "a server measured as it is"

    def crowded(self) -> list[tuple[Window, float]]:
        """Closed-loop windows in which the server ran more requests than the clients had, and how many.

        By the hook's batch sizes, summed over DP ranks; their median, since an aborted request may linger.
        """
        found = []
        for window in self.measured():
            if window.concurrency is None or window.phase is not None:
                continue
            running = self._running(window)
            if running and median(running) > window.concurrency:
                found.append((window, median(running)))
        return found

    def contaminated(self) -> tuple[int, int]:
        """How many windows the advice rests on, and of how many of them other traffic was a part."""
        levels = {c for curve in self._solid().values() for c in curve} if self.advice() else set()
        crowded = [window for window, _ in self.crowded()]
        used = [w for w in self.measured() if w.phase is None and w.concurrency in levels]
        return len(used), sum(window.concurrency in levels for window in crowded)

    def failed(self) -> tuple[int, tuple[ErrorCount, ...]]:
        """How many requests failed inside windows, of all targets, and why the first ones did."""
        errors = add_up(error for w in self.windows for error in w.errors)
        return sum(w.stats.errors for w in self.windows), errors

    def nothing_finished(self) -> bool:
        """Whether the windows say nothing: no request finished in any, and those that ran failed or stood.

        Answers longer than their window are measured by the tokens that come.
        """
        if any(window.stats.finished for window in self.windows):
            return False
        failed, _ = self.failed()
        stalled = any(window.stats.stalled for window in self.windows)
        return failed > 0 or stalled or not any(window.stats.output_tok_s for window in self.windows)

    def _running(self, window: Window) -> list[int]:
        """Requests running on all DP ranks, at every sample inside the window."""
        sums: dict[float, int] = defaultdict(int)
        for sample in self.depths:
            inside = window.from_s <= sample.at_s <= window.to_s
            if inside and sample.label == window.label and sample.batch_size is not None:
                sums[sample.at_s] += sample.batch_size
        return list(sums.values())

    def late(self) -> list[Window]:
        """Windows in which the load generator could not keep up."""
        return [w for w in self.measured() if (w.client_lag_s or 0) > LATE_S]


def _too_little(windows: Sequence[Window]) -> str | None:
    """Why the windows of one arm and concurrency are too little to advise from; `None`: they are enough."""
    there = [window for window in windows if window.away is None]
    finished = sum(window.stats.finished for window in there)
    known = [window for window in there if not window.stats.guessed]
    if len(known) < MIN_ROUNDS and len(known) < len(there):
        return f"its tokens are a guess: {guess_remedy(there)}"
    if len(there) < MIN_ROUNDS:
        many = "1 window" if len(there) == 1 else "no window"
        remedy = "raise --rounds" if len(there) == len(windows) else "the server was away in others"
        return f"{many}, needs {MIN_ROUNDS}: {remedy}"
    if finished < MIN_FINISHED:
        return f"{finished} finished requests, needs {MIN_FINISHED}: lengthen --window"
    return None


def guess_remedy(windows: Sequence[Window]) -> str:
    """What to do for the tokens of one target to be known."""
    if any(window.stats.untold for window in windows):
        return "the server must report usage (stream_options)"
    return "lengthen --window until requests end in it"


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The JSON form."""
    advice = outcome.advice()
    return {
        "schema": SCHEMA,
        "complete": outcome.complete,
        "ended_by": outcome.ended_by,
        "about": dict(outcome.about),
        "plain": list(outcome.plain),
        "windows": [asdict(w) for w in outcome.windows],
        "depths": [asdict(d) for d in outcome.depths],
        "failures": [asdict(f) for f in outcome.failures],
        "slow_starts": [asdict(s) for s in outcome.slow_starts],
        "failed_requests": {
            "in_windows": outcome.failed()[0],
            "between_windows": sum(b.failed for b in outcome.between),
        },
        "errors": [asdict(error) for error in outcome.failed()[1]],
        "between": [asdict(b) for b in outcome.between],
        "crowded": [
            {"label": w.label, "concurrency": w.concurrency, "round": w.round, "running": running}
            for w, running in outcome.crowded()
        ],
        "advice": None if advice is None else asdict(advice),
        "not_advised_from": [
            {"label": label, "concurrency": concurrency, "reason": reason}
            for (label, concurrency), reason in outcome.thin().items()
        ],
    }


def from_json(data: Mapping[str, Any]) -> Outcome:
    """An outcome read back; raises `ValueError` for another schema.  The advice is drawn anew."""
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA}, got {data.get('schema')!r}")
    return Outcome(
        about=data["about"],
        windows=[_window(w) for w in data["windows"]],
        depths=[DepthSample(**d) for d in data["depths"]],
        failures=[Failure(**{**f, "errors": _errors(f)}) for f in data["failures"]],
        plain=tuple(data["plain"]),
        ended_by=data.get("ended_by"),
        slow_starts=[SlowStart(**s) for s in data["slow_starts"]],
        between=[Between(**{**b, "errors": _errors(b)}) for b in data["between"]],
    )


def _window(data: Mapping[str, Any]) -> Window:
    stats, cells = WindowStats(**data["stats"]), tuple(CellCount(**c) for c in data["cells"])
    offered = None if data["offered"] is None else Offered(**data["offered"])
    parts = {"stats": stats, "cells": cells, "errors": _errors(data), "offered": offered}
    return Window(**{**data, **parts})


def _errors(data: Mapping[str, Any]) -> tuple[ErrorCount, ...]:
    return tuple(ErrorCount(**error) for error in data["errors"])
