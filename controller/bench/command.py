"""What `specgov bench` does: connect, measure with a progress bar, print, write files."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from controller.bench import courses, extras, report
from controller.bench.arms import AS_IS, BenchArm, arm_of
from controller.bench.campaign import Campaign
from controller.bench.client import Client, Dialect
from controller.bench.connections import LoadTransport
from controller.bench.endings import (
    REPEAT,
    AwayBenchError,
    BenchError,
    IncompleteBenchError,
    InterruptedBenchError,
    MeasuredBenchError,
    UnansweredBenchError,
    windows_of,
)
from controller.bench.engine import EngineControl, EngineRefusedError, LeaseHeldError, holder_of
from controller.bench.govern import Governor
from controller.bench.inputs import Inputs, read_inputs
from controller.bench.interruption import until_told
from controller.bench.load import DRAIN_S
from controller.bench.outcome import Outcome
from controller.bench.output_folder import (
    RESULTS,
    UnwritableError,
    output_folder,
    write_profile_and_plots,
    write_results,
)
from controller.bench.progress import Plan, showing
from controller.bench.request import BenchRequest
from controller.bench.target import RequestsFailError, ServerGoneError, ServerUnderTest, Target
from controller.errors import BadRequestError, SpecgovError
from policies.types import Gear

REQUEST_TIMEOUT_S = 600.0
HAND_BACK_WITHIN_S = 5.0


def run(request: BenchRequest, console: Console) -> Outcome:
    """Measure, write, print; raises `BadRequestError`, `BenchError` and its kin."""
    with output_folder(request.output, overwrite=request.overwrite):
        outcome, told = _measured(request, console)
        unsaved = None if outcome is None else _write(outcome, request.output, console)
    whole = outcome is not None and outcome.ended_by is None
    if outcome is not None and (whole or unsaved) and not request.as_json:
        _show(outcome, console)
    kept = unsaved or f"kept in {request.output / RESULTS}"
    if told is not None:
        raise InterruptedBenchError(outcome, told, kept)
    assert outcome is not None  # noqa: S101 - for the type checker: only a signal leaves none
    _judge(outcome, kept)
    if unsaved is not None:
        raise MeasuredBenchError(f"{windows_of(outcome)} measured, {unsaved}{REPEAT}", outcome)
    return outcome


def _judge(outcome: Outcome, kept: str) -> None:
    """Raise what is wrong with a benchmark that no signal ended."""
    if outcome.ended_by is not None:
        raise IncompleteBenchError(outcome, kept, outcome.ended_by, REPEAT)
    if not outcome.windows:
        raise BenchError("; ".join(["nothing was measured", *report.failures(outcome)]))
    if outcome.away():
        raise AwayBenchError(outcome, kept)
    if outcome.nothing_finished():
        raise UnansweredBenchError(outcome, kept)


def _measured(request: BenchRequest, console: Console) -> tuple[Outcome | None, signal.Signals | None]:
    inputs = read_inputs(request, console)
    try:
        outcome, told = asyncio.run(until_told(_measure(request, inputs, console)))
    except httpx.ConnectError as problem:
        url = f"{problem.request.url.scheme}://{problem.request.url.netloc.decode()}"
        hint = "is it running, and is its URL right?"
        raise BenchError(f"no server answers at {url}: {problem}; {hint}") from None
    except httpx.HTTPError as problem:
        raise BenchError(f"{type(problem).__name__} at {request.engine}: {problem}") from None
    except (EngineRefusedError, LeaseHeldError, RequestsFailError, ServerGoneError) as problem:
        raise BenchError(str(problem)) from None
    if outcome is not None and told is not None:
        outcome = replace(outcome, ended_by=told.name)
    return outcome, told


async def _measure(request: BenchRequest, inputs: Inputs, console: Console) -> Outcome:
    async with AsyncExitStack() as stack:
        engine = await _server("engine", request.engine, request, stack)
        state = await engine.control.state() if engine.control else None
        targets = [Target(engine, arm, asked=bool(inputs.arms)) for arm in _runnable(inputs.arms, state)]
        steered = any(target.arm.label != AS_IS for target in targets)
        if engine.control and state and steered:
            engine.control.check_free(state)
        if not state:
            engine.control = None
        for name, url in request.beside:
            targets.append(Target(await _server(name, url, request, stack), BenchArm(AS_IS)))
            await targets[-1].server.client.http.get("/v1/models")  # whatever it says: it is there
        campaign = _campaign(request, targets, inputs)
        refused = await _adapt(campaign.servers(), request, inputs)
        ended_by = None
        try:
            await _run(request, campaign, inputs, console)
        except asyncio.CancelledError:
            pass  # by a signal: what was measured is kept, and the caller knows by which
        except ENDS as problem:
            if not campaign.windows:
                raise
            ended_by = _in_the_middle(problem)
        finally:
            if engine.control and steered:
                await _hand_back(engine.control, request.engine, console)
        about = _about(request, state, [t.label for t in targets])
        about |= {"model": engine.client.model, "refused": refused}
        found = campaign.windows, campaign.depths, campaign.failures
        slow, between = campaign.slow_starts, campaign.between()
        return Outcome(
            about, *found, plain=request.plain, ended_by=ended_by, slow_starts=slow, between=between
        )


ENDS = (
    httpx.HTTPError,
    EngineRefusedError,
    LeaseHeldError,
    RequestsFailError,
    ServerGoneError,
    SpecgovError,
    OSError,
)
"""What may end a benchmark that has begun, windows that were measured before being good."""


def _in_the_middle(problem: Exception) -> str:
    """What ended it, in a sentence: a server that went away, or the error's own words."""
    if not isinstance(problem, httpx.HTTPError):
        return str(problem)
    url = problem.request.url
    origin = f"{url.scheme}://{url.netloc.decode()}"
    return f"the server at {origin} no longer answers ({type(problem).__name__}: {problem})"


