"""`specgov watch`: one look, drawn for a terminal."""

import io

import pytest
from rich.console import Console

from controller.cli._sparkline import sparkline
from controller.cli.watch import screen


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0, 0, 0], "▁▁▁"),
        ([7, None, 7], "█ █"),
        ([], ""),
        ([1, 2, 3, 4], "▅▆█"),
    ],
    ids=["rises", "idle", "gap", "empty", "latest"],
)
def test_a_curve_fits_its_line_and_leaves_gaps(values, drawn):
    """From 0 to the greatest of what is shown; unknown is a gap, not a zero."""
    width = max(len(drawn), 1)
    assert sparkline(values, width) == drawn.rjust(width)


def sample(running, depth, tok_s):
    """One sample of the history."""
    in_use = None if depth is None else {"depth": depth, "gear": "on"}
    return {"running_reqs": running, "queue_reqs": 0, "in_use": in_use, "decode_tok_s": tok_s}


STATUS = {
    "headline": "governed (policy), depth 3 in use: stays at depth 3",
    "mode": "auto",
    "depth": {"in_use": {"depth": 3, "gear": "on"}},
    "conditions": [
        {"condition": "stale_input", "message": "the load is [bold]old", "remedy": "look", "attention": True}
    ],
}
DETAIL = "from [red]2[/red] to 3"
LOG = [{"at_unix_s": 1_800_000_000.0, "reason": "goodput_better", "body": {"detail": DETAIL}}]


def drawn(status, history, log, width=100):
    """The screen as text."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(status, history, log, width=width))
    return console.export_text()


def test_one_look_shows_state_curves_log_and_conditions():
    """Everything that is on the status page's first screen."""
    text = drawn(STATUS, [sample(5, 3, 1234.4)], LOG)
    for part in (
        "governed (policy), depth 3 in use",
        "5 requests",
        "1,234 tok/s",
        "goodput_better",
        "stale_input",
    ):
        assert part in text, part


def test_a_late_turn_and_the_limit_of_an_order_are_seen_at_once():
    """As on the status page; without them there is no such line."""
    turn = {"late": True, "age_s": 8.2, "detail": "the engine is slow to answer"}
    text = drawn({**STATUS, "turn": turn, "override": {"limit": "no deeper than depth 2"}}, [], LOG)
    assert "the last turn is 8 s old: the engine is slow to answer" in text
    assert "no deeper than depth 2; specgov override auto ends that" in text
    plain = drawn({**STATUS, "turn": {"late": False}, "override": {"limit": None}}, [], LOG)
    assert "old: the engine" not in plain
    assert "specgov override auto" not in plain


def test_text_from_elsewhere_is_not_markup():
    """Square brackets in a reason are shown as they are."""
    text = drawn(STATUS, [], LOG)
    assert DETAIL in text
    assert "the load is [bold]old" in text


def test_unknown_figures_are_said_to_be_unknown():
    """Not zero."""
    text = drawn(STATUS, [sample(None, None, None)], [])
    assert text.count("unknown") == 3


def test_curves_fit_a_narrow_terminal():
    """At 80 columns no figure is cut off."""
    text = drawn(STATUS, [sample(5, 3, 1234.4)] * 100, LOG, width=80)
    assert "1,234 tok/s" in text
    assert "…" not in text
