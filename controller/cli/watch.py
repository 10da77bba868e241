"""`specgov watch`: the same as `specgov status`, live, with the last minutes as small curves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from controller.cli._common import DEFAULT_URL, Json, TokenFile, Url, call, out, show_json
from controller.cli._exit import attend
from controller.cli._sparkline import sparkline
from controller.cli.operate import late_turn, needs_attention

DEPTH_COLOURS = ("bright_black", "green", "cyan", "blue", "magenta")
LOG_ROWS = 6
WIDEST = 60
BESIDE = 36
"""Columns of a row that are not its curve."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(watch)


def watch(
    *,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Print one look and end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a running sidecar; ends with Ctrl-C.  Exit code of --once and --json as of status."""
    if not (as_json or once):
        _live(url, token_file, every)
        return
    look = _look(url, token_file)
    if as_json:
        show_json(look)
    else:
        out.print(screen(**look, width=out.width))
    if needs_attention(look["status"]):
        attend()


def _look(url: str, token_file: Any) -> dict[str, Any]:
    return {
        "status": call("GET", url, "/v1/status", token_file),
        "history": call("GET", url, "/v1/history", token_file)["samples"],
        "log": call("GET", url, f"/v1/decisions?limit={LOG_ROWS}", token_file)["decisions"],
    }


def _live(url: str, token_file: Any, every_s: float) -> None:
    try:
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(**_look(url, token_file), width=out.width), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def screen(
    status: dict[str, Any], history: list[dict[str, Any]], log: list[dict[str, Any]], *, width: int
) -> RenderableType:
    """One look, for a terminal of `width` columns."""
    curve = max(10, min(WIDEST, width - BESIDE))
    return Group(_head(status), _curves(history, curve), _log(log), *_conditions(status))


def _head(status: dict[str, Any]) -> RenderableType:
    in_use = (status.get("depth") or {}).get("in_use")
    headline, _, why = status["headline"].partition(": ")
    lines = [Text(headline, style=f"bold {_colour(in_use)}"), Text(why)]
    if (status.get("turn") or {}).get("late"):
        lines.append(Text(late_turn(status["turn"]), "yellow"))
    if limit := (status.get("override") or {}).get("limit"):
        lines.append(Text(f"{limit}; specgov override auto ends that"))
    return Panel(Group(*lines), title=f"specgov, mode {status['mode']}", title_align="left")


def _colour(in_use: dict[str, Any] | None) -> str:
    return "white" if in_use is None else DEPTH_COLOURS[min(in_use["depth"], len(DEPTH_COLOURS) - 1)]


def _curves(history: list[dict[str, Any]], width: int) -> RenderableType:
    last = history[-width:]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, values, unit in (
        ("running", [s["running_reqs"] for s in last], "requests"),
        ("waiting", [s["queue_reqs"] for s in last], "requests"),
        ("depth", [s["in_use"] and s["in_use"]["depth"] for s in last], ""),
        ("output", [s["decode_tok_s"] for s in last], "tok/s"),
    ):
        now = values[-1] if values and values[-1] is not None else None
        shown = "unknown" if now is None else f"{now:,.0f} {unit}"
        table.add_row(Text(name, "dim"), Text(sparkline(values, width), "cyan"), Text(shown))
    return Panel(table, title=f"last {len(last)} s", title_align="left")


def _log(log: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in log:
        at = time.strftime("%H:%M:%S", time.localtime(row["at_unix_s"]))
        table.add_row(Text(at, "dim"), Text(row["reason"], "bold"), Text(str(row["body"].get("detail", ""))))
    return Panel(table, title="decisions", title_align="left")


def _conditions(status: dict[str, Any]) -> Iterator[RenderableType]:
    for active in status["conditions"]:
        yield Text(f"! {active['condition']}: {active['message']} ({active['remedy']})", "yellow")
