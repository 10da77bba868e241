"""`specgov export-hooks`: the hook alone, for a stock SGLang image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli._common import fail, out
from controller.export_hooks import export_hooks as write


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export_hooks)


def export_hooks(
    folder: Annotated[Path, typer.Argument(help="Made when missing; an earlier export there is replaced.")],
) -> None:
    """Write the hook and its entry point into FOLDER; SGLang finds them with PYTHONPATH=FOLDER."""
    try:
        written = write(folder)
    except OSError as error:
        fail(f"{folder} must be a folder that can be written: {error.strerror}")
    out.print(f"{len(written)} files written to {folder}", soft_wrap=True)
    out.print(f"start SGLang with PYTHONPATH={folder.absolute()}", soft_wrap=True)
