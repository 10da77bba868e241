"""Outcome, cost profile, report: from windows of known figures."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from controller.bench import report
from controller.bench.campaign import DepthSample, Failure, Window
from controller.bench.cells import CellCount, difference
from controller.bench.cost_profile import cost_profile
from controller.bench.failed import ErrorCount
from controller.bench.flowing import SlowStart
from controller.bench.offered import Offered
from controller.bench.outcome import Outcome, from_json, to_json
from controller.bench.plots import _curves, draw
from controller.bench.records import WindowStats
from controller.bench.statistics import Estimate
from controller.simulation.cost_profile import parse_profile

STATS = WindowStats(2.0, 100.0, 5, 0, 0.01, 0.02, 0.005, 0.006, 0.005, 0.009, 1.0, 1.5, 0.005, 0.006, None)


def window(label, concurrency, tok_s, *, number=0, cells=(), itl_s=0.005, phase=None, lag_s=0.0):
    """One window."""
    stats = replace(STATS, output_tok_s=tok_s, itl_p50_s=itl_s)
    arm = label if label != "plain" else "as-is"
    return Window(
        label, "engine", arm, concurrency, number, phase, 0.0, 2.0, stats, None, tuple(cells), lag_s
    )


def cell(batch, depth, gear, *, ms=10.0, steps=100):
    """100 steps of `ms` at this batch size."""
    return CellCount(
        batch,
        depth,
        gear,
        steps,
        steps * batch,
        steps * batch,
        steps,
        steps * ms / 1e3,
        steps * batch,
        steps * batch * 300,
    )


WINDOWS = [
    window("depth-2", 1, 340, cells=[cell(1, 2, "on", ms=6.5)]),
    window("depth-2", 1, 346, number=1, cells=[cell(1, 2, "on", ms=6.7)]),
    window("depth-2", 64, 5600, cells=[cell(48, 2, "on", ms=22.0)]),
    window("off-cold", 1, 200, cells=[cell(1, 0, "cold", ms=4.9)]),
    window("off-cold", 64, 7800, cells=[cell(48, 0, "cold", ms=6.4)]),
    window("plain", 1, 206, itl_s=0.0048),
    window("plain", 64, 7843, itl_s=0.0063),
]
OUTCOME = Outcome({"sglang_version": "0.5.17", "model": "m"}, WINDOWS, plain=("plain",))
TWICE = replace(OUTCOME, windows=WINDOWS * 2)
"""Two rounds of 5 requests at least: enough to advise from."""


def test_json_gives_the_outcome_back():
    """Everything that the figures need survives the file."""
    full = replace(
        TWICE,
        windows=[replace(w, errors=(ErrorCount("HTTP 503", 2),)) for w in TWICE.windows],
        depths=[DepthSample(1.0, "depth-2", 2, "on", 3)],
        failures=[Failure("native", 4, "no", (ErrorCount("HTTP 500", 1),))],
        slow_starts=[SlowStart("engine", 64, 30.0, clients=64, answered=3)],
    )
    back = from_json(json.loads(json.dumps(to_json(full))))
    assert back.throughput() == full.throughput()
    assert back.depths == full.depths
    assert back.failures == full.failures
    assert back.slow_starts == full.slow_starts
    assert back.windows == full.windows
    assert back.advice() == full.advice() is not None


def test_another_schema_is_refused():
    """A file of another format is not guessed at."""
    with pytest.raises(ValueError, match="schema must be 1, got 9"):
        from_json({"schema": 9})


def test_windows_of_one_arm_and_concurrency_are_one_estimate():
    """340 and 346: mean 343 of two windows."""
    found = OUTCOME.throughput()["depth-2"][1]
    assert (found.mean, found.n) == (343, 2)


def test_held_depths_are_those_of_fixed_arms_and_of_plain_servers():
    """A governed or unknown server holds none."""
    assert OUTCOME.held_depths() == {"plain": 0, "depth-2": 2, "off-cold": 0}


def test_the_profile_is_one_that_the_simulator_reads():
    """Depth 2 at batch size 1: (6.5 + 6.7) / 2 ms; off-cold is plain decoding; plain from its streams."""
    profile = cost_profile(OUTCOME, "mine")
    assert profile["step_ms"]["depth_2"] == {"1": 6.6, "48": 22.0}
    assert profile["step_ms"]["depth_0_plain_decode"] == {"1": 4.9, "48": 6.4}
    assert profile["step_ms"]["plain"] == {"1": 4.8, "64": 6.3}
    assert profile["context"] == {"per_request_tokens": 300.0}
    assert parse_profile(profile).depths == (2,)


@pytest.mark.parametrize(
    ("status", "row"),
    [({"in_force": True}, "off_warm"), (None, "off_warm"), ({"in_force": False}, "depth_0")],
)
def test_off_and_warm_is_sglangs_own_only_where_plain_decoding_is_not_in_force(status, row):
    """The same 4.9 ms at batch size 1, in the row that says what was measured."""
    windows = [replace(w, label="off-warm") if w.label == "off-cold" else w for w in OUTCOME.windows]
    outcome = replace(OUTCOME, windows=windows, about={**OUTCOME.about, "plain_decode": status})
    assert cost_profile(outcome, "mine")["step_ms"][row] == {"1": 4.9, "48": 6.4}


def test_a_profile_without_step_times_is_none():
    """Unknown is not a profile, and a server without speculation alone has nothing to replay."""
    plain = [w for w in WINDOWS if w.label == "plain"]
    assert cost_profile(replace(OUTCOME, windows=plain), "x") is None
    assert cost_profile(Outcome({}, [window("native", 1, 100)]), "x") is None


def test_counters_that_went_back_are_an_error():
    """The engine restarted inside the window: the difference means nothing."""
    cell_json = {
        "batch_bucket": 1,
        "depth": 2,
        "gear": "on",
        "request_steps": 1,
        "tokens": 1,
        "timed_steps": 1,
        "timed_seconds": 0.1,
        "timed_request_steps": 1,
        "timed_context_tokens": 1,
    }
    states = [{"telemetry": [{"cells": [{**cell_json, "steps": n}]}]} for n in (5, 2)]
    with pytest.raises(ValueError, match="engine restarted"):
        difference(*states)


def test_the_report_says_crossover_schedule_and_worth():
    """ln(343/206) = 0.510, ln(5600/7843) = -0.337: 64^(0.510/0.847) = 12.2."""
    text = list(report.sentences(TWICE))
    assert text[0] == "Fastest: depth-2 at 1 requests at once."
    assert text[1].startswith("No fastest at 64 requests at once: plain and off-cold are within 1 %, or ")
    assert text[2] == "Speculation stops paying at about 12 requests at once."
    assert text[3].startswith("Schedule by batch size: 1+: depth-2, ")
    assert text[4] == "Not in the schedule: plain (a server measured as it is)."
    assert any(line.startswith("Against depth-2 alone it is worth +18.0 %") for line in text)


def test_doubtful_figures_are_called_doubtful():
    """Windows without a token, loads that were not under way, arms that failed: each is said."""
    empty = replace(window("depth-2", 1, 0.0), stats=replace(STATS, output_tok_s=0.0))
    outcome = Outcome(
        {},
        [empty],
        failures=[Failure("native", 4, "refused", (ErrorCount("HTTP 500", 7),)), Failure("a", None, "no")],
        slow_starts=[SlowStart("engine", 64, 30.0, clients=64, answered=3)] * 2,
    )
    assert list(report.warnings(outcome)) == [
        (
            "Measured before the load was under way, since the server did not answer: "
            "engine for 30 s at C=64 (3 of 64 clients had been answered)."
        ),
        "No token came in 1 window, which counts with 0 tokens/s (depth-2 at C=1).",
        "native at C=4: refused; requests failed: 7 times 'HTTP 500'",
        "a: no",
    ]


def test_a_server_that_fails_is_not_said_to_need_longer_windows():
    """Two windows, one without a token: the errors are the reason, by target, with their counts."""
    errors = (ErrorCount("HTTP 503", 2), ErrorCount("HTTP 500", 1))
    stats = replace(STATS, errors=4)
    windows = [
        replace(window("depth-2", 1, 100), stats=stats, errors=errors),
        replace(window("depth-2", 1, 0.0), stats=replace(stats, output_tok_s=0.0), errors=errors),
        window("off-cold", 1, 100),
    ]
    (said,) = report.warnings(Outcome({}, windows))
    assert said == (
        "depth-2: 8 requests failed (4 times 'HTTP 503', 2 times 'HTTP 500', 2 with other texts); "
        "1 of its 2 windows hold no token for that; a client pauses 0.2 s after each, so that up to 0.4 of 1 "
        "were not at the server."
    )


@pytest.mark.parametrize(
    ("finished", "errors", "tok_s", "nothing"),
    [(0, 3, 0.0, True), (0, 0, 0.0, True), (0, 3, 5.0, True), (0, 0, 5.0, False), (1, 3, 5.0, False)],
)
def test_nothing_finished_where_no_request_did_unless_tokens_flow_without_an_error(
    finished, errors, tok_s, nothing
):
    """Answers longer than the window are measured by their tokens; failed ones are none."""
    stats = replace(STATS, finished=finished, errors=errors, output_tok_s=tok_s)
    assert Outcome({}, [replace(window("depth-2", 1, 0), stats=stats)]).nothing_finished() is nothing


@pytest.mark.parametrize(
    ("untold", "remedy"),
    [(5, "the server must report usage (stream_options)"), (0, "lengthen --window until requests end in it")],
)
def test_guessed_tokens_give_no_advice_and_are_marked(untold, remedy):
    """400 told of one server, 387 guessed of the other, of which the truth may be four times that."""
    guess = replace(
        window("depth-2", 4, 0), stats=replace(STATS, output_tok_s=387.0, guessed=True, untold=untold)
    )
    outcome = Outcome({}, [guess, window("off-cold", 4, 400)] * 2)
    assert outcome.advice() is None
    assert list(report.left_out(outcome)) == [
        f"No advice, for want of data: C=4 (depth-2: its tokens are a guess: {remedy})."
    ]
    text = shown(report.throughput_table(outcome), 80) + shown(report.latency_table(outcome), 80)
    assert "387 ±0?" in text
    assert "400 ±0 " in text
    assert "5.0/6.0?" in text
    (said,) = report.warnings(outcome)
    assert "(depth-2 at C=4): each was taken for one" in said
    assert said.endswith(f"; {remedy}.")


def test_the_remedy_for_guesses_is_each_servers_own():
    """One never tells, of the other no request ended."""
    stats = replace(STATS, output_tok_s=100.0, guessed=True)
    windows = [
        replace(window("depth-2", 4, 0), stats=replace(stats, untold=5)),
        replace(window("plain", 4, 0), stats=stats),
    ]
    one, other = report.warnings(Outcome({}, windows))
    assert "(depth-2 at C=4)" in one
    assert one.endswith("the server must report usage (stream_options).")
    assert "(plain at C=4)" in other
    assert other.endswith("lengthen --window until requests end in it.")


AWAY = replace(window("depth-2", 64, 158, number=1), away="120 connections were refused")


def test_a_window_in_which_the_server_was_away_is_in_no_figure():
    """479 and 478 without it; it is told, and the outcome is not complete."""
    rest = [window("depth-2", 64, 479), window("depth-2", 64, 478, number=2)] + [window("plain", 64, 431)] * 3
    outcome = Outcome({}, [*rest, AWAY], plain=("plain",))
    found = outcome.throughput()["depth-2"][64]
    assert (found.mean, found.n) == (478.5, 2)
    assert outcome.advice().best == {64: ("depth-2",)}
    assert outcome.complete is False
    assert to_json(outcome)["complete"] is False
    assert next(report.warnings(outcome)) == (
        "The server was away in 1 window, left out of every figure: "
        "depth-2 at C=64, round 2 (120 connections were refused)."
    )
    assert from_json(json.loads(json.dumps(to_json(outcome)))).windows == outcome.windows


def test_an_arm_whose_server_was_away_too_often_gives_no_advice_at_that_load():
    """One window is left; with none left the other arm must not win by default."""
    beside = [window("off-cold", 64, 400)] * 2
    one = Outcome({}, [window("depth-2", 64, 479), AWAY, *beside])
    none = Outcome({}, [AWAY, AWAY, *beside])
    assert one.thin() == {("depth-2", 64): "1 window, needs 2: the server was away in others"}
    assert none.thin() == {("depth-2", 64): "no window, needs 2: the server was away in others"}
    assert one.advice() is None
    assert none.advice() is None


def test_a_window_in_which_nothing_came_counts_with_0():
    """The server stood for one of two windows: half of 800, not 800."""
    outcome = Outcome({}, [window("depth-2", 8, 800), window("depth-2", 8, 0.0, number=1)])
    assert outcome.throughput()["depth-2"][8].mean == 400.0
    assert list(report.warnings(outcome)) == [
        "No token came in 1 window, which counts with 0 tokens/s (depth-2 at C=8)."
    ]


def test_an_arm_that_never_brought_a_token_is_no_part_of_the_advice():
    """A ratio to 0 says nothing, though whole answers of other clients may have ended."""
    windows = [window("depth-2", 8, 0.0), window("off-cold", 8, 400), window("depth-1", 8, 300)] * 2
    assert Outcome({}, windows).advice().best == {8: ("off-cold",)}


def test_streams_that_stand_are_told_and_are_no_answers():
    """4 in each of two windows, tokens or not; 3 requests never begun."""
    stats = replace(STATS, finished=0, stalled=4)
    windows = [replace(window("depth-2", 4, 88), stats=stats)] * 2
    windows.append(replace(window("off-cold", 4, 0), stats=replace(STATS, waiting=3)))
    outcome = Outcome({}, windows)
    assert list(report.warnings(outcome)) == [
        (
            "8 streams stalled (depth-2 at C=4): begun, they had brought nothing for 2 s or more when their "
            "window ended, and are in its figures as they are."
        ),
        "3 requests waited a whole window for their first token (off-cold at C=4).",
    ]
    assert Outcome({}, windows[:2]).nothing_finished()


def test_a_trace_that_the_server_could_not_follow_is_told_with_what_was_offered():
    """8000 tokens in 10 s."""
    asked = Offered(200, 8000, 10.0, answered_after_s=39.5, unanswered=0, behind=True)
    overrun = replace(window("engine", None, 159, phase="trace"), arm="as-is", offered=asked)
    behind = (
        "the server fell behind: 800 tokens/s offered, 159 delivered; "
        "the last request was answered 39.5 s after the last arrival"
    )
    outcome = Outcome({}, [overrun, replace(overrun, offered=replace(asked, unanswered=3), round=1)])
    assert list(report.warnings(outcome)) == [
        f"engine in trace, round 1: {behind}.",
        f"engine in trace, round 2: {behind}; 3 were still not answered then, and dropped.",
    ]
    text = shown(report.phase_table(outcome), 80)
    assert "offered / s" in text
    assert "800.0" in text
    assert list(report.warnings(Outcome({}, [replace(overrun, offered=replace(asked, behind=False))]))) == []
    assert from_json(json.loads(json.dumps(to_json(outcome)))).windows == outcome.windows


def test_gaps_that_only_a_late_client_sees_are_no_figure():
    """Events read at once are microseconds apart."""
    windows = [window("depth-2", 4, 100, itl_s=0.00002)]
    text = shown(report.latency_table(Outcome({}, windows)), 80)
    assert "0.0/9.0" not in text


def test_a_phase_named_like_a_number_is_no_concurrency():
    """The column says which of the two it is."""
    text = shown(report.latency_table(Outcome({}, [window("depth-2", 8, 100, phase="4")])), 80)
    assert " phase " in text
    assert " C " not in text


def test_a_guess_does_not_go_into_a_mean_with_what_is_known():
    """1 token an event was taken for lack of better in the first window; alone, it is all there is."""
    guess = replace(window("depth-2", 4, 100), stats=replace(STATS, output_tok_s=25.0, guessed=True))
    found = Outcome({}, [guess, window("depth-2", 4, 100), replace(guess, concurrency=8)]).throughput()
    assert {c: estimate.mean for c, estimate in found["depth-2"].items()} == {4: 100.0, 8: 25.0}


def test_whole_answers_longer_than_their_window_are_warned_of():
    """They count when they end; where clients stream, tokens count when they come."""
    whole = replace(STATS, ttft_p50_s=None, itl_p50_s=None, e2e_p50_s=13.0)
    windows = [replace(window("depth-2", 256, 100), stats=whole), window("off-cold", 256, 100)]
    (said,) = report.warnings(Outcome({}, windows))
    assert said.startswith("Windows are shorter than the whole answers in them (depth-2 at C=256), which")


def test_tokens_that_are_short_or_guessed_are_warned_of_with_their_windows():
    """3 of the 10 finished answers of two windows, and one window of guesses."""
    windows = [
        replace(window("depth-2", 4, 100), stats=replace(STATS, short=3)),
        replace(window("off-cold", 4, 100), stats=replace(STATS, guessed=True)),
    ]
    short, guessed = report.warnings(Outcome({}, windows))
    assert short.startswith("3 of 10 finished answers were shorter than asked for (depth-2 at C=4): arms did")
    assert guessed.startswith("The server did not say how many tokens the events of a stream brought (off-")


def test_late_windows_are_named_worst_first_and_at_most_five():
    """Seven of eight: 600 ms at C=64 first, of two windows there the worse; two more are counted."""
    windows = [window("depth-2", 2**n, 100, lag_s=0.1 * n) for n in range(7)]
    windows.append(window("depth-2", 64, 100, number=1, lag_s=0.3))
    windows.append(replace(window("off-cold", 4, 100, phase="calm", lag_s=0.55), label="off-cold"))
    (said,) = report.warnings(Outcome({}, windows))
    assert said.startswith(
        "The load generator was late in 8 of 9 windows, worst first: depth-2 at C=64 (600 ms), "
        "off-cold in calm (550 ms), depth-2 at C=32 (500 ms), depth-2 at C=16 (400 ms), "
        "depth-2 at C=8 (300 ms) and 2 more."
    )


def test_advice_from_contaminated_windows_begins_by_saying_so():
    """Two of the four windows at C=4 saw more than 4 requests; the warning itself is of those before it."""
    windows = [window("depth-2", 4, 400), window("off-cold", 4, 300)] * 2
    outcome = Outcome({}, windows, depths=[DepthSample(1.0, "depth-2", 2, "on", 6)])
    assert next(report.sentences(outcome)) == (
        "This advice rests on contaminated windows: other traffic was a part of 2 of the 4 that it uses."
    )
    (said,) = report.contamination(outcome)
    assert "in 2 of 4 windows (about 6 with 4 clients): other traffic" in said
    assert not any("other traffic" in text for text in report.warnings(outcome))
    assert to_json(outcome)["crowded"][0] == {
        "label": "depth-2",
        "concurrency": 4,
        "round": 0,
        "running": 6,
    }


def test_one_concurrency_has_no_crossover_to_speak_of():
    """Best is said once, and a schedule of one arm is not compared with itself."""
    windows = [window("depth-2", 64, 400), window("off-cold", 64, 500)] * 2
    assert list(report.sentences(Outcome({}, windows))) == [
        "Fastest: off-cold at 64 requests at once.",
        "One concurrency (64) shows no crossover of speculation with none.",
        "Schedule by batch size: 64+: off-cold. Below 64 nothing is known: measure lower concurrencies.",
        (
            "Against depth-2 alone it is worth +25.0 % "
            "(+25.0 to +25.0 % at 95 %, geometric mean over concurrencies)."
        ),
    ]


def rounds(label, concurrency, *tok_s):
    """One window of each."""
    return [window(label, concurrency, value, number=i) for i, value in enumerate(tok_s)]


def test_a_crossover_behind_a_tie_is_told_as_a_range():
    """Twice as fast at 4, half at 64, and 100 +- 10 for both at 16."""
    windows = [
        *(w for c, share in ((4, 2), (64, 0.5)) for w in rounds("depth-2", c, 100 * share, 100 * share)),
        *(w for c in (4, 64) for w in rounds("off-cold", c, 100, 100)),
        *rounds("depth-2", 16, 91, 110),
        *rounds("off-cold", 16, 90, 110),
    ]
    text = list(report.sentences(Outcome({}, windows)))
    assert text[2] == (
        "Speculation stops paying between 4 and 64 requests at once: at 16 it is not told apart from none "
        "(more --rounds tell more)."
    )
    assert not any("about" in line for line in text)
    (found,) = to_json(Outcome({}, windows))["advice"]["undecided"]
    assert (found["low"], found["high"]) == (4, 64)


def test_a_worth_that_chance_may_have_made_is_said_to_be_none():
    """100 and 100 beside 90 and 106: ln 100/98, errors 0 and 8 of 98, t of 2 degrees 4.303: from -28.2 %."""
    windows = rounds("off-cold", 4, 100, 100) + rounds("depth-2", 4, 90, 106)
    assert list(report.sentences(Outcome({}, windows)))[-1] == (
        "Against depth-2 alone no worth is told apart from 0: +2.0 % "
        "(-28.2 to +45.0 % at 95 %, geometric mean over concurrencies)."
    )


@pytest.mark.parametrize(
    ("guessed", "costs"),
    [
        (True, "tokens of a stream may never be told, and are then a guess"),
        (False, "the tokens of every window were told all the same"),
    ],
)
def test_tokens_are_called_a_guess_only_where_a_window_guessed(guessed, costs):
    """A server that refuses `stream_options` may tell its tokens all the same."""
    one = window("engine", 4, 100)
    outcome = Outcome(
        {"refused": {"engine": ["stream_options"]}}, [replace(one, stats=replace(STATS, guessed=guessed))]
    )
    assert next(report.warnings(outcome)) == (
        f"engine refuses stream_options (HTTP 400 or 422) and was asked without: {costs}."
    )


AS_IT_IS = [replace(window("engine", c, 60 * c), arm="as-is") for c in (4, 16)] * 2
OTHER = [replace(window("other", c, 40 * c), arm="as-is") for c in (4, 16)] * 2


@pytest.mark.parametrize(
    ("plain", "wanting"),
    [
        (
            (),
            (
                "an arm known to draft (depth-N) and "
                "one known not to (off-cold, off-warm, or a server of --plain)"
            ),
        ),
        (("other",), "an arm known to draft (depth-N)"),
    ],
)
def test_servers_as_they_are_have_a_fastest_and_are_told_why_no_schedule(plain, wanting):
    """240 against 160, 960 against 640; what was not compared is not said to have no crossover."""
    outcome = Outcome({}, AS_IT_IS + OTHER, plain=plain)
    assert list(report.sentences(outcome)) == [
        "Fastest: engine at 4 and 16 requests at once.",
        f"Where speculation stops paying was not measured: it takes {wanting}.",
        (
            "No schedule, which takes arms that hold a depth: engine (a server measured as it is), "
            "other (a server measured as it is)."
        ),
    ]
    assert to_json(outcome)["advice"]["best"] == {4: ("engine",), 16: ("engine",)}


def test_arms_that_make_their_own_schedule_may_be_the_fastest_and_are_no_part_of_it():
    """A policy with 700 and SGLang's own rule with 500, beside 400 and 300."""
    tok_s = {"depth-2": 400, "off-cold": 300, "policy:goodput": 700, "native": 500}
    outcome = Outcome({}, [window(label, 4, value) for label, value in tok_s.items()] * 2)
    text = list(report.sentences(outcome))
    assert text[:2] == [
        (
            "Do not run the schedule below: run policy:goodput, which is worth +75.0 % "
            "(+75.0 to +75.0 % at 95 %, geometric mean over concurrencies) against it."
        ),
        "Fastest: policy:goodput at 4 requests at once.",
    ]
    assert (
        "Not in the schedule: policy:goodput (a policy, which makes its own), "
        "native (SGLang's own rule, which holds no depth)."
    ) in text
    assert outcome.advice().schedule == ((4, "depth-2"),)


