"""What the log and the status say must not be misread at three in the morning."""

from __future__ import annotations

import re
from types import SimpleNamespace

import httpx
import pytest

from controller import views
from controller.control_state import Plan
from controller.effect import Effect
from controller.recorders import _differs
from controller.steering import Lease
from controller.wording import ACTIONS, EFFECTS, LEASES, REASONS, numbers
from policies.explain import describe
from policies.types import Action, Arm, Decision, Gear, Probe, Reason, Row, Schedule

SCHEDULE = Schedule((Row(1, Arm(4, Gear.ON)), Row(44, Arm(0, Gear.COLD))))
PROBE = Probe(Arm(2, Gear.ON), 4, 4, 1, 3, 1)


CODE = re.compile(r"[a-z]+_[a-z]+|None|True|False|[{}\[\]]")
"""What no person should have to read."""


@pytest.mark.parametrize(
    ("enum", "words"), [(Reason, REASONS), (Action, ACTIONS), (Lease, LEASES), (Effect, EFFECTS)]
)
def test_every_code_has_words_of_its_own(enum, words):
    """None is missing, none is named twice, and none is a code again."""
    assert set(words) == set(enum)
    assert len(set(words.values())) == len(enum)
    assert not [each for each in words.values() if CODE.search(each)]


GOODPUT = {
    "batch_size": 28,
    "chosen": {"arm": "4", "predicted_tok_s": 6091.142, "se_tok_s": 58.852, "tokens_per_step": 3.0288},
    "runner_up": {"arm": "3", "predicted_tok_s": 5735.82, "se_tok_s": 336.495, "tokens_per_step": 2.7179},
    "acceptance_by_position": [0.7454, 0.7456],
    "acceptance_se": [0.0031, 0.0036],
    "context_tokens_per_request": 334.9,
    "loss_per_rise_from_cold_s": 0.4665,
    "unknown_arms": ["0 cold"],
    "acceptance_alarms": 0,
    "step_time_alarms": 2,
    "acceptance_changes_per_hour": 1.979,
    "probing": {"arm": None, "probes": 7, "probe_s": 0.859906, "decode_s": 15.255},
}


def test_the_numbers_of_the_default_policy_are_sentences_with_units():
    """Rounded as far as they are known; 0.7454 accepted is 74.5 %."""
    shifts = "shifts noticed since the start: acceptance 0, step time 2"
    assert numbers(GOODPUT) == [
        "batch size: 28",
        "expected of depth 4: 6091 ± 59 tok/s while decoding, 3.03 tokens per request and step",
        "next to it, depth 3: 5736 ± 336 tok/s while decoding, 2.72 tokens per request and step",
        "not measured yet: depth 0 cold",
        "drafts accepted, by position, of those whose predecessors were: 1: 74.5 ± 0.3 %, 2: 74.6 ± 0.4 %",
        "context: 335 tokens per request",
        "lost whenever drafting comes back after a cold spell: 0.47 s of decode time",
        f"{shifts}; of acceptance about 2.0 an hour are expected",
        "no probe is planned; 7 probes since the start, 0.9 s of 15 s of decoding",
    ]


@pytest.mark.parametrize(
    ("evidence", "lines"),
    [
        ({}, []),
        (
            {"chosen": {"arm": "4", "predicted_tok_s": None, "se_tok_s": None, "tokens_per_step": None}},
            ["expected of depth 4: not measured yet"],
        ),
        ({"runner_up": None, "unknown_arms": []}, ["no other depth is measured yet"]),
        ({"resting_arms": ["1", "2"]}, ["at rest here after it failed: depth 1, 2"]),
        (
            {"batch_size": 5, "queue_reqs": 0, "queue_long": False, "boundaries": [1, 32]},
            ["batch size: 5", "0 requests wait", "the table changes at batch sizes 32"],
        ),
        (
            {"load_age_s": None, "max_age_s": 5.0, "suspect": ["running is 0, waiting is 9"], "lost_s": 61.2},
            [
                "the load is of an age that is not known; older than 5 s is too old",
                "contradictions: running is 0, waiting is 9",
                "without sound figures for 61 s",
            ],
        ),
        ({"dwell_s": 10.0, "left_s": 3.21}, ["3.2 s are left of the 10 s between two changes"]),
        ({"switches": 20, "window_s": 300.0}, ["20 changes in the last 300 s"]),
        (
            {"restarts": 3, "window_s": 900.0, "left_s": 1800.4},
            ["3 restarts in 900 s; off for another 1800 s"],
        ),
        ({"failures": 2, "fallback": None}, ["failed 2 times in a row; fallback: not yet"]),
        (
            {
                "batch_bucket": 16,
                "arm": "4",
                "before_tok_s": 900.0,
                "after_tok_s": 700.0,
                "relative_error": 0.031,
                "rest_s": 60.0,
            },
            ["from batch size: 16", "depth 4 brought 700 tok/s, 900 before it, ± 3.1 %; it rests for 60 s"],
        ),
        (
            {"tok_s_per_request": {"3": 185.759, "1": 47.785}, "ticks": {"3": 0.93, "1": 4.83}},
            ["seen here, per request: depth 3: 186 tok/s over 0.9 turns; depth 1: 48 tok/s over 4.8 turns"],
        ),
        ({"tok_s_per_request": {}, "ticks": {}}, ["nothing is seen here yet"]),
        ({"depth": 3, "wanted_depth": None}, ["depth: 3, wanted: the deepest"]),
        (
            {"loss_per_rise_from_frozen_s": 0.0382},
            ["lost whenever drafting comes back after a frozen spell: 0.04 s of decode time"],
        ),
        ({"mode": "no_deeper", "actor": ""}, ["ordered: no deeper, by someone"]),
        (
            {"dry_run": True, "would": "govern", "would_schedule": "1+: 4"},
            ["it would govern: 1+: 4"],
        ),
    ],
)
def test_the_numbers_of_guards_and_of_the_other_policies(evidence, lines):
    """Each is a line of its own; what says nothing is left out."""
    assert numbers(evidence) == lines


