"""What is fuzzed: bytes in, nothing out, nothing raised but what the function promises to raise.

`python -m tests.fuzz.guided TARGET SECONDS` runs one under coverage guidance; the ordinary tests replay
the corpora: files to start from, and in `TARGET/found.txt` what such runs found, an input a line in base64.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

from controller.control_state import parse_control_state
from controller.errors import SettingsError
from controller.exposition import parse_loads, parse_metrics, parse_server_info
from controller.observer import EngineSample, Observer
from controller.settings import load
from sglang_hooks.control_plane import ControlError
from sglang_hooks.endpoint import parse_json
from sglang_hooks.schedule import Command, InvalidPlanError, parse_plan

DEPTHS, GEARS = (0, 1, 2, 3), ("warm", "cold")


def exposition(data: bytes) -> None:
    """`/metrics`: known counts are counts."""
    sample = parse_metrics(data.decode("utf-8", "replace"))
    for rank in sample.ranks if sample else ():
        assert rank.running_reqs is None or rank.running_reqs >= 0
        assert rank.token_usage is None or rank.token_usage >= 0


def answers(data: bytes) -> None:
    """`/speculation`, `/v1/loads`, `/server_info`: parsed or refused, and then observed."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    sample = EngineSample(
        1.0, parse_loads(body), control=parse_control_state(body), info=parse_server_info(body)
    )
    observer = Observer()
    for now_s in (1.0, 2.0):
        observer.observe(sample, now_s)


def plans(data: bytes) -> None:
    """The body of a `PUT`: what is accepted survives the way to the ranks unchanged."""
    try:
        plan = parse_plan(parse_json(data), DEPTHS, GEARS)
    except (ControlError, InvalidPlanError):
        return
    sent = Command(1, plan.sequence, plan.schedule, plan.probe)
    assert Command.from_wire(sent.to_wire(), DEPTHS, GEARS) == sent


def wire(data: bytes) -> None:
    """Keys on SGLang's own endpoint: a command that is read is one that writes the same again."""
    try:
        flat = json.loads(data)
        if not isinstance(flat, dict):
            return
        command = Command.from_wire(flat, DEPTHS, GEARS)
    except (ValueError, RecursionError):
        return
    assert Command.from_wire(command.to_wire(), DEPTHS, GEARS) == command


def settings(data: bytes) -> None:
    """A settings file: read, or refused with a message."""
    try:
        tree = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(SettingsError):
        load(flags=tree, environ={})


CORPUS = Path(__file__).parent / "corpus"
FOUND = "found.txt"


def files(name: str) -> dict[str, bytes]:
    """The inputs to start from, by name."""
    return {file.name: file.read_bytes() for file in (CORPUS / name).iterdir() if file.name != FOUND}


def corpus(name: str) -> dict[str, bytes]:
    """All inputs that are kept for a target."""
    found = CORPUS / name / FOUND
    lines = found.read_text(encoding="ascii").splitlines() if found.exists() else []
    return files(name) | {f"{FOUND}:{n}": base64.b64decode(line) for n, line in enumerate(lines, 1)}


TARGETS: dict[str, Callable[[bytes], None]] = {
    "exposition": exposition,
    "answers": answers,
    "plans": plans,
    "wire": wire,
    "settings": settings,
}