def test_a_server_alone_is_told_that_it_is_compared_with_nothing():
    outcome = Outcome({}, AS_IT_IS)
    assert outcome.advice() is None
    assert list(report.left_out(outcome)) == [
        (
            "No advice: engine was all that brought tokens, with nothing to compare it with "
            "(--arms, --plain or --beside add that)."
        )
    ]


def test_a_range_is_said_to_hold_no_crossover_only_where_two_curves_were_compared_in_it():
    """Depth 2 is ahead at 4 and 16."""
    windows = [window("depth-2", c, 50 * c) for c in (4, 16)] + [
        window("off-cold", c, 40 * c) for c in (4, 16)
    ]
    text = list(report.sentences(Outcome({}, windows * 2)))
    assert text[1] == "Between 4 and 16 requests at once no crossover of speculation with none is clear."
    text = list(report.sentences(Outcome({}, windows[:2] * 2)))
    assert text[0] == (
        "Where speculation stops paying was not measured: it takes "
        "one known not to (off-cold, off-warm, or a server of --plain)."
    )


def test_one_round_gives_no_advice_and_says_why():
    """A single window has no spread: nothing tells a difference from chance."""
    single = replace(OUTCOME, windows=[window("depth-2", 4, 400), window("off-cold", 4, 300)])
    assert single.advice() is None
    assert list(report.left_out(single)) == [
        "No advice, for want of data: C=4 (depth-2: 1 window, needs 2: raise --rounds)."
    ]


