"""The demo: its load suits the profile, all arms get the same arrivals, its figures are counted."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from controller.cli import make_app
from controller.simulation.acceptance import parse_acceptance
from controller.simulation.cost_profile import load_profile, shipped_profiles
from controller.simulation.demo import engine_only
from controller.simulation.demo.load import Phase, draw_arrivals, plan_phases
from controller.simulation.demo.outcome import (
    Trajectory,
    compare,
    held_arm,
    off_arm,
    summary,
    whole_run,
)
from controller.simulation.demo.rehearsal import learns
from controller.simulation.demo.run import DemoError, DemoSettings, set_up
from controller.simulation.demo.view import DemoView, PlainProgress, phase_table
from controller.simulation.engine import EngineConfig, Request
from policies import registry

PHASES = (Phase("first", 0.0, 2.0, 2, 1.0), Phase("second", 2.0, 3.0, 64, 1.0))


def test_rates_rise_and_fall_and_stay_below_what_the_best_arm_can_do():
    """Quiet, busy, crowded, quiet: on Triton off serves about 10 700 tok/s at 128, so 0.95 of that / 256."""
    phases = plan_phases(load_profile("h200_llama8b_triton"), parse_acceptance("0.745"), EngineConfig(), 60.0)
    rates = [phase.rate_rps for phase in phases]
    assert rates[0] == rates[3] < rates[1] < rates[2]
    assert rates[2] == pytest.approx(0.95 * 10_700 / 256, rel=0.05)
    assert (phases[0].start_s, phases[-1].end_s) == (0.0, pytest.approx(60.0))


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_can_be_demonstrated(name):
    """Phases with arrivals in each, whatever the profile measures."""
    phases = plan_phases(load_profile(name), parse_acceptance("0.6"), EngineConfig(), 20.0)
    arrivals = draw_arrivals(phases, np.random.default_rng(1))
    assert all(phase.rate_rps > 0 for phase in phases)
    assert [a.arrival_s for a in arrivals] == sorted(a.arrival_s for a in arrivals)
    assert arrivals[-1].arrival_s < 20.0


def test_a_held_arm_gets_the_very_same_arrivals(profile):
    """Times, prompts and outputs are those handed in; the originals are left alone."""
    requests = [Request(i, 0.1 * i, 100, 20, generated=20, finish_s=9.0) for i in range(5)]
    config = EngineConfig(noise=0.0)
    run = held_arm(profile, parse_acceptance("1"), config, (0, "cold"), requests, seed=1, end_s=3.0)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in run.requests] == [
        (r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests
    ]
    assert run.tokens_at(3.0) == 100
    assert all(r.finish_s == 9.0 for r in requests)


ANSWERS = [
    Request(0, 0.5, 10, 11, first_token_s=1.0, finish_s=2.0),
    Request(1, 2.5, 10, 11, first_token_s=2.6, finish_s=2.8),
]
RUN = Trajectory(ANSWERS, [0.0, 2.0, 3.0], [0, 300, 500])


def test_figures_are_counted_per_phase():
    """300 tokens by 2 s and 500 by 3 s: 150 and 200 a second; TPOT by arrival."""
    rows = compare(PHASES, {"governed": RUN})
    figures = [row["arms"]["governed"] for row in rows]
    assert [f["output_tok_s"] for f in figures] == [150.0, 200.0]
    assert [f["tpot_ms"]["p50"] for f in figures] == pytest.approx([100.0, 20.0])
    assert [f["requests"] for f in figures] == [1, 1]
    assert [row["drains"] for row in rows] == [False, False]


def test_a_phase_that_begins_with_more_than_its_own_load_is_called_draining():
    """Three unanswered at 2 s, in a phase whose load keeps two in flight."""
    late = [Request(i, 1.0, 10, 11, first_token_s=1.5, finish_s=2.5) for i in range(3)]
    phases = (PHASES[0], Phase("quiet", 2.0, 3.0, 2, 1.0))
    rows = compare(phases, {"governed": Trajectory(late, [0.0, 3.0], [0, 33])})
    assert [row["drains"] for row in rows] == [False, True]
    assert rows[1]["arms"]["governed"]["carried_in"] == 3
    console = Console(width=120, force_terminal=False)
    with console.capture() as shown:
        console.print(phase_table(rows))
    assert "draining" in shown.get()


def test_the_summary_compares_how_long_requests_took():
    """Governed 1.5 and 0.3 s, mean 0.9; on 3.5 and 0.1 s, mean 1.8: half of it."""
    slow = [
        Request(0, 0.5, 10, 11, first_token_s=1.0, finish_s=4.0),
        Request(1, 2.5, 10, 11, first_token_s=2.55, finish_s=2.6),
    ]
    whole = whole_run({"always_on": Trajectory(slow, [], []), "governed": RUN})
    assert whole["governed"]["e2e_s"]["mean"] == pytest.approx(0.9)
    assert summary(whole) == (
        "Governed, a request took 0.90 s on average, against 1.80 s always on (-50 %);"
        " the last was answered at 2.8 s (always on at 4.0 s)."
    )


def test_unanswered_requests_are_not_compared():
    """A mean over the answered ones would flatter the arm that answered fewer."""
    whole = whole_run({"governed": Trajectory([*ANSWERS, Request(2, 2.9, 10, 11)], [], [])})
    assert whole["governed"]["unfinished"] == 1
    assert summary(whole) == "No comparison: 1 of the requests were not answered in time."


def test_without_a_terminal_every_phase_and_every_new_schedule_is_a_line():
    """A decision that keeps the schedule says nothing."""
    lines = []
    progress = PlainProgress(PHASES, lines.append)
    log = [{"at_s": 0.5, "reason": "startup", "schedule": None}]
    progress.update(0.5, log, None)
    log += [{"at_s": 1.0, "reason": "policy", "schedule": "1+: 4"}] * 2
    progress.update(1.1, log, None)
    progress.update(2.0, log, None)
    assert lines == [
        "  0.0 s  phase first: 1.0 requests/s",
        "  1.0 s  depth by batch size 1+: 4 (policy)",
        "  2.0 s  phase second: 1.0 requests/s",
    ]


def test_without_a_terminal_the_depth_that_returns_is_a_line_too():
    """Off for a second and more, then depth 4 again; a step of depth 2 between is a probe, and no line."""
    lines = []
    progress = PlainProgress((), lines.append)
    four, two, off = (4, "on"), (2, "on"), (0, "cold")
    steps = [
        (0.0, four),
        (1.0, four),
        (2.0, off),
        (3.0, off),
        (3.1, two),
        (3.2, off),
        (5.0, four),
        (6.1, four),
    ]
    for at_s, arm in steps:
        progress.update(at_s, [], arm)
    assert lines == [
        "  1.0 s  depth in use for a second now: 4",
        "  3.0 s  depth in use for a second now: 0, off (cold), by the batch size at hand",
        "  6.1 s  depth in use for a second now: 4, by the batch size at hand",
    ]


def test_the_time_under_an_override_is_counted():
    """Turns at 1, 2 and 3 s, an operator's order in force at the second only: 1 s."""
    decision = SimpleNamespace(schedule=None, reason="override", detail="", action="hold")
    view = DemoView(PHASES, "title")
    for at_s, directive in ((1.0, None), (2.0, "off"), (3.0, None)):
        observation = SimpleNamespace(directive=directive)
        view.note(at_s, SimpleNamespace(decision=decision, observation=observation))
    assert view.override_s == 1.0


