"""What a benchmark says while it runs, where there is no terminal to draw a bar on."""

from controller.bench.campaign import Failure
from controller.bench.progress import PlainProgress, Plan


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
