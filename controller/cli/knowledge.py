"""`specgov knowledge`: carry what one sidecar has learned to others of the same deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from controller import knowledge_file
from controller import settings as settings_module
from controller.cli._common import DEFAULT_URL, Json, TokenFile, Url, call, out, show_json
from controller.errors import BadRequestError
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
        raise BadRequestError(f"FILE must be one that can be written, got {file}: {error.strerror}") from None
    out.print(f"{len(body['learned'])} deployment(s) written to {file}", soft_wrap=True)


def import_(file: Path, *, config: Config = None, as_json: Json = False) -> None:
    """Put FILE into the state database of a sidecar that is not running."""
    pieces = knowledge_file.read(file)
    settings = settings_module.load(config)
    limits = {"max_rows": settings.store.max_decisions, "max_bytes": settings.store.max_bytes}
    store = Store(settings.store_path, **limits)
    for piece in pieces:
        store.save_learned(piece.key, piece.state, piece.at_unix_s)
    store.close()
    if as_json:
        show_json({"deployments": len(pieces), "store": str(settings.store_path)})
        return
    out.print(f"{len(pieces)} deployment(s) taken into {settings.store_path}", soft_wrap=True)
