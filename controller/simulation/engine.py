"""Continuous batching in virtual time: queue, prefill, decode steps, finishing, retraction.

What is modelled, after SGLang's scheduler with overlap and without mixed chunks:

- waiting requests are prefilled first, in chunks of `chunked_prefill_tokens`, and decoding stands still
  meanwhile; a prefill emits a request's first token;
- a request is admitted when a slot is free and its prompt, plus `new_token_ratio` of what all admitted
  requests have still to write, fits into the KV pool; when the pool runs full while decoding, the request
  that came last goes back to the head of the queue and is prefilled again with what it had;
- a decode step takes the time of the profile's row for (depth, gear), times a noise factor, and gives every
  request 1 + accepted tokens;
- off and cold or frozen leaves the draft model behind: of the drafts of the next drafting step nothing fits,
  and those after it may fit less (`acceptance.AfterOff`); frozen also leaves out the draft model's prefill.

Not modelled: prefix cache, sampling, grammars, several DP ranks.  Time is a number that only this
module advances; chance comes from the generator that is handed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from controller.simulation.acceptance import Acceptance, AfterOff, Harm
from controller.simulation.arms import Arm, ArmCost, arm_costs, arm_rows
from controller.simulation.cost_profile import CostProfile
from controller.simulation.draws import AcceptedDrafts, StepNoise


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and physics of the simulated server."""

    max_running_requests: int = 256
    kv_tokens: int = 1_000_000
    """Size of the KV pool in tokens.  An 8B model in bf16 leaves about this much on a 141 GB GPU."""
    chunked_prefill_tokens: int = 8192
    new_token_ratio: float = 0.5
    """Share of the tokens still to come that admission keeps free, 0..1."""
    switch_s: float = 0.0025
    """Added to the first step after a change of arm; 2-3 ms in the median on an H200."""
    noise: float = 0.03
    """Standard deviation of the logarithm of a step's time around the profile's."""
    after_off: AfterOff = field(default_factory=AfterOff)
    plain_decode: bool = True
    """Whether off-cold costs what a server without speculation costs (see `arms.arm_rows`)."""


@dataclass
class Request:
    """One request and what became of it; times are virtual seconds, `None` until they happen.

    Without slots, since the hook's recorder leaves a mark on requests.
    """

    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    prefilled: int = 0
    """Tokens of the prompt (and of earlier output, after a retraction) in the KV cache."""
    cold: bool = False
    """Has lived through a step, or a prefill, that left its draft KV cache behind."""
    first_token_s: float | None = None
    finish_s: float | None = None
    retractions: int = 0


class StepControl(Protocol):
    """Chooses the arm of every decode step and hears of its result: the hook's side of the engine."""

    @property
    def probing(self) -> bool:
        """Whether the arm asked for last was a probe's."""
        ...

    def arm_for(self, batch_size: int) -> Arm:
        """The arm of the step that is about to start."""
        ...

    def on_result(
        self,
        now_s: float,
        arm: Arm,
        requests: Sequence[Request],
        accepted: list[int],
        context_tokens: int,
    ) -> None:
        """A step ended that gave each of `requests` one token and so many accepted drafts."""
        ...

    def prefill_gear(self, batch_size: int) -> str:
        """The gear for which requests are prefilled when with them so many hold a slot."""
        ...

    def on_prefill(self, now_s: float, requests: Sequence[Request], tokens: int) -> None:
        """A prefill batch of so many `tokens` of `requests` ran, until `now_s`."""
        ...

    def on_idle(self) -> None:
        """There is nothing to do; may be said again."""
        ...


class Step(NamedTuple):
    """What one decode step did, for the accounting."""

    arm: Arm
    batch_size: int
    context_tokens: int
    harmed: tuple[int, int, int, int]
    """Requests in it, by `Harm`."""
    switch_s: float
    """Seconds that the change of arm added."""
    probing: bool
    prefilled: int = 0
    """Requests whose prefill ended since the step before."""
    draft_prefill_s: float = 0.0
    """Seconds that the draft model's part of that took."""


@dataclass(slots=True)
class StepLog:
    """The decode steps since somebody last took them out."""

    steps: list[Step] = field(default_factory=list)


