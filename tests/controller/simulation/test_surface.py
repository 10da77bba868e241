"""What the embedded engine shows is what SGLang shows: captures and the sidecar's parsers are the judges."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from controller.exposition import GAUGES, parse_loads, parse_metrics, parse_server_info
from controller.simulation.controls import FixedControl
from controller.simulation.engine import Request
from controller.simulation.surface import Surface, server_info

FIXTURES = Path(__file__).parents[2] / "fixtures"


def surface_of(engine):
    return Surface(engine, lambda: 1_800_000_000.0 + engine.now_s, "simulated/tiny")


def loaded(make_engine, until_s=0.1, arm=(1, "on"), **config):
    engine = make_engine(FixedControl(arm), acceptance="0.5", **config)
    surface = surface_of(engine)
    engine.on_finish = surface.finished
    for i in range(3):
        engine.submit(Request(i, 0.0, 100, 200))
    while engine.now_s < until_s:
        engine.run_until(min(until_s, engine.now_s + 0.05))
        surface.refresh()
    return engine, surface


def test_loads_are_what_the_sidecar_reads_from_sglang(make_engine):
    """Nothing is missing or unsound, and the figures are the engine's."""
    engine, surface = loaded(make_engine, max_running_requests=2, kv_tokens=10_000)
    sample = parse_loads(surface.loads())
    assert sample.problems == ()
    (rank,) = sample.ranks
    assert (rank.running_reqs, rank.queue_reqs, rank.max_running_reqs) == (2, 1, 2)
    assert rank.context_tokens == pytest.approx(engine.context_tokens, abs=60)


def test_every_field_of_loads_is_one_of_sglangs(make_engine):
    """A subset of the captured body: no name is made up."""
    _, surface = loaded(make_engine)
    body = surface.loads()
    captured = json.loads((FIXTURES / "loads_busy.json").read_text())
    assert body.keys() <= captured.keys()
    assert body["loads"][0].keys() <= captured["loads"][0].keys()


def test_a_snapshot_keeps_for_fifteen_decode_steps(make_engine):
    """As in SGLang: the timestamp stands still between two snapshots of a busy engine."""
    engine, surface = loaded(make_engine, until_s=0.05)
    before = surface.loads()["loads"][0]["timestamp"]
    engine.run_until(engine.now_s + 5 * 0.033)
    surface.refresh()
    assert surface.loads()["loads"][0]["timestamp"] == before
    engine.run_until(engine.now_s + 15 * 0.033)
    surface.refresh()
    assert surface.loads()["loads"][0]["timestamp"] > before


def test_an_idle_engine_says_so_at_once(make_engine):
    """In loads and in gauges, as SGLang publishes them when its batch has run dry; what it accepted stays."""
    engine, surface = loaded(make_engine, until_s=3.0)
    assert parse_metrics(surface.metrics()).ranks[0].running_reqs == 3
    engine.run_until(60.0)
    surface.refresh()
    assert parse_loads(surface.loads()).ranks[0].running_reqs == 0
    page = surface.metrics()
    assert parse_metrics(page).ranks[0].running_reqs == 0
    values = {line.split("{")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if "{" in line}
    assert values["sglang:gen_throughput"] == 0
    assert values["sglang:spec_accept_length"] > 1


def test_the_gauges_that_stand_in_for_loads_are_all_there(make_engine):
    """`parse_metrics` finds each of its series, with a progress counter beside them."""
    _, surface = loaded(make_engine, until_s=3.0)
    sample = parse_metrics(surface.metrics())
    assert sample.problems == ()
    assert all(name in surface.metrics() for name in GAUGES)
    assert sample.progress > 0


def test_every_series_has_a_name_of_sglangs(make_engine):
    """Names and types as in the capture of a real server, except those it had no room for."""
    _, surface = loaded(make_engine, until_s=60.0)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", surface.metrics(), re.MULTILINE))
    captured = dict(
        re.findall(r"^# TYPE (\S+) (\S+)$", (FIXTURES / "metrics_overlap_busy.txt").read_text(), re.MULTILINE)
    )
    shared = types.keys() & captured.keys()
    assert {name: types[name] for name in shared} == {name: captured[name] for name in shared}
    assert "sglang:num_running_reqs" in shared
    assert all(name.startswith("sglang:") for name in types)


def test_acceptance_gauges_lie_at_depth_zero_as_sglangs_do(make_engine):
    """Length 1.0 and rate 0.0 while off: a reader that believes them would never turn speculation on."""
    _, surface = loaded(make_engine, until_s=1.0, arm=(0, "cold"))
    page = surface.metrics()
    assert re.search(r"sglang:spec_accept_length\{.*\} 1\.0\n", page)
    assert re.search(r"sglang:spec_accept_rate\{.*\} 0\.0\n", page)


def test_latencies_are_those_of_the_requests(make_engine):
    """One finished request of 5 tokens: 15 ms to the first, 10 ms each for the other four."""
    engine = make_engine()
    surface = surface_of(engine)
    engine.on_finish = surface.finished
    engine.submit(Request(0, 0.0, 1000, 5))
    engine.run_until(1)
    page = surface.metrics()

    def value(name):
        return float(re.search(rf"^sglang:{name}\{{.*\}} (\S+)$", page, re.MULTILINE)[1])

    assert value("time_to_first_token_seconds_sum") == pytest.approx(0.015)
    assert value("inter_token_latency_seconds_sum") == pytest.approx(0.040)
    assert value("inter_token_latency_seconds_count") == 4
    assert value("generation_tokens_total") == 5


def test_server_info_says_what_preflight_asks_and_that_it_is_simulated(make_engine):
    """EAGLE3, topk 1, overlap on, adaptive on, the deepest depth as the initial one."""
    body = server_info(make_engine(), "simulated/tiny", {"name": "tiny", "attention_backend": "none"})
    info = parse_server_info(body)
    assert (info.speculative_algorithm, info.topk, info.num_steps, info.num_draft_tokens) == (
        "EAGLE3",
        1,
        2,
        3,
    )
    assert (info.adaptive, info.overlap_disabled, info.metrics_enabled) == (True, False, True)
    assert body["device"] == "simulated"
    assert body["simulated_from"]["name"] == "tiny"
