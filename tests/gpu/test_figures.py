"""Figures from records by hand: shares of the best arm, switches on every rank, the totals of a trace."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from chain_table import kernel_row, rate, refused  # noqa: E402 - the path comes first
from cost_profile import gaps_ms, profile, row_of  # noqa: E402
from figures.arrivals import host_ms, rest  # noqa: E402
from figures.steplog import StepLog  # noqa: E402
from figures.switches import ranks, toggles  # noqa: E402
from figures.windows import clients, goal, steady, summary, traces  # noqa: E402
from off_table import cells, window_of  # noqa: E402
from prefill_law import fit  # noqa: E402
from proof import chi_square  # noqa: E402
from sections import fill, runs  # noqa: E402


def window(label: str, tok_s: float, number: int | None = 0, **notes: object) -> dict:
    """A measured window at C=8."""
    place = {} if number is None else {"round": number}
    return {"label": label, "C": 8, "acceptance": 0.7, "tok_s": tok_s, **place, **notes}


def write_log(folder: Path, rank: int, launches: list[list[float]]) -> None:
    """A step log of one rank; each launch has its result 5 ms later."""
    results = [[at + 0.005, batch, batch, depth + 1] for at, batch, depth in launches]
    folder.joinpath("steps").mkdir(exist_ok=True)
    text = json.dumps({"launches": launches, "results": results})
    folder.joinpath(f"steps/table.r{rank}.1.json").write_text(text)


def test_the_policy_is_held_against_the_arm_that_is_best_over_all_rounds():
    """One lucky window of `plain` does not make it the best; the share is that of paired rounds."""
    windows = [window("plain", 100, 0), window("plain", 61, 1)]
    windows += [window("table/depth-2", 90, 0), window("table/depth-2", 80, 1)]
    windows += [window("governed", 90, 0, temperature="warm"), window("governed", 80, 1, temperature="warm")]
    (row,) = goal(windows)
    assert (row["best_other"], row["best_tok_s"], row["pairs"]) == ("table/depth-2", 85.0, 2)
    assert row["share"] == 1.0


def test_a_cold_window_has_no_partner_and_stands_against_the_mean():
    """The learning window was measured once, before the rounds."""
    windows = [window("plain", 100, 0), window("plain", 60, 1)]
    windows += [window("governed", 40, None, temperature="cold")]
    (row,) = goal(windows)
    assert (row["arm"], row["pairs"], row["share"], row["half_width"]) == ("governed cold", 0, 0.5, None)


def test_a_cold_window_stands_against_arms_whose_load_arrived_as_well():
    """The arrival of a load costs every arm its prefills; only what is learned on top is the policy's."""
    windows = [window("plain", 100), window("plain", 50, None, arriving=True)]
    windows += [window("table/depth-2", 45, None, arriving=True)]
    windows += [
        window("governed", 45, None, temperature="cold", depth_steps={"2": 9}),
        window("governed", 99, 0, temperature="warm"),
    ]
    cold, warm = goal(windows)
    assert (cold["best_other"], cold["share"], cold["choice"]) == ("plain arriving", 0.9, 0.9)
    assert (warm["best_other"], warm["share"]) == ("plain", 0.99)


def test_a_window_that_its_clients_did_not_fill_counts_for_nobody():
    """Of C=8 the server had 6 requests: then the clients were measured.  Cold, the load still arrives."""
    windows = [window("plain", 50, mean_batch_size=8.0), window("plain", 100, 1, mean_batch_size=6.0)]
    windows += [window("governed", 50, 0, temperature="warm"), window("governed", 5, 1, temperature="warm")]
    windows[-1]["mean_batch_size"] = 7.0
    windows += [window("governed", 25, None, temperature="cold", mean_batch_size=5.0)]
    warm, cold = goal(windows)
    assert (warm["best_tok_s"], warm["share"], warm["pairs"]) == (50.0, 1.0, 1)
    assert cold["share"] == 0.5


def test_the_first_token_counts_in_the_span_in_which_it_came():
    """The clients' own start lies before it; who still runs at its end has had a first token, too."""

    def stream(started_s: float, first_s: float, ended_s: float | None) -> dict:
        ends = {"ended_s": ended_s, "error": None, "cancelled": False, "streamed": True}
        return {"started_s": started_s, "events": [[first_s, 1], [ended_s or 9.0, 9]], **ends}

    found = clients([stream(0.0, 0.9, 2.0), stream(1.5, 1.6, None)], 1.0, 3.0)
    assert (found["ttft_ms_p50"], found["finished"]) == (100.0, 1)


