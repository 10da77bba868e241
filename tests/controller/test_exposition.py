"""Reading SGLang's endpoints: real captures, and what has bitten others (missing is not zero)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from controller.exposition import RankLoad, parse_loads, parse_metrics, parse_server_info

FIXTURES = Path(__file__).parent.parent / "fixtures"


def load(name):
    return json.loads((FIXTURES / f"{name}.json").read_text())


def metrics(name):
    return (FIXTURES / f"metrics_{name}.txt").read_text()


def test_loads_of_a_busy_server_are_read_with_their_own_age():
    """Sent at ...671.981752, taken at ...671.866962: 0.115 s old, by the engine's own clock."""
    sample = parse_loads(load("loads_busy"))
    assert sample.problems == ()
    (rank,) = sample.ranks
    assert (rank.running_reqs, rank.queue_reqs, rank.context_tokens) == (4, 0, 226)
    assert rank.max_running_reqs == 8
    assert rank.age_s == pytest.approx(0.1148, abs=1e-4)


def test_each_dp_rank_has_its_own_load_and_age():
    """Two ranks, six requests each, 1.7 s and 2.8 s old."""
    ranks = parse_loads(load("loads_dp2_busy")).ranks
    assert [(r.dp_rank, r.running_reqs) for r in ranks] == [(0, 6), (1, 6)]
    assert [r.age_s for r in ranks] == [pytest.approx(1.717, abs=1e-3), pytest.approx(2.799, abs=1e-3)]


def test_an_idle_server_says_zero_and_zero_it_is():
    """A zero that was sent is a figure, not an absence."""
    (rank,) = parse_loads(load("loads_idle")).ranks
    assert (rank.running_reqs, rank.queue_reqs, rank.age_s) == (0, 0, pytest.approx(0.0001, abs=1e-4))


@pytest.mark.parametrize("value", [None, -1, "4", True, float("nan"), float("inf"), 4.5, [4]])
def test_a_load_that_is_no_count_is_unknown_and_named(value):
    """Negative, text, boolean, NaN, infinite, broken: None, and the field stands in `problems`."""
    body = load("loads_busy")
    body["loads"][0]["num_running_reqs"] = value
    sample = parse_loads(body)
    assert sample.ranks[0].running_reqs is None
    assert sample.ranks[0].queue_reqs == 0
    assert sample.problems == ("dp_rank 0: num_running_reqs",)


def test_a_renamed_field_is_unknown():
    """A new schema must not read as an idle server."""
    body = load("loads_busy")
    body["loads"][0]["num_running_requests"] = body["loads"][0].pop("num_running_reqs")
    assert parse_loads(body).ranks[0].running_reqs is None


def test_a_rank_that_is_sent_twice_is_unknown():
    """Neither of two figures for the same rank is to be believed."""
    body = load("loads_busy")
    body["loads"] *= 2
    sample = parse_loads(body)
    assert sample.ranks == (RankLoad(0),)
    assert sample.problems == ("dp_rank 0: twice",)


@pytest.mark.parametrize(
    "body", [None, [], {}, {"loads": []}, {"loads": {}}, {"loads": [1]}, {"loads": [{}]}, "x", 3]
)
def test_what_is_not_an_answer_of_loads_is_none(body):
    """HTML, an error object, an empty list: nothing was read."""
    assert parse_loads(body) is None


def test_a_clock_that_is_behind_gives_no_negative_age():
    """A snapshot from after the answer is 0 s old; one without time has no age."""
    body = load("loads_busy")
    body["loads"][0]["timestamp"] += 100
    assert parse_loads(body).ranks[0].age_s == 0.0
    body["timestamp"] = "yesterday"
    assert parse_loads(body).ranks[0].age_s is None


def test_metrics_of_an_h200_are_read():
    """SGLang 0.5.17 with 31 requests running."""
    (rank,) = parse_metrics(metrics("h200")).ranks
    assert (rank.running_reqs, rank.queue_reqs, rank.context_tokens) == (31, 0, 10331)
    assert rank.token_usage == 0.01


def test_metrics_have_one_series_per_dp_rank():
    """Two ranks with 2 and 1 requests, as the gauges of 40 decode steps ago say; loads say 6 and 6."""
    sample = parse_metrics(metrics("dp2_busy"))
    assert [(r.dp_rank, r.running_reqs) for r in sample.ranks] == [(0, 2), (1, 1)]


def test_metrics_name_what_is_absent():
    """A renamed gauge is unknown and named, never 0."""
    text = metrics("h200").replace("sglang:num_queue_reqs", "sglang:num_waiting_reqs")
    sample = parse_metrics(text)
    assert sample.ranks[0].queue_reqs is None
    assert sample.problems == ("sglang:num_queue_reqs: absent",)


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf", "many"])
def test_metrics_that_are_no_counts_are_unknown(value):
    """NaN, negative, infinite and unreadable."""
    lines = metrics("h200").splitlines()
    text = "\n".join(re.sub(r" 31\.0$", f" {value}", line) for line in lines)
    sample = parse_metrics(text)
    assert sample.ranks[0].running_reqs is None
    assert sample.problems


def test_two_series_that_contradict_each_other_are_unknown():
    """TP ranks may repeat a figure, not dispute it."""
    lines = 'sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_running_reqs{tp_rank="1"} '
    assert parse_metrics(lines + "3.0").ranks[0].running_reqs == 3
    assert parse_metrics(lines + "4.0").ranks[0].running_reqs is None


def test_acceptance_gauges_are_not_read():
    """`spec_accept_rate` is 0 at depth 0 and wrong across a switch: no field takes it."""
    text = metrics("overlap_busy")
    assert "sglang:spec_accept_rate" in text
    without = "\n".join(line for line in text.splitlines() if "accept" not in line)
    assert parse_metrics(text) == parse_metrics(without)


def test_text_that_is_no_exposition_is_none():
    """An HTML page has no gauges."""
    assert parse_metrics("<html><body>sglang</body></html>") is None


def test_server_info_is_read_and_its_keys_are_not():
    """The captures' flags; api keys in the answer are not taken over."""
    body = load("server_info_overlap") | {"api_key": "secret", "admin_api_key": "secret"}
    info = parse_server_info(body)
    assert (info.version, info.speculative_algorithm, info.topk) == ("0.5.23", "EAGLE3", 1)
    assert (info.num_steps, info.num_draft_tokens) == (2, 3)
    assert (info.adaptive, info.overlap_disabled, info.metrics_enabled) == (True, False, True)
    assert "secret" not in repr(info)
    assert parse_server_info(load("server_info_dp2")).dp_size == 2
    assert parse_server_info(load("server_info_h200")).adaptive is False
    assert parse_server_info({"detail": "Not Found"}) is None
