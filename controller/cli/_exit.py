"""How every command ends: the exit codes, what they mean, and the one place that turns errors into them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from controller.errors import BadRequestError, KnowledgeFileError, SettingsError, SpecgovError


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    ATTENTION = 3
    INTERRUPTED = 130
    TERMINATED = 143


MEANING = {
    Exit.DONE: "done",
    Exit.FAILED: "could not be done: sidecar or engine away, an order refused",
    Exit.USAGE: "wrong usage: an option, a setting or a file that breaks its rule; nothing was done",
    Exit.ATTENTION: "done, and the answer is no: preflight failed, or something needs attention",
    Exit.INTERRUPTED: "ended by Ctrl-C before it was done",
    Exit.TERMINATED: "ended by SIGTERM before it was done",
}
EPILOG = "Exit codes: " + "; ".join(f"{code:d} {text}" for code, text in MEANING.items()) + "."


UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of what is written to: a pipe that nobody reads is none of them, Typer ends that quietly."""


class Commands(TyperGroup):
    """The commands; an error of ours ends any of them with one line and its code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return _run_to_the_last_byte(super().invoke, ctx)
        except SpecgovError as error:
            _say(error)
            sys.exit(code_of(error))
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            _say(f"the output cannot be written: {error.strerror}")
            _drop_output()
            sys.exit(Exit.FAILED)
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)


def _run_to_the_last_byte(run: Callable[[Any], Any], ctx: Any) -> Any:
    """What `run` printed is written when it ends, whatever its code; raises `OSError` when it cannot be."""
    try:
        answer = run(ctx)
    except typer.Exit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return answer


def _drop_output() -> None:
    """Else the interpreter tries once more to write what is left, and ends with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(error: SpecgovError | str) -> None:
    from rich.text import Text  # noqa: PLC0415  a sidecar that runs needs no colours

    from controller.cli._common import err  # noqa: PLC0415

    err.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)


def code_of(error: SpecgovError) -> Exit:
    """Whether to blame what was typed and configured, or the world."""
    blamed = SettingsError | BadRequestError | KnowledgeFileError
    return Exit.USAGE if isinstance(error, blamed) else Exit.FAILED


def end_when_told(code: Exit) -> None:
    """Let SIGTERM end the first process of a container with `code`, what is open being closed.

    There alone the signal has no default: the kernel drops it, and whoever stops the container waits
    until its patience is over.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))


def attend() -> NoReturn:
    """End with the code for: done, and the answer is no."""
    raise typer.Exit(Exit.ATTENTION)