def test_the_numbers_of_a_policy_from_elsewhere_are_named_by_their_keys():
    """Unit from the end of the key; a known key that means something else is taken as it is."""
    evidence = {
        "chosen": "left",
        "wait_s": 1.5,
        "speed_tok_s": 812.123456,
        "arms": [{"depth": 2, "rate_tok_s": 1.0}, {"depth": 0, "rate_tok_s": None}],
        "sizes": [1, 4],
        "is_sure": False,
        "would_change": ["more load"],
    }
    assert numbers(evidence) == [
        "chosen left",
        "wait 1.5 s",
        "speed 812.123 tok/s",
        "arms depth 2, rate 1 tok/s; depth 0, rate not known",
        "sizes 1, 4",
        "is sure no",
    ]


@pytest.mark.parametrize("policy", ["fixed", "threshold", "native", "goodput", "bandit"])
async def test_explain_has_no_code_in_it_whatever_the_policy(make, policy):
    """Under load, under each order, and with the engine away."""
    bench = await make(policy__name=policy)
    said = []

    async def ask():
        answer = (await bench.api.get("/v1/explain")).json()
        said.extend([*answer["because"], *answer["numbers"], *answer["would_change"]])

    await bench.run(12, batch_size=4)
    await ask()
    for mode in ("off", "on", "native", "no_deeper", "no_shallower"):
        await bench.api.put("/v1/override", json={"mode": mode, "reason": "x", "actor": "ann"})
        await bench.run(2, batch_size=40)
        await ask()
    for path in ("/speculation", "/v1/loads", "/metrics", "/server_info"):
        bench.engine.fail[path] = httpx.ConnectError("refused")
    await bench.run(3, seconds=40)
    await ask()
    file_or_setting = re.compile(r"(engine\.\w+|/\w+)")  # names that must be typed as they are
    assert [line for line in said if CODE.search(file_or_setting.sub("", line))] == []


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


def test_what_nobody_measured_has_no_rate():
    """Idle since it started: a prior is no figure."""
    arm = {"arm": "4", "predicted_tok_s": None, "se_tok_s": None, "tokens_per_step": None}
    evidence = {"chosen": arm, "runner_up": None, "resting_arms": [], "unknown_arms": ["0 warm", "4"]}
    assert describe(evidence, 1, False) == (
        "depth 4 kept at batch size 1: not measured yet, nor is depth 0 warm"
    )


def test_a_choice_that_a_guard_holds_back_does_not_read_as_a_change():
    """`held: changed to depth 4` did."""
    evidence = {
        "chosen": {"arm": "4", "predicted_tok_s": 1651.4, "se_tok_s": 28.6, "prefills_cost": 0.0},
        "runner_up": {"arm": "3", "predicted_tok_s": 1533.9, "se_tok_s": 37.2, "prefills_cost": 0.0},
        "resting_arms": [],
        "unknown_arms": ["0 warm"],
    }
    assert describe(evidence, 4, True) == (
        "depth 4 chosen at batch size 4: 1651 +- 29 tok/s while decoding;"
        " depth 3 is second best: 1534 +- 37 tok/s; not measured yet: depth 0 warm"
    )
    assert describe(evidence, 4, False).startswith("depth 4 kept at batch size 4")
    assert "; depth 3 rests after it failed: 1534" in describe({**evidence, "resting_arms": ["3"]}, 4, True)


@pytest.mark.parametrize(
    ("other_tok_s", "prefills_cost", "said"),
    [
        (1000.0, 0.0, "depth 0 cold is second best: 1000"),
        (1200.0, 0.0, "depth 0 cold may be better, not surely: 1200"),
        (1200.0, 0.15, "depth 0 cold is second best, prefills hold it up more: 1200"),
        (1200.0, 0.05, "depth 0 cold may be better, not surely: 1200"),
    ],
)
def test_an_arm_that_decodes_faster_and_is_not_chosen_has_its_reason(other_tok_s, prefills_cost, said):
    """Its rate while decoding is shown; with 15 % of a step more for prefills 1200 are worth 1043 tok/s."""
    evidence = {
        "chosen": {"arm": "1", "predicted_tok_s": 1100.0, "se_tok_s": 5.0, "prefills_cost": 0.0},
        "runner_up": {
            "arm": "0 cold",
            "predicted_tok_s": other_tok_s,
            "se_tok_s": 5.0,
            "prefills_cost": prefills_cost,
        },
        "resting_arms": [],
        "unknown_arms": [],
    }
    assert said in describe(evidence, 256, False)
