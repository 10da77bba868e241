"""`specgov export-hooks`: the hook alone, for a stock SGLang image."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from controller.cli._common import Json, out, show_json
from controller.errors import BadRequestError
from controller.export_hooks import export_hooks as write


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export_hooks)


def export_hooks(
    folder: Annotated[Path, typer.Argument(help="Made when missing; an earlier export there is replaced.")],
    *,
    as_json: Json = False,
) -> None:
    """Write the hook and its entry point into FOLDER; SGLang finds them with PYTHONPATH=FOLDER."""
    try:
        written = write(folder)
    except OSError as error:
        rule = f"FOLDER must be one that uid {os.getuid()} can write"
        raise BadRequestError(f"{rule}, got {folder}: {error.strerror}: {error.filename}") from None
    if as_json:
        show_json({"pythonpath": str(folder.absolute()), "files": [str(path) for path in written]})
        return
    out.print(f"{len(written)} files written to {folder}", soft_wrap=True)
    out.print(f"start SGLang with PYTHONPATH={shlex.quote(str(folder.absolute()))}", soft_wrap=True)
