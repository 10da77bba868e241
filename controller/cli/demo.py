"""`specgov demo`: a sidecar governing a simulated server, before your eyes."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli._common import Json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    *,
    seconds: Annotated[float, typer.Option(min=8, max=110, help="Length of the load.")] = 45.0,
    profile: Annotated[
        str, typer.Option(help="Cost profile: a file, or a shipped one.")
    ] = "h200_llama8b_triton",
    acceptance: Annotated[str, typer.Option(help="Accepted drafts per position, or over time.")] = "0.745",
    policy: Annotated[str | None, typer.Option(help="Who decides.")] = None,
    rehearse: Annotated[
        bool, typer.Option(help="Let a policy that learns see such a load beforehand, in virtual time.")
    ] = True,
    as_json: Json = False,
    keep: Annotated[bool, typer.Option("--keep", help="Go on until Ctrl-C, API and metrics up.")] = False,
    engine_only: Annotated[
        bool,
        typer.Option("--engine-only", help="The engine under its load, until Ctrl-C: bring your sidecar."),
    ] = False,
    idle: Annotated[
        bool, typer.Option("--idle", help="With --engine-only: send it nothing, say for specgov bench.")
    ] = False,
    engine_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    api_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, noise and acceptance.")] = 1,
) -> None:
    """See speculation turned down and up on a simulated server, and what that brings."""
    from controller.simulation.demo import command  # noqa: PLC0415  keeps the other commands quick

    request = command.DemoRequest(
        seconds=seconds,
        profile=profile,
        acceptance=acceptance,
        policy=policy or command.DEFAULT_POLICY,
        rehearse=rehearse,
        as_json=as_json,
        keep=keep,
        engine_only=engine_only,
        idle=idle,
        engine_port=engine_port,
        api_port=api_port,
        seed=seed,
    )
    command.run(request)
