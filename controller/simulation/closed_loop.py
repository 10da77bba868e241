"""A closed loop in virtual time: C clients, each sending its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.simulation.engine import Request, VirtualEngine


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths, uniform between inclusive bounds."""

    prompt: tuple[int, int] = (128, 256)
    output: tuple[int, int] = (192, 320)


@dataclass(frozen=True, slots=True)
class ClosedLoopResult:
    """What one level of concurrency gave, after its warm-up."""

    concurrency: int
    seconds: float
    output_tok_s: float
    """Tokens emitted by decode steps per second, as SGLang's step log counts them."""
    requests: int


class ClosedLoop:
    """Keeps `concurrency` requests in an engine; the number may be changed while it runs."""

    def __init__(
        self, engine: VirtualEngine, rng: np.random.Generator, lengths: Lengths | None = None
    ) -> None:
        self._engine = engine
        self._rng = rng
        self._lengths = lengths or Lengths()
        self._here = 0
        self._sent = 0
        self.concurrency = 0
        engine.on_finish = self._finished

    def set_concurrency(self, concurrency: int) -> None:
        """From now on keep this many requests; surplus ones end by themselves."""
        self.concurrency = concurrency
        while self._here < self.concurrency:
            self._send()

    def measure(self, seconds: float, advance: Callable[[float], None] | None = None) -> ClosedLoopResult:
        """Let `seconds` of virtual time pass (by `advance(until_s)`, else the engine alone)."""
        engine = self._engine
        start_s, tokens, requests = engine.now_s, self._decoded(), len(engine.finished)
        (advance or engine.run_until)(start_s + seconds)
        elapsed_s = engine.now_s - start_s
        return ClosedLoopResult(
            self.concurrency,
            elapsed_s,
            (self._decoded() - tokens) / elapsed_s,
            len(engine.finished) - requests,
        )

    def _decoded(self) -> int:
        return self._engine.emitted_tokens - self._engine.prefill_first_tokens

    def _send(self) -> None:
        prompt, output = self._lengths.prompt, self._lengths.output
        request = Request(
            self._sent,
            self._engine.now_s,
            int(self._rng.integers(prompt[0], prompt[1] + 1)),
            int(self._rng.integers(output[0], output[1] + 1)),
        )
        self._sent += 1
        self._here += 1
        self._engine.submit(request)

    def _finished(self, _: Request) -> None:
        self._here -= 1
        if self._here < self.concurrency:
            self._send()
