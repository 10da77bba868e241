"""The SGLang releases that the hook supports, and what is wrong with some of them.  Pure.

`docs/support.md` says on what each release was run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SUPPORTED = ("0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Releases whose source has everything that governing touches, ascending."""

PLAIN_DECODE = ("0.5.17", "0.5.21", "0.5.22", "0.5.23")
"""Those on which plain decoding at depth 0 passed its tests; elsewhere depth 0 stays SGLang's own."""


@dataclass(frozen=True)
class Fault:
    """A fault of SGLang that looks like ours."""

    first: str
    last: str
    """The releases that have it, inclusive."""
    symptom: str
    way_round: str
    at_deepest: bool
    """Whether it shows even when the server starts at its deepest candidate."""


FAULTS = (
    Fault(
        "0.5.16",
        "0.5.18",
        "with --speculative-adaptive and CUDA graphs the server does not start below the largest candidate: "
        "the shared logits buffer is sized for the depth at start ('shared logits buffer holds N rows but "
        "caller needs M')",
        "--speculative-num-steps = the largest of candidate_steps, as specgov engine-flags prints, "
        "or SGLang 0.5.19 or newer",
        at_deepest=False,
    ),
    Fault(
        "0.5.17",
        "0.5.17",
        "with --speculative-adaptive and CUDA graphs the server does not start, or dies of an illegal memory "
        "access: the draft-extend graph of every candidate is as wide as that of the depth at start",
        "SGLang 0.5.16, or 0.5.18 or newer",
        at_deepest=True,
    ),
)


def faults_of(version: str | None) -> list[Fault]:
    """Known faults of a release; none for one that cannot be told."""
    number = _number(version)
    return [fault for fault in FAULTS if number and _number(fault.first) <= number <= _number(fault.last)]


def is_supported(version: str) -> bool:
    """Whether `version`, a post release included, is one of `SUPPORTED`."""
    return _number(version) in map(_number, SUPPORTED)


def _number(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, so that 0.5.17.post1 is 0.5.17; empty: it has none."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(map(int, match.groups())) if match else ()