@pytest.mark.parametrize("option", ["--engine-port", "--api-port"])
def test_a_taken_port_is_told_before_anything_else_with_its_option(option):
    """Exit code 2, and no rehearsal."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(make_app(), ["demo", option, str(port)])
    assert result.exit_code == 2
    assert f"{option} must be a free port, got {port}" in result.output
    assert "learns" not in result.output


def test_off_is_the_server_without_speculation_where_the_profile_has_one():
    """Else it is SGLang's own off."""
    assert off_arm([(0, "warm"), (0, "cold"), (2, "on")]) == (0, "cold")
    assert off_arm([(0, "warm"), (2, "on")]) == (0, "warm")


def _settings(policy):
    return DemoSettings(
        load_profile("h200_llama8b_triton"), parse_acceptance("0.745"), EngineConfig(), policy=policy
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", registry.BUILT_IN)
async def test_the_demo_starts_with_every_policy_whether_it_learns_or_not(policy):
    """Its sidecar has found the engine, and nobody waits for a policy to learn that does not."""
    async with set_up(_settings(policy)) as stage:
        assert stage.last.link.link == "ready"
        assert stage.assembly.knowledge.key is not None


@pytest.mark.slow
async def test_a_sidecar_that_does_not_find_its_engine_is_told_without_a_traceback(monkeypatch):
    """An error of ours, which the command line ends with in one line."""
    monkeypatch.setattr("controller.simulation.demo.run.READY_WITHIN_S", 0.0)
    with pytest.raises(DemoError, match="must know its engine within 0 s"):
        async with set_up(_settings("fixed")):
            pass


async def test_a_demo_that_is_kept_outlives_a_client_that_fails(monkeypatch):
    """Its sidecar is being tried out: the load is told to have failed, and starts anew."""
    outcomes = iter([DemoError("the engine did not answer: ReadError('')"), None, asyncio.CancelledError()])

    async def drive(*_):
        if outcome := next(outcomes):
            raise outcome

    monkeypatch.setattr(engine_only, "drive", drive)
    monkeypatch.setattr(engine_only, "LOAD_AGAIN_S", 0.0)
    said = io.StringIO()
    phases = plan_phases(load_profile("h200_llama8b_triton"), parse_acceptance("0.745"), EngineConfig(), 8.0)
    with pytest.raises(asyncio.CancelledError):
        await engine_only.load_for_ever(Console(file=said, width=200), None, "", phases, 1)
    assert said.getvalue().count("the engine did not answer: ReadError(''); the load starts anew") == 1
    assert next(outcomes, "none left") == "none left"


def test_only_a_policy_that_learns_rehearses():
    """The others would be said to learn, and do not."""
    assert [name for name in registry.BUILT_IN if learns(name)] == ["goodput"]


@pytest.mark.slow
async def test_the_engine_alone_is_loaded_and_waits_for_a_sidecar():
    """It says how to govern it; requests are answered, and nobody steers."""
    said = io.StringIO()
    console = Console(file=said, width=200)
    serving = asyncio.create_task(engine_only.serve_loaded(_settings("fixed"), 8.0, console))
    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as client:
        while "Ctrl-C" not in said.getvalue():  # noqa: ASYNC110  nobody tells when it is printed
            await asyncio.sleep(0.05)
        url = re.search(r"specgov run --engine (\S+)", said.getvalue())[1]
        state = {"telemetry": [{"decode_steps": 0}]}
        while not state["telemetry"][0]["decode_steps"]:
            await asyncio.sleep(0.05)
            state = (await client.get(f"{url}/speculation")).json()
    assert state["holder"] is None
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.slow
async def test_the_idle_engine_is_sent_nothing_and_waits_for_a_benchmark():
    """It says how to measure it; nothing was decoded, and a request of one's own is answered."""
    said = io.StringIO()
    console = Console(file=said, width=200)
    serving = asyncio.create_task(engine_only.serve_idle(_settings("fixed"), console))
    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as client:
        while "Ctrl-C" not in said.getvalue():  # noqa: ASYNC110  nobody tells when it is printed
            await asyncio.sleep(0.05)
        url = re.search(r"specgov bench --engine (\S+)", said.getvalue())[1]
        await asyncio.sleep(0.2)
        before = (await client.get(f"{url}/speculation")).json()["telemetry"]
        body = {"text": "x", "sampling_params": {"max_new_tokens": 4}}
        answer = await client.post(f"{url}/generate", json=body)
    assert sum(rank["decode_steps"] for rank in before) == 0
    assert answer.json()["meta_info"]["completion_tokens"] == 4
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def test_idle_is_refused_without_engine_only():
    """A demo without its load would show nothing."""
    done = CliRunner().invoke(make_app(), ["demo", "--idle"])
    assert done.exit_code == 2
    assert "--idle must be given with --engine-only" in done.output


def test_the_engine_alone_has_no_sidecar_to_report_on():
    """Options of the sidecar are refused, and the message names them."""
    done = CliRunner().invoke(make_app(), ["demo", "--engine-only", "--json"])
    assert done.exit_code == 2
    assert "--engine-only must be without --json and --api-port" in done.output


@pytest.mark.slow
def test_the_demo_runs_from_the_command_line_and_ends_by_itself():
    """Real HTTP between clients, engine and sidecar: no request fails, and three arms are reported."""
    code = "from controller.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--seconds", "8", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=110, check=True)
    report = json.loads(done.stdout)
    assert report["simulated"] is True
    assert report["failed_requests"] == 0
    assert report["requests"] > 50
    assert set(report["whole_run"]) == {"always_on", "always_off", "governed"}
    assert report["summary"].startswith("Governed, a request took ")
    assert report["override_s"] == 0
    for row in report["phases"]:
        assert set(row["arms"]) == {"always_on", "always_off", "governed"}
        assert len({arm["requests"] for arm in row["arms"].values()}) == 1
    assert report["decisions"], "the sidecar decided nothing"
