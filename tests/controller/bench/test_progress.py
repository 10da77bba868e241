"""What a benchmark says while it runs, where there is no terminal to draw a bar on."""

from dataclasses import replace

import pytest

from controller.bench.campaign import Failure
from controller.bench.progress import PlainProgress, Plan, line_of
from tests.controller.bench.test_outcome import STATS as ANY
from tests.controller.bench.test_outcome import window as any_window

STATS = replace(ANY, output_tok_s=387.0)
WINDOW = replace(any_window("engine", 4, 387), arm="as-is", stats=STATS)


def test_without_a_terminal_it_says_how_long_and_then_every_result():
    """Twelve windows in 90 s; a failure counts as a result."""
    said = []
    tell = PlainProgress(Plan(12, 90.0), said.append)
    assert said == ["12 windows, about 1.5 min"]
    tell(Failure("depth-4", 16, "not in use"))
    tell(Failure("native", None, "refused"))
    assert said[1:] == ["1 of 12  depth-4 C=16: failed", "2 of 12  native: failed"]


def test_the_wait_for_first_answers_is_announced():
    """How often, and how long at most; an open loop has none."""
    wait = "a wait until the clients are answered, at most 30 s"
    assert str(Plan(12, 90.0, starts=6, wait_s=30.0)) == f"12 windows, about 1.5 min, and 6 times {wait}"
    assert str(Plan(2, 90.0, starts=1, wait_s=30.0)) == f"2 windows, about 1.5 min, and once {wait}"
    assert str(Plan(12, 90.0, starts=6)) == "12 windows, about 1.5 min"


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (WINDOW, "engine C=4: 387 tok/s"),
        (replace(WINDOW, stats=replace(STATS, guessed=True)), "engine C=4: 387 tok/s (a guess)"),
        (replace(WINDOW, stats=replace(STATS, stalled=3)), "engine C=4: 387 tok/s, 3 streams stalled"),
        (replace(WINDOW, stats=replace(STATS, errors=3)), "engine C=4: 387 tok/s, 3 requests failed"),
        (replace(WINDOW, away="refused"), "engine C=4: left out, the server was away (refused)"),
    ],
)
def test_what_makes_a_window_doubtful_is_said_at_once(window, said):
    """A figure without it would be taken for one."""
    assert line_of(window) == said


def test_an_open_loop_may_take_longer_than_its_trace():
    """It waits for the last answers."""
    text = "2 windows, about 1.5 min, and after each a wait for the last answers, at most 60 s"
    assert str(Plan(2, 90.0, drain_s=60.0)) == text