def test_a_switch_is_counted_at_the_last_rank_that_took_it(tmp_path):
    """Put at 1.0: rank 0 launches at the new depth at 1.010, rank 1 at 1.012."""
    write_log(tmp_path, 0, [[0.9, 8, 4], [1.01, 8, 0], [1.02, 8, 0]])
    write_log(tmp_path, 1, [[0.9, 8, 4], [1.012, 8, 0], [1.02, 8, 0]])
    toggle = {"kind": "toggle", "server": "table", "arm": "off-cold", "put_s": 1.0, "acknowledged_s": 1.004}
    run = {"kind": "toggles", "server": "table", "C": 8, "switches": 1, "to_s": 1.1, "state": None}
    (found,) = toggles([toggle | {"period_s": 0.1}, run | {"period_s": 0.1}], tmp_path)
    assert found["put_to_first_launch_ms"]["p50"] == 12.0
    assert found["first_launch_skew_ms"]["max"] == 2.0
    assert found["put_to_first_result_ms"]["p50"] == 15.0
    assert found["unseen"] == 0


def test_a_rank_that_took_a_switch_one_launch_late_is_found(tmp_path):
    """Equal counts are not enough: the sequences of (batch size, depth) must be the same."""
    write_log(tmp_path, 0, [[1.0, 8, 4], [1.1, 8, 0], [1.2, 8, 0]])
    write_log(tmp_path, 1, [[1.0, 8, 4], [1.1, 8, 4], [1.2, 8, 0]])
    (found,) = ranks([{"kind": "ranks", "server": "table", "tp": 2, "switches": 1, "state": None}], tmp_path)
    assert found["launches"] == [3, 3]
    assert found["identical_sequences"] is False


def test_a_trace_counts_every_token_from_its_first_phase_to_its_last(tmp_path):
    """Two phases of a second each, 8 tokens a step; the policy's rate is a share of the best other arm's."""
    write_log(tmp_path, 0, [[i / 10, 8, 0] for i in range(40)])
    logs = {"table": StepLog(tmp_path, "table")}
    phases = [("plain", 0, 1), ("plain", 1, 2), ("governed", 2, 3), ("governed", 3, 4)]
    spans = [{"trace": arm, "server": "table", "from_s": a, "to_s": b} for arm, a, b in phases]
    first, second = traces(spans, logs, {"table": []})
    assert (first["arm"], first["tokens"], first["tok_s"]) == ("plain", 160, 80.0)
    assert (second["arm"], second["to_best_other"]) == ("governed", 1.0)


def test_how_well_the_sidecar_knows_the_server_does_not_part_the_windows_of_other_arms():
    """Two windows of `plain`, one beside warm ones of the policy: one row of two."""
    step = {"step_ms_p50": 5.0, "tokens_per_request_step": 1.0, "clients": {"errors": 0}}
    windows = [window("plain", 100, 0, temperature="warm", **step), window("plain", 80, 1, **step)]
    windows += [window("governed", 90, 0, temperature=t, **step) for t in ("cold", "warm")]
    found = [(r["label"], r.get("temperature"), r["windows"], r["tok_s"]) for r in summary(windows)]
    assert found == [("plain", None, 2, 90.0), ("governed", "cold", 1, 90.0), ("governed", "warm", 1, 90.0)]


def test_the_page_says_at_which_depths_the_policy_ran():
    """990 steps at 4 and 10 at 0; one step in a thousand at 2 is not told."""
    windows = [window("plain", 100, 0)]
    windows += [window("governed", 90, 0, temperature="warm", depth_steps={"4": 989, "0": 10, "2": 1})]
    (row,) = goal(windows)
    assert row["depth_shares"] == {"0": 0.01, "4": 0.989}


def test_what_is_left_of_a_span_after_its_decode_steps_is_divided_among_the_requests_that_arrived():
    """Thirty intervals of 5 ms and three of 15 ms, two of them by new requests: 30 ms, 15 ms each."""
    gaps = ([0.005] * 10 + [0.015]) * 3
    results = [(at, 64, 64, 1) for at in itertools.accumulate(gaps, initial=100.0)]
    found = rest(results, [99.0, 100.06, 100.12], (99.5, 101.0))
    assert (found["step_ms"], found["new_requests"], found["rest_ms_per_new_request"]) == (5.0, 2, 15.0)


def test_a_span_with_drafts_tells_nothing_of_off():
    """One result that is two tokens wide."""
    results = [(100 + i / 100, 64, 64, 1) for i in range(40)]
    assert rest([*results, (100.5, 64, 64, 2)], [100.1], (100.0, 101.0)) is None