def test_a_concurrency_with_few_finished_requests_is_left_out_of_the_advice():
    """Two windows of 3 at C=1 for one arm: 6 of 8; C=64 stays."""
    few = [replace(w, stats=replace(w.stats, finished=3)) for w in [window("off-cold", 1, 200)] * 2]
    rest = [window("depth-2", 1, 340), window("depth-2", 64, 5600), window("off-cold", 64, 7800)] * 2
    outcome = replace(OUTCOME, windows=[*few, *rest], plain=())
    assert outcome.advice().best == {64: ("off-cold",)}
    (said,) = report.left_out(outcome)
    assert said.startswith("The advice leaves out some concurrencies, for want of data: C=1 (off-cold: 6 ")
    assert to_json(outcome)["not_advised_from"] == [
        {
            "label": "off-cold",
            "concurrency": 1,
            "reason": "6 finished requests, needs 8: lengthen --window",
        }
    ]


@pytest.mark.parametrize(("rounds", "said"), [(1, False), (2, True)])
def test_the_title_speaks_of_intervals_only_where_there_are_some(rounds, said):
    """One window has none."""
    outcome = replace(OUTCOME, windows=[window("depth-2", 4, 400)] * rounds)
    assert ("interval" in shown(report.throughput_table(outcome), 80)) is said


