"""What the log and the status say must not be misread at three in the morning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from controller import views
from controller.control_state import Plan
from controller.effect import Effect
from controller.recorders import _differs
from policies.explain import describe
from policies.types import Action, Arm, Decision, Gear, Probe, Reason, Row, Schedule

SCHEDULE = Schedule((Row(1, Arm(4, Gear.ON)), Row(44, Arm(0, Gear.COLD))))
PROBE = Probe(Arm(2, Gear.ON), 4, 4, 1, 3, 1)


def decision(reason=Reason.GOODPUT_STAY, schedule=SCHEDULE, probe=None):
    return Decision(Action.GOVERN, reason, "x", schedule, probe)


@pytest.mark.parametrize(
    ("after", "differs"),
    [
        (decision(), False),
        (decision(probe=PROBE), False),
        (decision(Reason.GOODPUT_LEARNING, probe=PROBE), False),
        (decision(Reason.GOODPUT_BETTER, Schedule.constant(Arm(4, Gear.ON))), True),
        (decision(Reason.OVERRIDE), True),
        (Decision(Action.HOLD, Reason.STALE_INPUT, "held"), True),
    ],
)
def test_a_row_is_written_when_the_table_changes_and_not_for_every_probe(after, differs):
    """A probe a second would push a night's switches out of the log."""
    assert _differs(after, decision()) is differs


@pytest.mark.parametrize(
    ("probe", "in_use", "said"),
    [
        (PROBE, 2, "depth 2 in use, a short probe"),
        (PROBE, 4, "depth 4 in use"),
        (None, 2, "depth 2 in use"),
    ],
)
def test_a_probe_in_use_is_called_one(probe, in_use, said):
    """Else `depth 2 in use: depth 4 kept` contradicts itself."""
    turn = SimpleNamespace(
        observation=SimpleNamespace(in_use=Arm(in_use, Gear.ON), batch_size=3),
        effect=SimpleNamespace(effect=Effect.APPLIED),
        in_force=SCHEDULE,
        steered=SimpleNamespace(wanted=Plan(SCHEDULE, probe)),
    )
    assert views._using(turn) == said
    assert views._probing(turn) is ("probe" in said)


def test_a_choice_that_a_guard_holds_back_does_not_read_as_a_change():
    """`held: changed to depth 4` did."""
    evidence = {
        "chosen": {"arm": "4", "predicted_tok_s": 1651.4, "se_tok_s": 28.6},
        "runner_up": {"arm": "3", "predicted_tok_s": 1533.9, "se_tok_s": 37.2},
        "unknown_arms": ["0 warm"],
    }
    assert describe(evidence, 4, True) == (
        "depth 4 chosen at batch size 4: 1651 +- 29 tok/s while decoding;"
        " depth 3 is second best: 1534 +- 37 tok/s; not measured yet: depth 0 warm"
    )
    assert describe(evidence, 4, False).startswith("depth 4 kept at batch size 4")
