"""What the demo shows in the terminal: the load, the depth, the decisions and their reasons, the table."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from controller.loop import TickResult
from controller.simulation.arms import Arm
from controller.simulation.demo.load import Phase
from controller.simulation.demo.run import Stage

EVENTS = 8
BAR_WIDTH = 48
LASTING_S = 1.0
"""How long a depth must have been in use to be told."""


class DemoView:
    """Keeps the last events and draws the screen."""

    def __init__(self, phases: Sequence[Phase], title: str) -> None:
        self._phases = phases
        self._title = title
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._seen: tuple[str, str] | None = None
        self._last_s = 0.0
        self.override_s = 0.0
        """Seconds in which an operator's override was in force."""
        self.log: list[dict[str, Any]] = []
        """Every change of decision, JSON-ready."""

    def note(self, at_s: float, tick: TickResult | None) -> None:
        """Take note of the sidecar's latest turn, when it says something new."""
        if tick is None:
            return
        if tick.observation.directive is not None:
            self.override_s += at_s - self._last_s
        self._last_s = at_s
        decision = tick.decision
        schedule = str(decision.schedule) if decision.schedule else ""
        what = (str(decision.reason), schedule or (self._seen[1] if self._seen else ""))
        if what == self._seen:
            return
        self._seen = what
        self._events.append((at_s, f"{decision.reason}: {decision.detail}"))
        self.log.append(
            {
                "at_s": round(at_s, 2),
                "action": str(decision.action),
                "reason": str(decision.reason),
                "detail": decision.detail,
                "schedule": schedule or None,
            }
        )

    def draw(self, at_s: float, stage: Stage) -> RenderableType:
        """The screen at `at_s`."""
        engine, tick = stage.live.engine, stage.last
        phase = next((p for p in self._phases if at_s < p.end_s), None)
        depth = engine.last_arm
        rows = Table.grid(padding=(0, 2))
        rows.add_row("phase", f"{phase.name}, {phase.rate_rps:.1f} requests/s" if phase else "draining")
        rows.add_row("running", Text("#" * min(BAR_WIDTH, engine.running) + f" {engine.running}", "cyan"))
        rows.add_row("waiting", Text("#" * min(BAR_WIDTH, engine.waiting) + f" {engine.waiting}", "magenta"))
        rows.add_row("depth in use", _arm_text(depth))
        in_force = tick.observation.in_force if tick else None
        rows.add_row("schedule", str(in_force) if in_force else "SGLang's own rule")
        events = Table.grid(padding=(0, 1))
        for when, text in self._events:
            events.add_row(f"{when:5.1f} s", text)
        header = Text(f"{at_s:5.1f} s  ", "bold") + Text(self._title, "dim")
        return Group(header, Panel(rows, title="engine (simulated)"), Panel(events, title="decisions"))


def _arm_text(arm: tuple[int, str] | None) -> Text:
    if arm is None:
        return Text("-")
    depth, gear = arm
    return Text(f"{depth}" if depth else f"0, off ({gear})", "green bold" if depth else "yellow bold")


def phase_table(comparison: Sequence[dict[str, Any]]) -> Table:
    """Output tokens per second and median TPOT, by phase and arm."""
    arms = list(comparison[0]["arms"])
    table = Table(title="While each phase's load is offered: output tok/s and median TPOT (ms)")
    table.add_column("", max_width=20)
    for unit in ("tok/s", "ms"):
        _add_arm_columns(table, arms, unit)
    for row in comparison:
        figures = [row["arms"][arm] for arm in arms]
        speeds = [f"{f['output_tok_s']:.0f}" for f in figures]
        tpots = [_figure(f["tpot_ms"]["p50"], 1) for f in figures]
        name = f"{row['phase']}: draining the backlog of the crowd" if row["drains"] else row["phase"]
        table.add_row(name, *speeds, *tpots)
    return table


def whole_table(whole: dict[str, dict[str, Any]]) -> Table:
    """Latencies over all requests, by arm."""
    table = Table(title="Whole run: the same arrivals, all answered")
    table.add_column("", no_wrap=True)
    _add_arm_columns(table, list(whole))
    runs = list(whole.values())
    table.add_row("mean end-to-end latency, s", *(_figure(run["e2e_s"]["mean"], 2) for run in runs))
    table.add_row("p99 end-to-end latency, s", *(_figure(run["e2e_s"]["p99"], 2) for run in runs))
    table.add_row("median TPOT, ms", *(_figure(run["tpot_ms"]["p50"], 1) for run in runs))
    table.add_row("last request answered at, s", *(_figure(run["last_done_s"], 1) for run in runs))
    if any(run["unfinished"] for run in runs):
        table.title = "Whole run: the same arrivals"
        table.add_row("not answered in time", *(str(run["unfinished"]) for run in runs))
    return table


def _add_arm_columns(table: Table, arms: Sequence[str], unit: str = "") -> None:
    for arm in arms:
        style = "bold green" if arm == "governed" else None
        header = "\n".join(filter(None, (arm.removeprefix("always_"), unit)))
        table.add_column(header, justify="right", style=style)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


class PlainProgress:
    """A line per phase, changed schedule and lasting change of the depth in use; for no terminal."""

    def __init__(self, phases: Sequence[Phase], say: Callable[[str], None]) -> None:
        self._phases = list(phases)
        self._say = say
        self._told = 0
        self._schedule: str | None = None
        self._arm: Arm | None = None
        self._seen: tuple[Arm | None, float] = (None, 0.0)

    def update(self, at_s: float, log: Sequence[dict[str, Any]], arm: Arm | None) -> None:
        """Say what is new at `at_s`; `log` is that of the view, `arm` the one of the latest step."""
        while self._phases and self._phases[0].start_s <= at_s:
            phase = self._phases.pop(0)
            self._say(f"{phase.start_s:5.1f} s  phase {phase.name}: {phase.rate_rps:.1f} requests/s")
        for event in log[self._told :]:
            if event["schedule"] not in (None, self._schedule):
                self._schedule = event["schedule"]
                self._say(f"{event['at_s']:5.1f} s  depth by batch size {self._schedule} ({event['reason']})")
        self._told = len(log)
        self._follow(at_s, arm)

    def _follow(self, at_s: float, arm: Arm | None) -> None:
        """Say which depth is in use once it has lasted; a probe or a change back at once is passed over."""
        if arm != self._seen[0]:
            self._seen = (arm, at_s)
        if arm not in (None, self._arm) and at_s - self._seen[1] >= LASTING_S:
            again = "" if self._arm is None else ", by the batch size at hand"
            self._arm = arm
            self._say(f"{at_s:5.1f} s  depth in use for a second now: {_arm_text(arm)}{again}")
