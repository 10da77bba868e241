"""`specgov`: one module of this package per group of commands.

Each module with a function `register(app)` adds its commands to the Typer app; modules whose names begin
with an underscore are helpers.  Nothing else needs to know of a new command.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Collection
from typing import Annotated

import typer

from controller.cli._exit import EPILOG, Commands, Exit, end_when_told
from sglang_hooks import __version__

# The matrices of a policy are small.  More BLAS threads only spin, and in a container whose CPU limit is
# below the host's core count they are throttled: one inversion then takes 600 ms instead of 1.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# httpx's own command line, which it imports where rich is installed: 3 MB in every sidecar, never run.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def make_app(names: Collection[str] | None = None) -> typer.Typer:
    """The app with all commands, or with those of the modules in `names` only."""
    app = typer.Typer(
        name="specgov",
        help="Decides, live, how deep an SGLang server should speculate.",
        epilog=EPILOG,
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for module in sorted(_modules() if names is None else names):
        importlib.import_module(f"{__name__}.{module}").register(app)
    return app


def _modules() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_show_version)
]


def _root(*, version: Version = False) -> None:
    """Decides, live, how deep an SGLang server should speculate."""


def main(loaded: Callable[[], object] = lambda: None) -> None:
    """Run the command that was typed; `loaded` is called before it begins.

    A command named as its module needs no other: the sidecar carries none in memory.
    """
    asked = sys.argv[1:2]
    end_when_told(Exit.DONE if asked == ["run"] else Exit.TERMINATED)  # a sidecar not begun owes nothing
    app = make_app(asked if asked and asked[0] in _modules() else None)
    loaded()
    app()
