"""What is compared, and what is made of it.

    on          depth 3 throughout: what the others are compared with
    cold-8      depth 3, a spell of 8 steps off in the gear `cold`, depth 3 to the end; 32, 128 the same
    warm-32     the control: the draft's cache is kept in step, so nothing may differ
    frozen-32   off and `frozen` from the prompt on, then depth 3

Every request has to write what stands after its prompt in a file that the pair never saw: a grammar allows
nothing else.  A draft is accepted when it says the next byte, so acceptance is that of sampling from text as
it is, which a CPU engine cannot do by itself (it verifies greedily); left alone, a model this small soon
repeats itself, and repetition is easy to draft.

The spell is a probe of the plan that is in force, so it has its length in decode steps exactly.  Pure, but
for the files and the log that are read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.after_cold import accept_log
from tests.benchmarks.after_cold.by_age import DEPTH, Step, compare
from tests.benchmarks.after_cold.source_text import decode, prompts, read_files

PROMPT, OUTPUT = 64, 256
BATCH = 16
BEFORE = 12
"""Decode steps at depth 3 ahead of a spell."""
REST = 1 << 20
ON: dict[str, Any] = {"row": (1, DEPTH), "probe": None}


def spell(gear: str, steps: int) -> dict[str, Any]:
    """Depth 3 with one spell in `gear`, from the `BEFORE`th decode step of a batch on."""
    probe = {"depth": 0, "gear": gear, "every_steps": BEFORE + steps, "burst_steps": steps, "bursts": 1}
    return {"row": (1, DEPTH), "probe": probe}


def frozen(steps: int) -> dict[str, Any]:
    """Frozen for the prompt and `steps` decode steps, then depth 3."""
    probe = {"depth": DEPTH, "every_steps": steps + REST, "burst_steps": REST, "bursts": 1}
    return {"row": (1, 0, "frozen"), "probe": probe}


ARMS = {
    "on": ON,
    "cold-8": spell("cold", 8),
    "cold-32": spell("cold", 32),
    "cold-128": spell("cold", 128),
    "warm-32": spell("warm", 32),
    "frozen-32": frozen(32),
}


def batch_of(start: int, arm: str) -> list[int]:
    """The numbers of a batch of prompts, in an order of the arm's own, so that none lands on its drafts."""
    return random.Random(f"{start} {arm}").sample(range(start, start + BATCH), BATCH)


def texts(count: int, seed: int) -> list[list[int]]:
    """Stretches of held-out files: a prompt, what is to be written after it, and what a last chain needs."""
    files = [text for text in read_files(held_out=True) if text.isascii()]
    return prompts(files, count, PROMPT + OUTPUT + DEPTH + 1, seed)


def grammar(tokens: list[int]) -> str:
    """The grammar of one text alone."""
    return "root ::= " + json.dumps(decode(tokens).decode())


def request(
    arm: str,
    numbers: Sequence[int],
    asked: Sequence[list[int]],
    prompt: int = PROMPT,
    output: int = OUTPUT,
) -> dict[str, Any]:
    """The body for one batch of requests, which begin together and have to write what their files say.

    `prompt`: tokens of each that are given; `output`: tokens that are asked for.
    """
    base = {"max_new_tokens": output, "temperature": 0, "ignore_eos": True}
    return {
        "rid": [f"{arm}.{n}" for n in numbers],
        "input_ids": [asked[n][:prompt] for n in numbers],
        "sampling_params": [{**base, "ebnf": grammar(asked[n][prompt:])} for n in numbers],
        "stream": False,
    }


def steps_of(folder: Path) -> dict[str, dict[str, list[Step]]]:
    """{arm: {prompt's number: its steps}} from the server's log."""
    found: dict[str, dict[str, list[Step]]] = {}
    for rid, steps in accept_log.read(folder).items():
        arm, _, number = rid.rpartition(".")
        found.setdefault(arm, {})[number] = [Step(*step) for step in steps]
    return found


def common_length(one: list[int], other: list[int]) -> int:
    """Tokens of two answers before they differ."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(one))


def results(answers: dict[str, dict[int, Any]], steps: dict[str, dict[str, list[Step]]]) -> dict[str, Any]:
    """Figures of every arm."""
    reference, arms = answers["on"], {}
    for arm, found in answers.items():
        if arm != "on":
            same = {str(n): PROMPT + common_length(found[n], reference[n]) for n in found}
            equal = sum(length == PROMPT + OUTPUT for length in same.values())
            arms[arm] = {"equal_answers": equal, **compare(steps[arm], steps["on"], same)}
    return {
        "requests": len(reference),
        "arms": arms,
    }