def shown(what, width):
    """As a console of this width shows it."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_narrow_console_cuts_neither_titles_nor_columns():
    """80 columns, four-digit latencies; a table of one short column."""
    stats = replace(STATS, ttft_p99_s=12.345, e2e_p50_s=12.3, e2e_p99_s=45.6, finished=12345, errors=1234)
    windows = [replace(window("policy:goodput", 128, 400), stats=stats)]
    text = shown(report.latency_table(Outcome({}, windows)), 80)
    for whole in ("policy:goodput", "128", "10.0/12345", "end to end", "12300/45600", "done", "failed"):
        assert whole in text
    assert "12345" in text
    assert "1234" in text
    assert shown(report.throughput_table(Outcome({}, [window("plain", 1, 1)])), 80).startswith(
        "Output tokens / s\n"
    )


@pytest.mark.parametrize(("per_rank", "doubtful"), [(2, False), (3, True)])
def test_requests_that_are_not_the_benchmarks_are_warned_of(per_rank, doubtful):
    """4 clients, two DP ranks: 2 + 2 running are theirs, 3 + 3 are not."""
    samples = [DepthSample(at_s, "depth-2", 2, "on", per_rank) for at_s in (0.5, 0.5, 1.0, 1.0)]
    outcome = Outcome({}, [window("depth-2", 4, 400)], depths=samples)
    text = "\n".join(report.contamination(outcome))
    assert ("in 1 of 1 windows (about 6 with 4 clients): other traffic" in text) is doubtful
    assert bool(text) is doubtful


def test_tables_hold_every_arm_and_an_unknown_is_a_dash():
    """The plain server has no window at 1 here."""
    text = shown(report.throughput_table(replace(OUTCOME, windows=WINDOWS[:5] + WINDOWS[6:])), 160)
    text += shown(report.latency_table(OUTCOME), 160)
    text += shown(report.phase_table(Outcome({}, [window("depth-2", 4, 100, phase="calm")])), 160)
    assert "7843" in text
    assert " - " in text
    assert "343 ±38" in text
    assert "10.0/20.0" in text


@pytest.mark.slow
def test_plots_are_drawn():
    """Both pictures."""
    full = replace(
        OUTCOME, depths=[DepthSample(1.0, "depth-2", 2, "on", 3), DepthSample(2.0, "off-cold", 0, "cold", 3)]
    )
    assert [name for name, _ in draw(full)] == ["throughput.png", "depth.png"]


@pytest.mark.slow
def test_a_point_without_a_token_is_drawn_at_zero():
    """It has no place on a logarithmic axis."""
    axes = Figure().subplots()
    curve = {1: Estimate(0.0, None, 1), 4: Estimate(100.0, None, 1)}
    _curves(axes, {"depth-2": curve}, "output tokens / s")
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylim()[0]) == ("log", "linear", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "scale"), [((4,), "linear"), ((1, 4), "log")])
def test_one_concurrency_is_not_drawn_on_logarithmic_axes(levels, scale):
    """Nothing grows along one point."""
    axes = Figure().subplots()
    _curves(axes, {"depth-2": {c: Estimate(100.0, 5.0, 2) for c in levels}}, "output tokens / s")
    assert axes.get_xscale() == axes.get_yscale() == scale