def test_a_section_is_made_anew_and_the_prose_around_it_is_left_alone(tmp_path):
    """A page without the section is an error, not a page without figures."""
    page = tmp_path / "page.md"
    page.write_text("# By hand\n<!-- a: begin, made by x -->\nold\n<!-- a: end -->\nafter\n")
    fill(page, "a", ["| new |"])
    fill(page, "a", ["| newer |"])
    assert page.read_text() == (
        "# By hand\n<!-- a: begin, made by x -->\n\n| newer |\n\n<!-- a: end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="must have one section 'b' between its markers, got 0"):
        fill(page, "b", [])


def test_the_hosts_own_time_is_that_from_a_result_to_the_next_launch():
    """Steps of 10 ms, launched 2 ms after each result; where a prefill was launched, nothing counts."""
    log = StepLog.__new__(StepLog)
    log.results = [(i / 100, 8, 8, 1) for i in range(6)]
    log.launches = [(i / 100 + 0.002, 8, 0) for i in range(6) if i != 3]
    assert host_ms(log, (0.0, 1.0)) == 2.0


def test_a_share_is_taken_apart_into_the_choice_of_depth_and_what_two_servers_differ_in():
    """Depth 1 brings 80 of depth 2's 100, the policy had 90 at it: 0.8 by choice, 9/8 by the server."""
    windows = [window("table/depth-2", 100, 0), window("table/depth-1", 80, 0)]
    windows += [window("governed", 90, 0, temperature="warm", depth_steps={"1": 95, "0": 5})]
    (row,) = goal(windows)
    assert (row["best_other"], row["share"], row["choice"], row["same_depth"]) == (
        "table/depth-2",
        0.9,
        0.8,
        1.125,
    )


def test_what_the_policy_lost_by_its_choice_is_not_told_when_it_used_several_depths():
    """Half of the steps at each of two depths."""
    windows = [window("table/depth-2", 100, 0), window("table/depth-1", 80, 0)]
    windows += [window("governed", 90, 0, temperature="warm", depth_steps={"1": 50, "2": 50})]
    (row,) = goal(windows)
    assert (row["choice"], row["same_depth"]) == (None, None)


def test_a_trace_is_steady_in_the_second_half_of_each_phase_whatever_drains_in_the_first():
    """Four seconds that end at 10 and twelve that end at 30: (4 * 10 + 12 * 30) / 16 = 25."""
    short = {"from_s": 0.0, "to_s": 4.0, "tok_s_by_second": [900, 500, 10, 10]}
    long = {"from_s": 4.0, "to_s": 16.0, "tok_s_by_second": [10] * 6 + [30] * 6}
    assert steady([short, long]) == 25.0
    assert steady([short, {"from_s": 0.0, "to_s": 4.0, "tok_s_by_second": []}]) is None


def test_the_step_in_which_all_requests_end_is_no_step_and_stands_by_itself():
    """Four results of a batch of 10, 8 ms apart; a fifth, 30 ms later, ends them all, and an empty one."""
    at_s = [0.0, 0.008, 0.016, 0.024, 0.054, 0.055]
    steps = [(at, 10, 0 if i == 5 else 10) for i, at in enumerate(at_s)]
    record = {"C": 10, "round": 0, "from_s": 0.0, "to_s": 1.0}
    found = window_of(record, steps)
    assert (found["steps"], found["step_ms_mean"], found["tok_s"]) == (3, 8.0, 1250.0)
    assert (found["end_ms"], found["whole_batch_tok_s"]) == (30.0, None)
    assert window_of(record | {"C": 12}, steps) is None
    another = [(0.1 + at, 10, 10) for at in at_s[:4]]
    assert window_of(record, steps + another)["steps"] == 3 + 2


def test_steps_that_all_take_long_are_steps_and_a_long_one_among_short_ones_is_not():
    """150 ms each: SGLang's own depth 0 at a large batch.  120 ms among 8 is a prefill or a stop."""
    record = {"C": 1, "round": 0, "from_s": 0.0, "to_s": 9.0}
    slow = window_of(record, [(0.15 * i, 1, 1) for i in range(6)])
    assert (slow["steps"], slow["step_ms_mean"]) == (4, 150.0)
    at_s = [0.0, 0.008, 0.128, 0.136, 0.144]
    assert window_of(record, [(at, 1, 1) for at in at_s])["steps"] == 2


def test_a_row_shows_the_end_of_a_batch_where_it_is_known():
    """Of two rounds one of which, older, does not know it; the whole batch was not timed."""
    window = {
        "round": 0,
        "step_ms_median": 8.0,
        "step_ms_mean": 8.0,
        "tok_s": 125.0,
        "whole_batch_tok_s": None,
    }
    windows = [window | {"end_ms": 30.0}, window | {"round": 1}]
    assert cells("1", "plain", windows, windows) == ["plain", "1", 2, "8.00", "8.00", "", "125", "30.0", None]
    row = cells("1", "table/off-cold", windows[1:], windows)
    assert row[5:] == ["+0.0 %", "+0.0 %", None, None]


def test_a_run_named_without_a_folder_stays_as_the_json_of_before_has_it(tmp_path):
    """`old` is kept, `new` measured, and what was not named is dropped."""
    out = tmp_path / "page.json"
    out.write_text('{"old": {"n": 1}, "older": {"n": 0}}')
    assert runs(out, ["new=here", "old"], lambda folder: {"n": str(folder)}) == {
        "new": {"n": "here"},
        "old": {"n": 1},
    }
    assert json.loads(out.read_text()) == {"new": {"n": "here"}, "old": {"n": 1}}


def test_samples_that_differ_in_one_token_that_one_server_never_says_are_told_apart():
    """The same first tokens; after `a` one server says `x` 100 times, which the other never does."""
    common = {"a p": 200, "a q": 200, "b p": 200, "b q": 200}
    first = {"server": "plain", "n": 800, "counts": common}
    second = {"server": "ours", "n": 800, "counts": common | {"a p": 150, "a q": 150, "a x": 100}}
    found = chi_square(first, second)
    assert found["p"] < 1e-9
    assert (found["first"]["chi_square"], found["first"]["p"]) == (0.0, 1.0)
    assert found["second"]["p"] < 1e-9
    assert (found["second_if_seen_by_both"]["chi_square"], found["seen_by_one"]) == (
        0.0,
        {"plain": 0, "ours": 100},
    )


def test_the_page_of_chain_verify_says_how_many_verifies_refused_a_draft():
    """Seven of ten accepted all."""
    assert refused({"steps": 10, "steps_with_all_accepted": 7}) == "3 (30.0 %)"
    assert refused({"steps": 10, "steps_with_all_accepted": 10}) == "none"


def test_the_decode_kernel_stands_beside_sglangs_verify_at_the_same_depth():
    """150 against 100 tokens per second; a server without a partner has its figure alone."""
    found = {(8, "own/depth-2"): {"tok_s": 100.0}, (8, "chain/depth-2"): {"tok_s": 150.0}}
    assert rate(found, 8, "chain/depth-2") == "150 (+50 %)"
    assert rate(found, 8, "own/depth-2") == "100"
    assert rate(found, 8, "chain/depth-4") is None


def test_a_kernel_that_does_not_serve_a_shape_has_a_dash_and_no_share():
    """Three tokens are depth 2; the split kernel failed."""
    times = {"prefill_kernel": {"ms": 0.4}, "decode_kernel": {"ms": 0.1}, "split_kernel": {"failed": "no"}}
    row = kernel_row({"heads": "mla", "width": 3, "context": 320, "batch": 8, **times})
    assert row == ("mla", 2, 320, 8, "0.400", "0.100", None, "0.25", None)


def test_a_profile_is_made_of_gaps_between_full_steps_of_one_kind():
    """Of C = 10: 8 is not a full batch, one that changed holds a prefill, a change of depth is a switch."""
    results = [(0.0, 10, 10, 3), (0.01, 10, 10, 3), (0.5, 9, 9, 3), (0.52, 9, 9, 3), (0.9, 9, 9, 5)]
    results += [(1.0, 8, 8, 5), (1.1, 8, 8, 5)]
    assert [round(ms, 6) for ms in gaps_ms(results, 10)] == [10.0, 20.0]
    labels = ("plain", "table/depth-2", "chain/off-warm", "table/off-cold", "governed")
    assert [row_of(label) for label in labels] == ["plain", "depth_2", "off_warm", None, None]


def test_a_cell_of_too_few_gaps_is_no_cell():
    """Twenty gaps are a cell, nineteen are none, and a row without cells is no row."""
    found = {"plain": {1: [5.0] * 20, 8: [6.0] * 19}, "depth_1": {1: [7.0] * 3}}
    assert profile("x", found) == {"schema": 1, "name": "x", "step_ms": {"plain": {"1": 5.0}}}


def test_what_a_prefill_batch_and_a_request_in_it_cost_is_told_apart():
    """Made of 11 ms a batch and 2 ms a request: found again, whatever the step alone takes."""
    made = [(step_ms, n) for step_ms in (5.0, 12.0) for n in (0.1, 0.5, 1.5)]
    windows = [
        {"step_ms": step_ms, "n": n, "ms": step_ms + 11 * (1 - math.exp(-n)) + 2 * n} for step_ms, n in made
    ]
    assert fit(windows) == pytest.approx((11.0, 2.0))
