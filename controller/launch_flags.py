"""How SGLang must be started to be governed.  Pure.

Each depth that may ever be asked for must be a candidate of SGLang's adaptive controller, which builds one
runtime state per candidate at start.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from controller.errors import SettingsError
from sglang_hooks.releases import SUPPORTED, is_supported

MAX_DEPTH = 16
ALGORITHMS = ("EAGLE", "EAGLE3")
"""Those whose worker can change its depth."""


def parse_algorithm(text: str) -> str:
    """One of `ALGORITHMS`, as SGLang spells it; raises `SettingsError`."""
    if text.upper() not in ALGORITHMS:
        rule = f"--algorithm must be {' or '.join(ALGORITHMS)}, the ones that can be governed"
        raise SettingsError(f"{rule}, got {text!r}")
    return text.upper()


def parse_release(text: str) -> str:
    """An SGLang release that the hook knows, without a leading v; raises `SettingsError`."""
    release = text.strip().removeprefix("v")
    if not is_supported(release):
        rule = f"--sglang must be a release that the hook knows, {SUPPORTED[0]} to {SUPPORTED[-1]}"
        raise SettingsError(f"{rule}, got {text!r}; docs/support.md has the table")
    return release


def parse_depths(text: str) -> list[int]:
    """`0,1,2,4` as sorted numbers; raises `SettingsError`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) <= MAX_DEPTH for part in parts):
        raise SettingsError(
            f"--depths must be numbers 0..{MAX_DEPTH} with commas, such as 0,1,2,4, got {text!r}"
        )
    depths = sorted(int(part) for part in parts)
    twice = sorted({depth for depth in depths if depths.count(depth) > 1})
    if twice:
        once = ",".join(str(depth) for depth in sorted(set(depths)))
        named = ", ".join(map(str, twice))
        raise SettingsError(f"--depths must name each depth once, got {text!r} ({named} twice): try {once}")
    if depths[-1] == 0:
        raise SettingsError(f"--depths must name a depth above 0 to speculate at, got {text!r}")
    return depths


def adaptive_config(depths: Sequence[int]) -> str:
    """The file for `--speculative-adaptive-config`: the same candidates at every batch size.

    What SGLang's own rule would do with them matters only while no plan is in force.
    """
    return json.dumps({"1": {"candidate_steps": list(depths)}}, indent=2) + "\n"


def flags(depths: Sequence[int], config: str, *, algorithm: str, draft_model: str) -> list[str]:
    """The launch flags, each with its value quoted for a shell.

    The server starts at the largest candidate: releases up to 0.5.18 do not start otherwise,
    and buffers are sized for it in any case.
    """
    deepest = max(depths)
    return [
        f"--speculative-algorithm {shlex.quote(algorithm)}",
        f"--speculative-draft-model-path {shlex.quote(draft_model)}",
        f"--speculative-num-steps {deepest}",
        "--speculative-eagle-topk 1",
        f"--speculative-num-draft-tokens {deepest + 1}",
        "--speculative-adaptive",
        f"--speculative-adaptive-config {shlex.quote(config)}",
        "--enable-metrics",
    ]
