"""`specgov bench`: measure a server under every arm, and say what to run."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from controller.bench.client import Dialect
from controller.bench.load import MAX_CLIENTS
from controller.cli._common import Json, err, out, show_json
from controller.cli._exit import Exit
from controller.errors import BadRequestError

CONCURRENCIES = "1,4,16,32,64,128"


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
    concurrency: Annotated[
        str | None, typer.Option(help=f"Closed loop: clients at once. Left out: {CONCURRENCIES}.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each arm at each concurrency.")] = 3,
    window: Annotated[
        float | None, typer.Option(help="Closed loop: seconds of a window. Left out: 5.")
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(help="Closed loop: seconds before a window, the arm in use. Left out: 1."),
    ] = None,
    warm_up: Annotated[
        float | None, typer.Option(help="Closed loop: seconds of load before everything. Left out: 5.")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="encyclopedic, coding, tokens, or a ShareGPT file.")
    ] = "encyclopedic",
    arrivals: Annotated[Path | None, typer.Option(help="Open loop: an arrival trace (CSV, JSONL).")] = None,
    rate_scale: Annotated[
        float | None, typer.Option(help="How many times as fast as the trace of --arrivals; else 1.")
    ] = None,
    scenario: Annotated[Path | None, typer.Option(help="TOML file of phases; see docs/bench.md.")] = None,
    dialect: Annotated[
        Dialect,
        typer.Option(
            help="Which API requests go to: sglang /generate, openai /v1/completions, "
            "openai-chat /v1/chat/completions."
        ),
    ] = Dialect.SGLANG,
    model: Annotated[
        str | None, typer.Option(help="For --dialect openai and openai-chat; else the first served.")
    ] = None,
    stream_every: Annotated[
        int | None, typer.Option(min=0, help="Of every so many clients one streams: 0 none; else 1, all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and lengths.")] = 0,
    output: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for results.json, profile.json, plots.")
    ] = "bench",
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
    from controller.bench import command, endings  # noqa: PLC0415  keeps the other commands quick
    from controller.bench.campaign import Timing  # noqa: PLC0415
    from controller.bench.outcome import to_json  # noqa: PLC0415
    from controller.bench.request import BenchRequest  # noqa: PLC0415

    _check_one_load({"--scenario": scenario, "--arrivals": arrivals, "--concurrency": concurrency})
    if not output.strip():
        raise BadRequestError(f"--output must name a folder, got {output!r}")
    given: dict[str, object] = {"--window": window, "--settle": settle, "--warm-up": warm_up}
    given |= {
        "--stream-every": stream_every,
        "--model": model,
        "--config": config,
        "--rate-scale": rate_scale,
    }
    _check_left_out(given, _of_no_account(scenario, arrivals, dialect, _arms(arms)))
    _check_within("--window", window, 0.1, 86_400)
    _check_within("--settle", settle, 0, 3600)
    _check_within("--warm-up", warm_up, 0, 3600)
    _check_within("--rate-scale", rate_scale, 1e-6, 1e6)
    known = {"window_s": window, "settle_s": settle, "warm_up_s": warm_up}
    others = [_named(text) for text in [*(plain or []), *(beside or [])]]
    request = BenchRequest(
        engine=_url("--engine", engine),
        arms=_arms(arms),
        beside=tuple(others),
        plain=tuple(name for name, _ in others[: len(plain or [])]),
        concurrencies=_concurrencies(CONCURRENCIES if concurrency is None else concurrency),
        rounds=rounds,
        timing=Timing(**{name: value for name, value in known.items() if value is not None}),
        prompts=prompts,
        arrivals=arrivals,
        rate_scale=1.0 if rate_scale is None else rate_scale,
        scenario=scenario,
        dialect=dialect,
        model=model,
        stream_every=1 if stream_every is None else stream_every,
        seed=seed,
        output=Path(output),
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
    except endings.InterruptedBenchError as stopped:
        if as_json and stopped.outcome is not None:
            show_json(to_json(stopped.outcome))
        err.print(str(stopped), style="yellow", markup=False, soft_wrap=True)
        ended = Exit.INTERRUPTED if stopped.told is signal.SIGINT else Exit.TERMINATED
        raise typer.Exit(ended) from None
    except endings.MeasuredBenchError as stopped:
        if as_json and stopped.outcome is not None:
            show_json(to_json(stopped.outcome))
        raise
    if as_json:
        show_json(to_json(outcome))


def _check_one_load(given: dict[str, object]) -> None:
    both = [option for option, value in given.items() if value is not None]
    if len(both) > 1:
        raise BadRequestError(f"only one of {', '.join(given)} may be given, got {' and '.join(both)}")


def _of_no_account(
    scenario: Path | None, arrivals: Path | None, dialect: Dialect, arms: tuple[str, ...]
) -> dict[str, str]:
    """Options that would change nothing beside these, and what they must come with."""
    found: dict[str, str] = {}
    if scenario is not None or arrivals is not None:
        other = "--arrivals" if scenario is None else "--scenario"
        rule = f"with a closed loop (--concurrency), got it with {other}"
        found |= dict.fromkeys(("--window", "--settle", "--warm-up"), rule)
    if arrivals is None:
        found["--rate-scale"] = "with --arrivals, whose times it divides, got none"
    else:
        found["--stream-every"] = "without --arrivals, whose requests all stream"
    if dialect is Dialect.SGLANG:
        found["--model"] = "with --dialect openai or openai-chat, got it with sglang, which asks for no model"
    if not any(label.startswith("policy:") for label in arms):
        found["--config"] = "with an arm policy:NAME in --arms, whose settings it holds"
    return found


def _check_left_out(given: Mapping[str, object], of_no_account: Mapping[str, str]) -> None:
    """Refuse what would change nothing: whoever gives it thinks that it does."""
    for option, rule in of_no_account.items():
        if given[option] is not None:
            raise BadRequestError(f"{option} must come {rule}: leave it out")


def _check_within(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:  # not a number is neither
        raise BadRequestError(f"{option} must be a number {least:g} to {most:g}, got {value:g}")


def _url(option: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadRequestError(
            f"{option} must be an http:// or https:// URL, such as http://127.0.0.1:30000, got {text!r}"
        )
    return text.rstrip("/")


def _named(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not (name and separator):
        raise BadRequestError(f"--plain and --beside must be NAME=URL, got {text!r}")
    return name, _url("the URL of --plain and --beside", url)


def _arms(text: str | None) -> tuple[str, ...]:
    labels = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(labels):
        raise BadRequestError(f"--arms must be labels with one comma between two, got {text!r}")
    return labels


def _concurrencies(text: str) -> tuple[int, ...]:
    try:
        levels = sorted(int(part) for part in text.split(","))
    except ValueError:
        levels = []
    if not levels or not 1 <= levels[0] <= levels[-1] <= MAX_CLIENTS:
        raise BadRequestError(
            f"--concurrency must be whole numbers 1..{MAX_CLIENTS} with commas, got {text!r}"
        )
    if len(set(levels)) < len(levels):
        raise BadRequestError(f"--concurrency must hold each number once, got {text!r}")
    return tuple(levels)
