"""What the server is asked: sources of prompts.  Pure: randomness is handed in.

Kinds: `encyclopedic` (short question, long prose answer) and `coding` (a long file and tool output, a short
edit) are built here; `sharegpt` reads conversations from a JSON or JSONL file; `tokens` are random token ids,
for servers without a tokenizer.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: text, or token ids, and how many tokens of answer are asked for."""

    output_tokens: int
    text: str | None = None
    token_ids: tuple[int, ...] = ()

    def joined_at(self, share: float) -> Prompt:
        """This request as seen when `share` (0..1) of its answer is already there.

        A closed loop that starts with every client at a random point of its first request is in its steady
        state at once, instead of running in step for several requests.  The part of the answer that is
        "already there" becomes input, where the prompt is made of token ids; texts keep their length.
        """
        done = min(self.output_tokens - 1, int(share * self.output_tokens))
        ids = self.token_ids
        grown = ids + tuple(ids[i % len(ids)] for i in range(done)) if ids else ids
        return replace(self, output_tokens=self.output_tokens - done, token_ids=grown)


class PromptSource(Protocol):
    """Endless prompts; `rng` is the caller's, so that a seed gives the same load again."""

    def draw(self, rng: random.Random) -> Prompt:
        """The next prompt."""
        ...


@dataclass(frozen=True, slots=True)
class RandomTokens:
    """Random token ids; input and output lengths uniform between the bounds, both included."""

    input_tokens: tuple[int, int] = (128, 256)
    output_tokens: tuple[int, int] = (192, 320)
    token_range: tuple[int, int] = (1000, 30000)

    def __post_init__(self) -> None:
        """Raise `ValueError` unless every bound is a range of positive numbers."""
        for name in ("input_tokens", "output_tokens", "token_range"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} must be a range of positive numbers, got {low}..{high}")

    def draw(self, rng: random.Random) -> Prompt:
        """The next prompt."""
        ids = tuple(rng.randint(*self.token_range) for _ in range(rng.randint(*self.input_tokens)))
        return Prompt(rng.randint(*self.output_tokens), token_ids=ids)


def of_length(prompt_tokens: int, output_tokens: int, rng: random.Random, *, as_text: bool) -> Prompt:
    """A prompt of about this length, for arrival traces, which give lengths and no words."""
    if not as_text:
        return Prompt(output_tokens, token_ids=tuple(rng.randint(1000, 30000) for _ in range(prompt_tokens)))
    words = " ".join(
        f"{rng.choice(_NOUNS)}{rng.randrange(100):02d}" for _ in range(max(1, prompt_tokens // 2))
    )
    return Prompt(output_tokens, text=words)


_SUBJECTS = (
    "the Hanseatic League", "photosynthesis in C4 plants", "the Treaty of Westphalia", "plate tectonics",
    "the history of the periodic table", "Gothic architecture", "the human immune system", "the Silk Road",
    "the French Revolution", "black holes", "the domestication of maize", "the printing press",
    "the Ottoman Empire", "coral reefs", "the theory of evolution", "the Great Depression",
    "the structure of DNA", "the Roman aqueducts", "monsoons of South Asia", "the Meiji Restoration",
)  # fmt: skip
_ANGLES = (
    "Explain {s} to a curious reader, with dates, names and causes.",
    "Write an encyclopedia article about {s}.",
    "What are the main open questions about {s}? Discuss the evidence for each.",
    "Compare three schools of thought on {s}.",
    "Give a chronological overview of {s}, then its consequences.",
)


@dataclass(frozen=True, slots=True)
class Encyclopedic:
    """A short question with a long prose answer."""

    output_tokens: tuple[int, int] = (256, 768)

    def draw(self, rng: random.Random) -> Prompt:
        """The next prompt; a number keeps two of them from sharing a whole cached prefix."""
        text = rng.choice(_ANGLES).format(s=rng.choice(_SUBJECTS))
        return Prompt(rng.randint(*self.output_tokens), text=f"[{rng.randrange(10**6)}] {text}")


_VERBS = ("load", "merge", "index", "validate", "flush", "resolve", "encode", "route")
_NOUNS = ("session", "ledger", "shard", "manifest", "quota", "token", "replica", "batch")
_TASKS = (
    "The test below fails. Find the fault and answer with a unified diff.",
    "Add type annotations to every function and answer with the whole file.",
    "Call the tool `apply_patch` with a change that removes the duplicated code.",
    "Rename `{noun}` to `{noun}_v2` everywhere and answer with the whole file.",
)


@dataclass(frozen=True, slots=True)
class Coding:
    """An agent's turn: a source file and a failing test as input, an edit as output."""

    functions: tuple[int, int] = (8, 40)
    output_tokens: tuple[int, int] = (64, 512)

    def draw(self, rng: random.Random) -> Prompt:
        """The next prompt."""
        names = [
            f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}_{rng.randrange(1000)}"
            for _ in range(rng.randint(*self.functions))
        ]
        source = "\n\n".join(_function(name, rng) for name in names)
        failing = rng.choice(names)
        task = rng.choice(_TASKS).format(noun=rng.choice(_NOUNS))
        trace = f"FAILED test_{failing} - AssertionError: assert {rng.randrange(99)} == {rng.randrange(99)}"
        text = f"{task}\n\n```python\n{source}\n```\n\n```\n{trace}\n```\n"
        return Prompt(rng.randint(*self.output_tokens), text=text)


def _function(name: str, rng: random.Random) -> str:
    noun, limit = rng.choice(_NOUNS), rng.randrange(2, 512)
    return (
        f"def {name}(items, {noun}=None):\n"
        f"    out = []\n"
        f"    for i, item in enumerate(items):\n"
        f"        if {noun} is not None and i % {limit} == 0:\n"
        f"            out.append({noun})\n"
        f"        out.append(item * {rng.randrange(2, 9)})\n"
        f"    return out[:{limit}]"
    )


@dataclass(frozen=True, slots=True)
class Recorded:
    """Prompts in turn from a list, say of a ShareGPT file."""

    prompts: Sequence[Prompt]

    def draw(self, rng: random.Random) -> Prompt:
        """A random one of the list."""
        return self.prompts[rng.randrange(len(self.prompts))]


_CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English text; only sets how long an answer is asked for."""


def parse_sharegpt(text: str, *, longest_output: int = 1024) -> Recorded:
    """Read ShareGPT-style conversations: a JSON list, or one JSON object a line.

    Takes the first human turn of each and the length of the answer after it.  Raises `ValueError` when no
    conversation has both.
    """
    rows: list[dict[str, Any]] = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [json.loads(line) for line in text.splitlines() if line.strip()]
    )
    prompts = [p for row in rows if (p := _first_turn(row, longest_output)) is not None]
    if not prompts:
        raise ValueError("prompt file must hold `conversations` with a human turn and an answer, got none")
    return Recorded(prompts)


def _first_turn(row: dict[str, Any], longest_output: int) -> Prompt | None:
    turns = row.get("conversations") or row.get("messages") or []
    said = [(t.get("from") or t.get("role"), t.get("value") or t.get("content") or "") for t in turns]
    for (who, question), (_, answer) in itertools.pairwise(said):
        if who in ("human", "user") and question and answer:
            tokens = max(1, min(longest_output, len(answer) // _CHARACTERS_PER_TOKEN))
            return Prompt(tokens, text=question)
    return None
