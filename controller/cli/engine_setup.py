"""`specgov engine-flags` and `specgov preflight`: getting SGLang ready."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from controller import launch_flags
from controller import settings as settings_module
from controller.cli._common import Json, err, out, show_json
from controller.cli._exit import attend
from controller.errors import BadRequestError
from controller.preflight import Check, Facts, Verdict, check, passed
from controller.settings import EngineSettings
from sglang_hooks.releases import SUPPORTED, faults_of

_COLOURS = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.UNKNOWN: "red"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("engine-flags")(engine_flags)
    app.command()(preflight)


def engine_flags(
    *,
    depths: Annotated[str, typer.Option(help="Draft depths to build; 0 is off.")] = "0,1,2,4",
    config: Annotated[Path, typer.Option(help="Adaptive config file to write.")] = Path(
        "specgov-adaptive.json"
    ),
    algorithm: Annotated[str, typer.Option(help="EAGLE or EAGLE3.")] = "EAGLE3",
    draft_model: Annotated[str, typer.Option(help="Path of the draft model.")] = "DRAFT_MODEL",
    force: Annotated[bool, typer.Option("--force", help="Replace a config file that is another.")] = False,
    sglang: Annotated[
        str | None, typer.Option(help="SGLang release, such as 0.5.23, to be told its known faults.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the flags that SGLang must be started with, and write its adaptive config file."""
    wanted = launch_flags.parse_depths(depths)
    algorithm = launch_flags.parse_algorithm(algorithm)
    release = None if sglang is None else launch_flags.parse_release(sglang)
    _write(config, launch_flags.adaptive_config(wanted), force=force)
    flags = launch_flags.flags(wanted, str(config), algorithm=algorithm, draft_model=draft_model)
    faults = [fault for fault in faults_of(release) if fault.at_deepest]
    if as_json:
        notes = [dataclasses.asdict(fault) for fault in faults]
        show_json({"flags": flags, "config": str(config), "depths": wanted, "faults": notes})
        return
    out.print(" \\\n".join(flags), soft_wrap=True, markup=False)
    if 0 not in wanted:
        err.print("Depth 0 is left out: speculation can be made shallower, never turned off.", soft_wrap=True)
    for fault in faults:
        err.print(f"SGLang {release}: {fault.symptom}. Use {fault.way_round}.", soft_wrap=True, markup=False)
    if release is None:
        err.print(_for_which_releases(), soft_wrap=True, markup=False)


def _for_which_releases() -> str:
    """Said when no release is named: some do not start like this."""
    broken = ", ".join(each for each in SUPPORTED if any(f.at_deepest for f in faults_of(each)))
    return (
        f"For SGLang {SUPPORTED[0]} to {SUPPORTED[-1]}, but {broken} does not start with them as it was"
        " released; --sglang RELEASE tells what is known of yours."
    )


def _write(config: Path, text: str, *, force: bool) -> None:
    """Write the file; one that is there already may be somebody's own."""
    try:
        if not force and config.exists() and config.read_text(encoding="utf-8") != text:
            rule = "must be a new file, or one that holds just these depths"
            raise BadRequestError(
                f"--config {rule}, got {config}: give another name, or --force to replace it"
            )
        config.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequestError(
            f"--config must be a file that can be written, got {config}: {reason}"
        ) from None


def preflight(
    *,
    config: Annotated[Path | None, typer.Option(envvar="SPECGOV_CONFIG", help="Settings file.")] = None,
    engine: Annotated[str | None, typer.Option(help="Base URL of the SGLang server.")] = None,
    as_json: Json = False,
) -> None:
    """Check that a server can be governed; exit code 3 when it cannot."""
    settings = settings_module.load(config, settings_module.nested({"engine.url": engine}))
    asked = settings.engine.url.rstrip("/")
    checks = check(asyncio.run(_gather(settings.engine)))
    if as_json:
        show_json(
            {"engine": asked, "passed": passed(checks), "checks": [dataclasses.asdict(c) for c in checks]}
        )
    else:
        out.print(f"asked: {asked}", markup=False, soft_wrap=True)
        out.print(_table(checks))
        out.print("ready to be governed" if passed(checks) else "not ready: mend the failures from the top")
    if not passed(checks):
        attend()


async def _gather(settings: EngineSettings) -> Facts:
    from controller.scraper import read  # noqa: PLC0415  keeps the other commands quick
    from controller.wiring import make_client  # noqa: PLC0415

    client = make_client(settings)

    async def ask(fetch: Any) -> tuple[Any, Any]:
        reading = await read(fetch, time.monotonic)
        return reading.record, reading.error

    asked: list[Awaitable[tuple[Any, Any]]] = [
        ask(f) for f in (client.server_info, client.control_state, client.loads, client.metrics)
    ]
    (info, control, loads, metrics) = await asyncio.gather(*asked)
    await client.aclose()
    return Facts(*info, *control, *loads, *metrics)


def _table(checks: list[Check]) -> Table:
    table = Table("check", "", "found", "what mends it", box=None, pad_edge=False)
    for c in checks:
        mend = "" if c.verdict is Verdict.PASS else c.mend
        table.add_row(c.name, Text(str(c.verdict), _COLOURS[c.verdict]), Text(c.found), Text(mend))
    return table