def _campaign(request: BenchRequest, targets: list[Target], inputs: Inputs) -> Campaign:
    return Campaign(
        targets,
        source=inputs.source_of(None),
        timing=request.timing,
        stream_every=request.stream_every,
        seed=request.seed,
        clock=time.monotonic,
        govern=Governor(request.output, request.config, request.api_key_file, request.admin_api_key_file),
    )


async def _run(request: BenchRequest, campaign: Campaign, inputs: Inputs, console: Console) -> None:
    course, plan = _course(request, campaign, inputs)
    with showing(console, Console(stderr=True, highlight=False), plan) as campaign.on_window:
        await course()


def _course(
    request: BenchRequest, campaign: Campaign, inputs: Inputs
) -> tuple[Callable[[], Awaitable[None]], Plan]:
    """What to do, and what to say of it beforehand."""
    rounds, timing = request.rounds, request.timing
    visits = len(campaign.targets) * rounds
    if inputs.phases is not None:
        seconds = visits * sum(phase.seconds for phase in inputs.phases)
        run = partial(courses.run_scenario, campaign, inputs.phases, inputs.source_of, rounds)
        return run, Plan(visits * len(inputs.phases), seconds, visits, timing.ramp_limit_s)
    if inputs.arrivals is not None:
        trace = partial(courses.run_trace, campaign, inputs.arrivals, rounds)
        return trace, Plan(visits, visits * max(at_s for at_s, _ in inputs.arrivals), drain_s=DRAIN_S)
    levels = len(request.concurrencies)
    starts = len(campaign.servers()) * rounds * levels
    seconds = len(campaign.servers()) * timing.warm_up_s
    seconds += visits * levels * (timing.settle_s + timing.window_s)
    sweep = partial(campaign.sweep, request.concurrencies, rounds)
    return sweep, Plan(visits * levels, seconds, starts, timing.ramp_limit_s)


async def _server(name: str, url: str, request: BenchRequest, stack: AsyncExitStack) -> ServerUnderTest:
    timeout = httpx.Timeout(REQUEST_TIMEOUT_S, connect=5.0)

    def http(option: str, key_file: Path | None) -> httpx.AsyncClient:
        headers = _authorization(option, key_file)
        return httpx.AsyncClient(base_url=url, timeout=timeout, headers=headers, transport=LoadTransport())

    load = await stack.enter_async_context(http("--api-key-file", request.api_key_file))
    admin = request.admin_api_key_file or request.api_key_file
    control = await stack.enter_async_context(http("--admin-api-key-file", admin))
    model = request.model or (await _served_model(load) if request.dialect is not Dialect.SGLANG else None)
    client = Client(load, time.monotonic, request.dialect, model)
    holder = holder_of(request.run_id, socket.gethostname(), os.getpid())
    return ServerUnderTest(name, client, EngineControl(control, time.monotonic, holder))


async def _adapt(
    servers: list[ServerUnderTest], request: BenchRequest, inputs: Inputs
) -> dict[str, list[str]]:
    """Leave out of requests what a server refuses; by its name."""
    found: dict[str, list[str]] = {}
    if request.dialect is Dialect.SGLANG:
        return found
    prompt = inputs.source_of(None).draw(random.Random(request.seed))  # noqa: S311 - load, not secrets
    streamed = request.stream_every > 0 or inputs.arrivals is not None
    for server in servers:
        without = await extras.refused(server.client, prompt, streamed=streamed)
        server.client = replace(server.client, without=without)
        if without:
            found[server.name] = sorted(without)
    return found


async def _served_model(http: httpx.AsyncClient) -> str:
    answer = await http.get("/v1/models")
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise BenchError(f"/v1/models of {http.base_url} names no model; give --model") from None


