"""What the demo shows in the terminal: the load, the depth, the decisions and their reasons, the table."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from controller.loop import TickResult
from controller.simulation.demo.load import Phase
from controller.simulation.demo.run import Stage

EVENTS = 8
BAR_WIDTH = 48


class DemoView:
    """Keeps the last events and draws the screen."""

    def __init__(self, phases: Sequence[Phase], title: str) -> None:
        self._phases = phases
        self._title = title
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._seen: tuple[str, str] | None = None
        self._arm = ""
        self.log: list[dict[str, Any]] = []
        """Every change of decision, JSON-ready."""

    def note(self, at_s: float, tick: TickResult | None) -> None:
        """Take note of the sidecar's latest turn, when it says something new."""
        if tick is None:
            return
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


def outcome_table(comparison: Sequence[dict[str, Any]], caption: str) -> Table:
    """Output tokens per second and median TPOT, by phase and arm."""
    arms = list(comparison[0]["arms"])
    table = Table(title="Output tok/s and median TPOT (ms): the same arrivals", caption=caption)
    table.add_column("", no_wrap=True)
    for unit in ("tok/s", "ms"):
        for arm in arms:
            style = "bold green" if arm == "governed" else None
            table.add_column(f"{arm.removeprefix('always_')}\n{unit}", justify="right", style=style)
    for row in comparison:
        figures = [row["arms"][arm] for arm in arms]
        speeds = [f"{f['output_tok_s']:.0f}" for f in figures]
        tpots = [f["tpot_ms"]["p50"] for f in figures]
        table.add_row(row["phase"], *speeds, *("-" if t is None else f"{t:.1f}" for t in tpots))
    return table
