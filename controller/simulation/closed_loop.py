"""A closed loop in virtual time: C clients, each sending its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.simulation.acceptance import Acceptance
from controller.simulation.arms import Arm, arm_rows
from controller.simulation.controls import FixedControl, HookControl
from controller.simulation.cost_profile import CostProfile
from controller.simulation.engine import EngineConfig, Request, StepControl, VirtualEngine
from controller.simulation.virtual_sidecar import VirtualSidecar
from policies.base import Policy


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
    decode_steps: int


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
        steps = engine.decode_steps
        (advance or engine.run_until)(start_s + seconds)
        elapsed_s = engine.now_s - start_s
        return ClosedLoopResult(
            self.concurrency,
            elapsed_s,
            (self._decoded() - tokens) / elapsed_s,
            len(engine.finished) - requests,
            engine.decode_steps - steps,
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


@dataclass(frozen=True, slots=True)
class Bench:
    """A closed-loop measurement: every level is held for `settle_s`, then measured for `measure_s`."""

    profile: CostProfile
    acceptance: Acceptance
    levels: Sequence[int]
    settle_s: float = 10.0
    measure_s: float = 30.0
    engine: EngineConfig = field(default_factory=EngineConfig)
    lengths: Lengths = field(default_factory=Lengths)
    seed: int = 1

    def arms(self) -> list[Arm]:
        """The arms of its engine."""
        return list(arm_rows(self.profile, plain_decode=self.engine.plain_decode))

    def hold(self, arm: Arm) -> list[ClosedLoopResult]:
        """One arm at every level."""
        return self.steer(FixedControl(arm))

    def native(self) -> list[ClosedLoopResult]:
        """SGLang's own adaptive rule at every level."""
        return self.steer(HookControl(self.arms()))

    def steer(self, control: StepControl) -> list[ClosedLoopResult]:
        """Any control, each level on a new engine."""
        results = []
        for level in self.levels:
            engine, loop = self._start(control)
            loop.set_concurrency(level)
            loop.measure(self.settle_s)
            results.append(loop.measure(self.measure_s))
            engine.log.steps.clear()
        return results

    def govern(
        self, policy: Policy, tick_s: float = 1.0, put_delay_s: float = 0.014
    ) -> list[ClosedLoopResult]:
        """A policy, through all levels in their order on one engine, so that it keeps what it learned."""
        control = HookControl(self.arms())
        engine, loop = self._start(control)
        results = []
        with VirtualSidecar(engine, control, policy) as sidecar:

            def advance(until_s: float) -> None:
                while engine.now_s < until_s:
                    engine.run_until(min(until_s, engine.now_s + tick_s))
                    sidecar.turn(engine.run_until, put_delay_s)
                    engine.log.steps.clear()

            for level in self.levels:
                loop.set_concurrency(level)
                loop.measure(self.settle_s, advance)
                results.append(loop.measure(self.measure_s, advance))
        return results

    def _start(self, control: StepControl) -> tuple[VirtualEngine, ClosedLoop]:
        rng = np.random.default_rng(self.seed)
        engine = VirtualEngine(self.profile, self.acceptance, control, rng, self.engine)
        return engine, ClosedLoop(engine, np.random.default_rng(self.seed + 1), self.lengths)
