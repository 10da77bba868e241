"""`specgov run`: the sidecar itself."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from controller import settings as settings_module
from controller.errors import SettingsError
from controller.settings import Settings

log = logging.getLogger("specgov")
SECRETS = frozenset({"api.token", "api.read_token", "engine.api_key", "engine.admin_api_key"})


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    *,
    config: Annotated[
        Path | None, typer.Option(envvar="SPECGOV_CONFIG", help="TOML file; see docs/settings.md.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Base URL of the SGLang server.")] = None,
    policy: Annotated[str | None, typer.Option(help="Who decides: threshold, fixed, native, ...")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the API.")] = None,
    store: Annotated[str | None, typer.Option(help="SQLite file, or :memory:.")] = None,
    dry_run: Annotated[bool | None, typer.Option("--dry-run/--no-dry-run", help="Never change it.")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, e.g. --set policies.fixed.depth=2.")
    ] = None,
) -> None:
    """Govern a server: observe, decide, push; serve the API.  SIGTERM hands back and ends."""
    flags = _flags(
        engine=engine,
        policy=policy,
        listen=listen,
        store=store,
        dry_run=dry_run,
        assign=assign or [],
    )
    start(settings_module.load(config, flags))


def start(settings: Settings) -> None:
    """Run a sidecar until a signal ends it."""
    from controller import garbage, lean_imports, logs, serving, wiring  # noqa: PLC0415  keeps the others quick

    logs.configure(settings.log.level, settings.log.format, settings.log.repeat_s)
    lean_imports.leave_out_pydantic_v1()
    with serving.listen(settings.api) as listener:
        assembly = wiring.assemble(settings)
        host, port = listener.getsockname()[:2]
        log.info(
            "governing %s with policy %s; API at http://%s:%d",
            settings.engine.url,
            settings.policy.name,
            host,
            port,
        )
        garbage.set_aside_start()
        asyncio.run(serving.serve(assembly, listener))


def _flags(
    *,
    engine: str | None,
    policy: str | None,
    listen: str | None,
    store: str | None,
    dry_run: bool | None,
    assign: list[str],
) -> dict[str, Any]:
    pairs: dict[str, Any] = {
        "engine.url": engine,
        "policy.name": policy,
        "store.path": store,
        "dry_run": dry_run,
    }
    if listen is not None:
        host, separator, port = listen.rpartition(":")
        if not separator:
            raise SettingsError(f"--listen must be HOST:PORT, got {listen!r}")
        pairs |= {"api.host": host.strip("[]"), "api.port": port}
    for text in assign:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(f"--set must be SECTION.KEY=VALUE, got {text!r}")
        if key in SECRETS:
            raise SettingsError(
                f"{key} must not be given on the command line, which every process can read: use {key}_file"
            )
        pairs[key] = value
    return settings_module.nested(pairs)
