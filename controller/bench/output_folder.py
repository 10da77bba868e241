"""The folder that a benchmark writes into: made before anything is sent, never written over unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller.bench.cost_profile import cost_profile
from controller.bench.outcome import Outcome, to_json
from controller.bench.plots import draw
from controller.errors import BadRequestError

RESULTS = "results.json"
PROFILE = "profile.json"
WRITTEN = (RESULTS, PROFILE, "throughput.png", "depth.png")
"""All that a benchmark may write there; what policies learned is no result, and stays."""


class UnwritableError(Exception):
    """A file of the results could not be written; the message names it and says why."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when the block ends well.

    A half-written file would pass for the results of a run.  Raises `UnwritableError`.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as problem:
        raise UnwritableError(f"{path} could not be written: {problem.strerror or problem}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def output_folder(folder: Path, *, overwrite: bool) -> Iterator[None]:
    """Make the folder, before hours of measuring; take it away again when nothing came into it.

    Raises `BadRequestError` when it cannot be made, or holds the results of a run and `overwrite` is false.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = [name for name in WRITTEN if (folder / name).exists()]
    except OSError as problem:
        raise BadRequestError(f"--output must be a folder, got {folder}: {problem.strerror}") from None
    if held and not overwrite:
        rule = "--output must be a folder without the results of another run"
        remedy = "give another --output, or --overwrite to replace them"
        raise BadRequestError(f"{rule}, got {folder} with {', '.join(held)}: {remedy}")
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # not empty
                folder.rmdir()


def write_results(outcome: Outcome, folder: Path) -> None:
    """Replace what another run left by the results of this one; raises `UnwritableError`."""
    with replacing(folder / RESULTS) as path:
        path.write_text(json.dumps(to_json(outcome), indent=1) + "\n", encoding="utf-8")
        for name in WRITTEN:  # a plot or profile that this run does not write would pass for its own
            (folder / name).unlink(missing_ok=True)


def write_profile_and_plots(outcome: Outcome, folder: Path) -> Iterator[str]:
    """Write what the outcome can show, one file's name after another.

    Raises `UnwritableError`, and `ImportError` without matplotlib.
    """
    profile = cost_profile(outcome, folder.name)
    if profile is not None:
        with replacing(folder / PROFILE) as path:
            path.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
        yield PROFILE
    for name, figure in draw(outcome):
        with replacing(folder / name) as path:
            figure.savefig(path, dpi=120, format="png")
        yield name
