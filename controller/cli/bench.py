"""`specgov bench`: measure a server under every arm, and say what to run."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import Annotated

import typer

from controller.bench.client import Dialect
from controller.bench.load import MAX_CLIENTS
from controller.cli._common import Json, err, out, show_json
from controller.cli._exit import Exit
from controller.errors import BadRequestError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    *,
    engine: Annotated[str, typer.Option(help="Base URL of the server.")] = "http://127.0.0.1:30000",
    arms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: off-cold, off-warm, off-frozen, depth-N, native, policy:NAME, as-is. "
            "Left out: every fixed arm that the server can run."
        ),
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="NAME=URL of another server, measured as it is, alternated.")
    ] = None,
    plain: Annotated[
        list[str] | None, typer.Option(help="NAME=URL of a server without speculation, likewise.")
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Closed loop: clients at once.")] = "1,4,16,32,64,128",
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each arm at each concurrency.")] = 3,
    window: Annotated[float, typer.Option(min=0.1, help="Seconds of a window.")] = 5.0,
    settle: Annotated[float, typer.Option(min=0, help="Seconds before a window, the arm in use.")] = 1.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of load before everything.")] = 5.0,
    prompts: Annotated[
        str, typer.Option(help="encyclopedic, coding, tokens, or a ShareGPT file.")
    ] = "encyclopedic",
    arrivals: Annotated[Path | None, typer.Option(help="Open loop: an arrival trace (CSV, JSONL).")] = None,
    rate_scale: Annotated[float, typer.Option(min=1e-6, help="How many times as fast as the trace.")] = 1.0,
    scenario: Annotated[Path | None, typer.Option(help="TOML file of phases; see docs/bench.md.")] = None,
    dialect: Annotated[Dialect, typer.Option(help="Which API requests go to.")] = Dialect.SGLANG,
    model: Annotated[str | None, typer.Option(help="For --dialect openai; else the first served.")] = None,
    stream_every: Annotated[
        int, typer.Option(min=0, help="Of every so many clients one streams: 1 all, 0 none.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of prompts and lengths.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for results.json, profile.json, plots.")] = Path(
        "bench"
    ),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of another run in that folder.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings of the sidecar for policy: arms.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with SGLang's API key.")] = None,
    admin_api_key_file: Annotated[Path | None, typer.Option(help="File with its admin key.")] = None,
    as_json: Json = False,
) -> None:
    """Measure throughput and latency of every arm, alternated in time, and say what to run.

    Results of another run in the folder --output are replaced with --overwrite only, else it is refused.
    """
    from controller.bench import command  # noqa: PLC0415  keeps the other commands quick
    from controller.bench.campaign import Timing  # noqa: PLC0415
    from controller.bench.outcome import to_json  # noqa: PLC0415

    if scenario is not None and arrivals is not None:
        raise BadRequestError("only one of --scenario and --arrivals may be given, got both")
    others = [_named(text) for text in [*(plain or []), *(beside or [])]]
    request = command.BenchRequest(
        engine=engine.rstrip("/"),
        arms=tuple(part.strip() for part in (arms or "").split(",") if part.strip()),
        beside=tuple(others),
        plain=tuple(name for name, _ in others[: len(plain or [])]),
        concurrencies=_concurrencies(concurrency),
        rounds=rounds,
        timing=Timing(window_s=window, settle_s=settle, warm_up_s=warm_up),
        prompts=prompts,
        arrivals=arrivals,
        rate_scale=rate_scale,
        scenario=scenario,
        dialect=dialect,
        model=model,
        stream_every=stream_every,
        seed=seed,
        output=output,
        overwrite=overwrite,
        config=config,
        api_key_file=api_key_file,
        admin_api_key_file=admin_api_key_file,
        as_json=as_json,
        run_id=secrets.token_hex(4),
    )
    console = err if as_json else out
    try:
        outcome = command.run(request, console)
    except command.InterruptedBenchError as stopped:
        if as_json and stopped.outcome is not None:
            show_json(to_json(stopped.outcome))
        err.print(str(stopped), style="yellow", markup=False, soft_wrap=True)
        ended = Exit.INTERRUPTED if stopped.told is signal.SIGINT else Exit.TERMINATED
        raise typer.Exit(ended) from None
    except command.IncompleteBenchError as stopped:
        if as_json and stopped.outcome is not None:
            show_json(to_json(stopped.outcome))
        raise
    if as_json:
        show_json(to_json(outcome))


def _named(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not (name and separator and url.startswith("http")):
        raise BadRequestError(f"--plain and --beside must be NAME=URL, got {text!r}")
    return name, url.rstrip("/")


def _concurrencies(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        levels = ()
    if not levels or not 1 <= levels[0] <= levels[-1] <= MAX_CLIENTS:
        raise BadRequestError(
            f"--concurrency must be whole numbers 1..{MAX_CLIENTS} with commas, got {text!r}"
        )
    return levels