def _authorization(option: str, key_file: Path | None) -> dict[str, str]:
    if key_file is None:
        return {}
    try:
        return {"authorization": f"Bearer {key_file.read_text(encoding='utf-8').strip()}"}
    except OSError as problem:
        raise BadRequestError(
            f"{option} must be a readable file, got {key_file}: {problem.strerror}"
        ) from None


def _runnable(arms: list[BenchArm], state: dict[str, Any] | None) -> list[BenchArm]:
    """`arms` if the server can run them all; for none, every fixed arm that it can."""
    steered = [arm.label for arm in arms if arm.label != AS_IS]
    if state is None or not state.get("controllable"):
        if steered:
            why = (state or {}).get("reason") or "it has no /speculation (the plugin is not installed)"
            raise BenchError(f"arms {', '.join(steered)} need a server that can be steered: {why}")
        return arms or [BenchArm(AS_IS)]
    built = [d for d in state["built_depths"] if d > 0]
    gears = state.get("gears", []) if 0 in state["built_depths"] else []
    for arm in arms:
        if arm.fixed is not None and arm.fixed.depth and arm.fixed.depth not in built:
            raise BenchError(f"{arm.label} must be a built depth ({', '.join(map(str, built))})")
    _check_falls_back(arms, state)
    return arms or [
        *(arm_of(0, Gear(g)) for g in gears if g != Gear.FROZEN),
        *(arm_of(d, Gear.ON) for d in built),
    ]


def _check_falls_back(arms: list[BenchArm], state: dict[str, Any]) -> None:
    """Raise `BenchError` for an arm that would run at a depth which the fallback, not SGLang, chose."""
    fallback = state.get("fallback", "native")
    steered = any(arm.label != AS_IS for arm in arms)
    for arm in arms:
        if fallback != "native" and (arm.native or (steered and arm.label == AS_IS)):
            alone = "" if arm.native else ", or measure as-is in a run of its own, before the others"
            raise BenchError(
                f"{arm.label} beside other arms needs SGLang's own rule where a lease is given back, got the "
                f"fallback {fallback!r}: launch the server with SPECGOV_FALLBACK=native{alone}"
            )


async def _hand_back(control: EngineControl, url: str, console: Console) -> None:
    """However the benchmark ended; a server that does not take it keeps the last arm until its lease ends."""
    try:
        async with asyncio.timeout(HAND_BACK_WITHIN_S):
            await control.release()
    except LeaseHeldError:
        return  # it is another's, so nothing is ours
    except (EngineRefusedError, httpx.HTTPError, TimeoutError) as problem:
        why = str(problem) or f"no answer in {HAND_BACK_WITHIN_S:g} s"
        text = f"{url} was not handed back ({why}): the lease of the last arm ends by itself"
        console.print(text, style="yellow", markup=False, soft_wrap=True)


def _about(request: BenchRequest, state: dict[str, Any] | None, labels: list[str]) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": request.engine,
        "beside": dict(request.beside),
        "targets": labels,
        "sglang_version": (state or {}).get("sglang_version"),
        "plain_decode": (state or {}).get("plain_decode"),
        **request.options(),
    }


def _write(outcome: Outcome, folder: Path, console: Console) -> str | None:
    """Write what there is; what could not be, in a sentence.  Of an incomplete one no plots.

    Whoever sent SIGTERM may not wait for those.
    """
    if outcome.ended_by is not None and not outcome.windows:
        return None
    written: list[str] = []
    unsaved = None
    try:
        write_results(outcome, folder)
        written.append(RESULTS)
        if outcome.ended_by is None:
            for name in write_profile_and_plots(outcome, folder):
                written.append(name)  # noqa: PERF402 - those that were written before one that cannot be
    except ImportError:
        console.print("no plots: pip install 'specgov[plot]'", style="yellow")
    except UnwritableError as problem:
        unsaved = f"{problem}; saved: {', '.join(written) or 'nothing'}"
    if written and outcome.ended_by is None:
        console.print(f"written to {folder}: {', '.join(written)}", markup=False, soft_wrap=True)
    return unsaved


def _show(outcome: Outcome, console: Console) -> None:
    if any(w.phase is not None for w in outcome.measured()):
        console.print(report.phase_table(outcome))
    elif any(outcome.throughput().values()):
        console.print(report.throughput_table(outcome))
    if outcome.measured():
        console.print(report.latency_table(outcome))
    for doubt in report.contamination(outcome):
        console.print(doubt, style="yellow", markup=False, soft_wrap=True)
    for sentence in [*report.sentences(outcome), *report.left_out(outcome)]:
        console.print(sentence, markup=False, soft_wrap=True)
    for warning in report.warnings(outcome):
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
