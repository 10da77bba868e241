"""`specgov knowledge`: carry what one sidecar has learned to others of the same deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from controller import knowledge_file
from controller import settings as settings_module
from controller.cli._common import DEFAULT_URL, EXIT_USAGE, TokenFile, Url, call, fail, out, show_json
from controller.errors import KnowledgeFileError, SettingsError
from controller.store import Store

Config = Annotated[Path | None, typer.Option(envvar="SPECGOV_CONFIG", help="Settings file.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Carry what was learned to other pods of the same deployment.")
    group.command("export")(export)
    group.command("import")(import_)
    app.add_typer(group, name="knowledge")


def export(file: Path, *, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Write what a running sidecar has learned to FILE (-: standard output), for `store.seed`."""
    body = call("GET", url, "/v1/knowledge", token_file)
    if str(file) == "-":
        show_json(body)
        return
    try:
        file.write_text(json.dumps(body) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_USAGE)
    out.print(f"{len(body['learned'])} deployment(s) written to {file}", soft_wrap=True)


def import_(file: Path, *, config: Config = None) -> None:
    """Put FILE into the state database of a sidecar that is not running."""
    try:
        pieces = knowledge_file.read(file)
        settings = settings_module.load(config)
    except (KnowledgeFileError, SettingsError) as error:
        fail(str(error), EXIT_USAGE)
    limits = {"max_rows": settings.store.max_decisions, "max_bytes": settings.store.max_bytes}
    store = Store(settings.store_path, **limits)
    for piece in pieces:
        store.save_learned(piece.key, piece.state, piece.at_unix_s)
    store.close()
    out.print(f"{len(pieces)} deployment(s) taken into {settings.store_path}", soft_wrap=True)