class VirtualEngine:
    """The simulated engine; `run_until` is the only method that lets time pass."""

    def __init__(
        self,
        profile: CostProfile,
        acceptance: Acceptance,
        control: StepControl,
        rng: np.random.Generator,
        config: EngineConfig | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.control = control
        self.costs: dict[Arm, ArmCost] = arm_costs(
            profile,
            arm_rows(profile, plain_decode=self.config.plain_decode),
            self.config.max_running_requests,
        )
        self.now_s = 0.0
        self.log = StepLog()
        self.finished: list[Request] = []
        self.rejected: list[Request] = []
        self.on_finish: Callable[[Request], None] | None = None
        self.decode_steps = 0
        self.prefill_batches = 0
        self.prefill_seconds = 0.0
        self.prefill_tokens = 0
        self.emitted_tokens = 0
        """Output tokens so far, those of prefills included."""
        self.prefill_first_tokens = 0
        """Those of them that a prefill gave."""
        self.request_steps = 0
        """Sum of the batch sizes over all decode steps: verify calls, in SGLang's words."""
        self.proposed_drafts = 0
        self.accepted_drafts = 0
        self.decode_seconds = 0.0
        self.context_tokens = 0
        """Tokens in the KV pool, over all running requests."""
        self._acceptance = acceptance
        self._prefill_cost = profile.prefill
        self._step_s = {arm: cost.base_s.tolist() for arm, cost in self.costs.items()}
        self._noise = StepNoise(rng, self.config.noise)
        max_depth = max(depth for depth, _ in self.costs)
        self._drafts = AcceptedDrafts(rng, acceptance, max_depth, self.config.after_off)
        self._arrivals: deque[Request] = deque()
        self._next_arrival_s = math.inf
        self._waiting: deque[Request] = deque()
        self._partial: Request | None = None
        self._running: list[Request] = []
        size = self.config.max_running_requests
        self._left = np.zeros(size, dtype=np.int64)  # tokens to come, plus _offset
        self._harm = np.zeros(size, dtype=np.int8)  # of later steps, by Harm
        self._stale = np.zeros(size, dtype=bool)
        self._harmed = (0, 0, 0, 0)
        self._prefilled, self._draft_prefill_s = 0, 0.0  # since the last decode step
        self._offset = 0
        self._surely_left = 0  # a lower bound of the fewest tokens any running request has to come
        self._reserved = 0  # tokens to come of all admitted requests, an upper bound
        self._last_arm: Arm | None = None

    @property
    def running(self) -> int:
        """Requests that take part in decode steps."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that have arrived and do not decode yet."""
        return len(self._waiting) + (self._partial is not None)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that waiting requests have still to prefill."""
        queued = sum(r.prompt_tokens + r.generated for r in self._waiting)
        partial = self._partial
        return queued + (partial.prompt_tokens + partial.generated - partial.prefilled if partial else 0)

    @property
    def last_arm(self) -> Arm | None:
        """The arm of the latest decode step."""
        return self._last_arm

    @property
    def arms(self) -> list[Arm]:
        """What this engine can run."""
        return list(self.costs)

    @property
    def idle(self) -> bool:
        """No request is here and none will come by itself."""
        return not (self._running or self._arrivals or self.waiting)

    def submit(self, request: Request) -> None:
        """Let a request arrive at its `arrival_s`, which must not be before those submitted earlier.

        One that could never fit into the KV pool is refused: it goes to `rejected`.
        """
        if request.prompt_tokens + request.output_tokens > self.config.kv_tokens:
            self.rejected.append(request)
            return
        self._arrivals.append(request)
        self._next_arrival_s = self._arrivals[0].arrival_s

    def run_until(self, until_s: float) -> None:
        """Advance to `until_s`, or to the end of the step or prefill that is then in flight."""
        while self.now_s < until_s:
            self._take_arrivals()
            if self._prefill():
                continue
            if self._running:
                self._decode_until(until_s)
            else:
                self.control.on_idle()
                self.now_s = min(until_s, self._next_arrival_s)

    def progress(self) -> list[tuple[Request, int]]:
        """Every running request with the tokens it has emitted so far."""
        left = self._left[: len(self._running)] - self._offset
        return [(r, r.output_tokens - max(0, int(n))) for r, n in zip(self._running, left, strict=True)]

    def cancel(self, index: int) -> None:
        """Drop the request with this index, wherever it is; does nothing when it is not here."""
        self._arrivals = deque(r for r in self._arrivals if r.index != index)
        self._next_arrival_s = self._arrivals[0].arrival_s if self._arrivals else math.inf
        self._waiting = deque(r for r in self._waiting if r.index != index)
        partial = self._partial
        if partial is not None and partial.index == index:
            self._partial = None
            self.context_tokens -= partial.prompt_tokens + partial.generated
            self._reserved -= partial.output_tokens - partial.generated
        at = next((i for i, r in enumerate(self._running) if r.index == index), None)
        if at is not None:
            self._remove([at])

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_s <= self.now_s:
            self._waiting.append(self._arrivals.popleft())
        self._next_arrival_s = self._arrivals[0].arrival_s if self._arrivals else math.inf

    # ---- prefill ----

    def _prefill(self) -> bool:
        """Run one prefill batch when there is something to prefill; says whether it did."""
        budget = self.config.chunked_prefill_tokens
        done: list[Request] = []
        while budget > 0:
            request = self._partial or self._admit(len(done))
            if request is None:
                break
            self._partial = None
            chunk = min(budget, request.prompt_tokens + request.generated - request.prefilled)
            request.prefilled += chunk
            budget -= chunk
            if request.prefilled < request.prompt_tokens + request.generated:
                self._partial = request
            else:
                done.append(request)
        tokens = self.config.chunked_prefill_tokens - budget
        if tokens == 0 and not done:
            return False
        self._end_prefill(tokens, done)
        return True

    def _admit(self, joining: int) -> Request | None:
        """The next waiting request, when a slot and room in the KV pool are free for it."""
        if not self._waiting or len(self._running) + joining >= self.config.max_running_requests:
            return None
        request = self._waiting[0]
        to_come = request.output_tokens - request.generated
        need = request.prompt_tokens + request.generated
        reserve = self.config.new_token_ratio * (self._reserved + to_come)
        alone = not self._running and not joining
        if not alone and self.context_tokens + need + reserve > self.config.kv_tokens:
            return None
        self._waiting.popleft()
        self.context_tokens += need
        self._reserved += to_come
        return request

    def _end_prefill(self, tokens: int, done: list[Request]) -> None:
        cost = self._prefill_cost
        gear = self.control.prefill_gear(len(self._running) + len(done) + (self._partial is not None))
        frozen = gear == "frozen"
        draft_s = 0.0 if frozen else len(done) * cost.draft_ms_per_request / 1000
        seconds = (cost.fixed_ms + tokens / 1000 * cost.ms_per_1k_tokens) / 1000 + draft_s
        self._prefilled += len(done)
        self._draft_prefill_s += draft_s
        self.now_s += seconds * self._noise.next()
        self.prefill_batches += 1
        self.prefill_tokens += tokens
        self.prefill_seconds += seconds
        self.control.on_prefill(self.now_s, [*done, self._partial] if self._partial else done, tokens)
        for request in done:
            self._join(request, frozen=frozen)
        self._count_harm()

    def _join(self, request: Request, *, frozen: bool) -> None:
        """A prefilled request starts to decode; its prefill gave it one token."""
        request.generated += 1
        self.emitted_tokens += 1
        self.prefill_first_tokens += 1
        self.context_tokens += 1
        self._reserved -= 1
        if request.first_token_s is None:
            request.first_token_s = self.now_s
        left = request.output_tokens - request.generated
        if left <= 0:
            self.context_tokens -= request.prompt_tokens + request.generated
            self._finish(request)
            return
        n = len(self._running)
        self._left[n] = left + self._offset
        self._stale[n] = request.cold = frozen  # otherwise its draft KV cache was prefilled too
        self._harm[n] = Harm.FROZEN if frozen else Harm.NONE
        self._surely_left = min(self._surely_left, left) if n else left
        self._running.append(request)

    # ---- decode ----

    def _decode_until(self, until_s: float) -> None:
        """Decode steps until `until_s`, the next arrival, or a finish that lets somebody in."""
        while self._running and self.now_s < until_s and self.now_s < self._next_arrival_s:
            batch_size = len(self._running)
            arm = self.control.arm_for(batch_size)
            if self.context_tokens + batch_size * (arm[0] + 1) > self.config.kv_tokens and batch_size > 1:
                self._retract()
                continue
            self._step(arm, batch_size)
            if self._surely_left <= 0 and self._sweep() and (self._waiting or self._partial):
                return

    def _step(self, arm: Arm, batch_size: int) -> None:
        """One decode step of the running requests."""
        depth, gear = arm
        switch_s = self.config.switch_s if arm != self._last_arm and self._last_arm is not None else 0.0
        self._last_arm = arm
        step_s = self._step_s[arm][batch_size]
        cost = self.costs[arm]
        if cost.per_token_s:
            excess = self.context_tokens - batch_size * cost.mean_context
            step_s = max(0.1 * step_s, step_s + cost.per_token_s * excess)
        probing = self.control.probing
        new = self._prefilled, self._draft_prefill_s
        self._prefilled, self._draft_prefill_s = 0, 0.0
        self.log.steps.append(
            Step(arm, batch_size, self.context_tokens, self._harmed, switch_s, probing, *new)
        )
        context = self.context_tokens
        accepted = self._accept(depth, batch_size)
        extra = sum(accepted)
        spent_s = step_s * self._noise.next() + switch_s
        self.now_s += spent_s
        self.decode_seconds += spent_s
        self.decode_steps += 1
        self.request_steps += batch_size
        self.proposed_drafts += batch_size * depth
        self.accepted_drafts += extra
        self._leave_behind(batch_size, behind=gear in ("cold", "frozen"))
        self._offset += 1
        self._surely_left -= depth + 1
        self._reserved -= batch_size + extra
        self.context_tokens += batch_size + extra
        self.emitted_tokens += batch_size + extra
        self.control.on_result(self.now_s, arm, self._running, accepted, context)

    def _accept(self, depth: int, batch_size: int) -> list[int]:
        """Draw the accepted drafts of every running request and take them off what it has to come."""
        if depth == 0:
            return [0] * batch_size
        drafts = self._drafts.take(self.now_s, depth, batch_size)
        if self._harmed[Harm.NONE] < batch_size:
            kinds = self._kinds(batch_size)
            for harm in (Harm.COLD, Harm.FROZEN, Harm.STALE):
                if self._harmed[harm]:
                    drawn = self._drafts.take(self.now_s, depth, batch_size, harm)
                    drafts = np.where(kinds == harm, drawn, drafts)
        self._left[:batch_size] -= drafts
        counts: list[int] = drafts.tolist()
        return counts

    def _leave_behind(self, batch_size: int, *, behind: bool) -> None:
        """A step left the draft model of every running request behind, or kept it in step from there on."""
        if behind and self._harmed[Harm.STALE] < batch_size:
            self._stale[:batch_size] = True
            self._harm[:batch_size] = np.maximum(self._harm[:batch_size], Harm.COLD)
        elif not behind and self._harmed[Harm.STALE]:
            self._stale[:batch_size] = False
        else:
            return
        self._count_harm()

    def _kinds(self, batch_size: int) -> npt.NDArray[np.int8]:
        return np.where(self._stale[:batch_size], np.int8(Harm.STALE), self._harm[:batch_size])

    def _count_harm(self) -> None:
        n = len(self._running)
        if self._harm[:n].any():
            none, cold, frozen, stale = np.bincount(self._kinds(n), minlength=len(Harm)).tolist()
            self._harmed = none, cold, frozen, stale
        else:
            self._harmed = n, 0, 0, 0

    def _sweep(self) -> bool:
        """Take out the requests that have emitted all their tokens; says whether there were any."""
        n = len(self._running)
        left = self._left[:n] - self._offset
        self._surely_left = int(left.min())
        if self._surely_left > 0:
            return False
        at = np.flatnonzero(left <= 0)
        overshoot = -int(left[at].sum())
        self.context_tokens -= overshoot
        self.emitted_tokens -= overshoot
        self._reserved += overshoot
        gone = [self._running[i] for i in at]
        for request in gone:
            request.generated = request.output_tokens
        self._remove(at.tolist())
        for request in gone:
            self._finish(request)
        return True

    def _remove(self, at: list[int]) -> None:
        """Take the requests at these positions out of the batch and free their KV."""
        n = len(self._running)
        left = (self._left[:n] - self._offset).tolist()
        for i in at:
            request = self._running[i]
            request.generated = request.output_tokens - max(0, left[i])
            request.cold = bool(self._harm[i])
            self.context_tokens -= request.prompt_tokens + request.generated
            self._reserved -= max(0, left[i])
        keep = np.ones(n, dtype=bool)
        keep[at] = False
        kept = int(keep.sum())
        self._left[:kept] = self._left[:n][keep] - self._offset
        self._harm[:kept] = self._harm[:n][keep]
        self._stale[:kept] = self._stale[:n][keep]
        self._offset = 0
        self._running = [r for r, stays in zip(self._running, keep.tolist(), strict=True) if stays]
        self._count_harm()
        self._surely_left = int(self._left[:kept].min()) if kept else 0

    def _retract(self) -> None:
        """Send the request that came last back to the head of the queue: the KV pool is full."""
        request = self._running[-1]
        self._remove([len(self._running) - 1])
        request.prefilled = 0
        request.retractions += 1
        self._waiting.appendleft(request)

    def _finish(self, request: Request) -> None:
        request.finish_s = self.now_s
        self.finished.append(request)
        if self.on_finish is not None:
            self.on_finish(request)
