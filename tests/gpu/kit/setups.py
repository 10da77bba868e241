"""What a server is started as: pure descriptions, turned into commands by `kit.engines`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HIGH, LOW = 0.745, 0.366
"""Acceptance per position.  Tokens a step at depth 1..4: 1.745, 2.30, 2.71, 3.02; 1.37, 1.50, 1.55, 1.57."""

GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
KV_TOKENS = 110_000
"""KV pool of one server: 256 requests of at most 576 tokens hold 82,000 on average; 14.4 GB at 8B."""


@dataclass(frozen=True)
class Setup:
    """One server, before it is started."""

    name: str
    speculative: bool = False
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = "llama8b"
    draft: str = "eagle3"
    attention: str = "triton"
    kv_tokens: int = KV_TOKENS
    graph_batch_sizes: Sequence[int] = GRAPH_BATCH_SIZES
    hook: bool = False
    """Whether the project's plugin is installed in it."""
    depths: tuple[int, ...] = ()
    """Depths built at start (speculative-adaptive); empty: SGLang's own table, or a fixed depth."""
    tokenizer: bool = False
    load_format: str = "dummy"
    acceptance: float = HIGH
    """Simulated from the start, per position; < 0: for real, for good."""
    gpus: str = os.environ.get("BENCH_GPUS", "0")
    """Indices of the GPUs that it sees: as many as it has tensor-parallel ranks."""

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.gpus.count(",") + 1

    def but(self, **changes: object) -> Setup:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def draft_of(model: str) -> str:
    """The draft of a model's width, among those of `models/`."""
    return {"llama8b": "eagle3", "llama8l": "eagle3", "llama8g": "eagle3", "llama8v": "eagle3v"}.get(
        model, f"eagle3{model}"
    )


def plain(name: str = "plain", **k: object) -> Setup:
    """Started without speculation: what off is measured against."""
    return Setup(name).but(**k)


def fixed(depth: int, name: str | None = None, **k: object) -> Setup:
    """Speculation at one depth, stock SGLang."""
    args = ("--speculative-num-steps", str(depth), "--speculative-num-draft-tokens", str(depth + 1))
    return Setup(name or f"fixed{depth}", speculative=True, args=args).but(**k)


def adaptive(name: str = "adaptive", **k: object) -> Setup:
    """SGLang's own --speculative-adaptive with its own table (depths 0, 1, 3, 7) and rule.

    0.5.17 sizes its buffers from the initial depth, which must therefore be the largest candidate; later
    releases do not, and start there too, so that they are compared alike.
    """
    return Setup(name, speculative=True, args=("--speculative-adaptive", "--speculative-num-steps", "7")).but(
        **k
    )


def table(
    name: str = "table", depths: tuple[int, ...] = (0, 1, 2, 4), *, hook: bool = True, **k: object
) -> Setup:
    """An adaptive server with these depths built at every batch size, and the plugin to choose among them."""
    args = ("--speculative-adaptive", "--speculative-num-steps", str(max(depths)))
    return Setup(name, speculative=True, args=args, depths=depths, hook=hook).but(**k)


def small(setup: Setup) -> Setup:
    """The same on an 8-layer model that starts fast: for smoke tests."""
    return setup.but(model="llama8l", kv_tokens=60_000, graph_batch_sizes=(1, 2, 4, 8, 16, 32))


def grammar(setup: Setup) -> Setup:
    """The same on an 8-layer model with a byte tokenizer, so that constrained decoding works."""
    return setup.but(
        model="llama8g", tokenizer=True, kv_tokens=60_000, graph_batch_sizes=(1, 2, 4, 8, 16, 32)
    )


def known(setup: Setup, folder: Path) -> Setup:
    """The same on models whose every output token is known, which `make_models.py FOLDER wide` has made."""
    return grammar(setup).but(model=str(folder / "target"), draft=str(folder / "draft"), load_format="auto")
