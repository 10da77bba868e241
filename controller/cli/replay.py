"""`specgov replay`: policies against a recorded load and a measured cost profile, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli._common import Json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(replay)


def replay(
    *,
    profile: Annotated[str, typer.Option(help="Cost profile: a file, or the name of a shipped one.")],
    arrivals: Annotated[Path, typer.Option(help="Trace: Azure or BurstGPT CSV, Mooncake or own JSONL.")],
    policy: Annotated[list[str] | None, typer.Option(help="A policy; may be given again.")] = None,
    acceptance: Annotated[
        str, typer.Option(help="Per position: 0.745, 0.8/0.7/0.6, or over time 0.745@0,0.366@300,...")
    ] = "0.745",
    rate_scale: Annotated[float, typer.Option(help="Arrivals this many times as fast.")] = 1.0,
    duration: Annotated[
        float | None, typer.Option(help="Seconds: cut the trace there, or repeat it until then.")
    ] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Let policies learn on a first pass.")] = False,
    baselines: Annotated[bool, typer.Option(help="Also replay always-off and every fixed depth.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a trace with bad rows.")] = False,
    plain_decode: Annotated[bool, typer.Option(help="Off-cold costs what plain decoding costs.")] = True,
    max_running: Annotated[int, typer.Option(min=1, max=4096, help="Running requests at most.")] = 256,
    kv_tokens: Annotated[int, typer.Option(min=1, help="Size of the KV pool in tokens.")] = 1_000_000,
    noise: Annotated[float, typer.Option(min=0, max=1, help="Spread of step times (log).")] = 0.03,
    after_cold: Annotated[
        float, typer.Option(min=0, max=1, help="Acceptance after a cold spell, as a factor.")
    ] = 0.99,
    after_frozen: Annotated[
        float, typer.Option(min=0, max=1, help="The same of requests prefilled while frozen.")
    ] = 0.97,
    first_step: Annotated[
        float, typer.Option(min=0, max=1, help="The same in the first step that drafts again.")
    ] = 0.0,
    tick: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds between decisions.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of noise and acceptance.")] = 1,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG, SVG or PDF).")] = None,
) -> None:
    """Replay a trace under policies; report regret, latency, switches and probes.  See docs/simulator.md."""
    from controller.simulation import replay_command  # noqa: PLC0415  keeps the other commands quick
    from controller.simulation.acceptance import AfterOff  # noqa: PLC0415
    from controller.simulation.engine import EngineConfig  # noqa: PLC0415

    request = replay_command.ReplayRequest(
        profile=profile,
        arrivals=arrivals,
        policies=tuple(policy or [replay_command.DEFAULT_POLICY]),
        acceptance=acceptance,
        rate_scale=rate_scale,
        duration_s=duration,
        warm=warm,
        baselines=baselines,
        strict=strict,
        engine=EngineConfig(
            max_running_requests=max_running,
            kv_tokens=kv_tokens,
            noise=noise,
            after_off=AfterOff(first_step=first_step, cold=after_cold, frozen=after_frozen),
            plain_decode=plain_decode,
        ),
        tick_s=tick,
        seed=seed,
        as_json=as_json,
        plot=plot,
    )
    replay_command.run(request)
