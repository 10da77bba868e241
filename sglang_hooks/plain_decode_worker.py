"""Depth 0 on one speculative worker: what its steps share, and what is read from and set on SGLang.

Everything here is called by the hooks of `plain_decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_hooks import plain_decode_attention as attention
from sglang_hooks.plain_decode_deferred import DeferredExtend
from sglang_hooks.plain_decode_lengths import KnownLengths
from sglang_hooks.plain_decode_step import OneNodeTensors


class DepthZero:
    """One worker's depth 0.

    `in_force`: attention decodes there.  `lengths`: None when they cannot be counted on this server.
    `gears`: those of off that this worker can run.
    """

    def __init__(self, worker: Any) -> None:
        """Raises whatever reading the worker raises when it is not built as expected."""
        from sglang.srt.speculative import spec_utils
        from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec
        from sglang.srt.utils import is_hip

        self.worker = worker
        self.in_force = False
        self.several_ranks = worker.server_args.tp_size > 1
        hidden = get_draft_recurrent_hidden_state_spec(self.draft_runner)
        self.tensors = OneNodeTensors(worker.device, worker.topk, hidden)
        self.tensors.reserve(self.runner.req_to_token_pool.req_to_token.shape[0])
        self.lengths = KnownLengths() if _lengths_can_be_counted(worker) else None
        self.gears = ("warm", "cold", "frozen") if _draft_is_stateless(worker) else ("warm",)
        self._deferred: DeferredExtend | None = None
        self._spec_utils = spec_utils
        self._on_amd = is_hip()

    @property
    def runner(self) -> Any:
        """The target's model runner."""
        return self.worker._target_worker.model_runner

    @property
    def draft_runner(self) -> Any:
        """The draft's model runner."""
        return self.worker._draft_worker.draft_runner

    @property
    def root_may_be_argmax(self) -> bool:
        """Whether every rank may take the argmax of its own logits.

        Not on AMD: there SGLang lets rank 0 decide for all, since their logits may differ in the last bit.
        Not while acceptance is simulated (SGLang's own benchmark knob, which may change while it serves).
        """
        return not self._on_amd and self._spec_utils.SIMULATE_ACC_LEN <= 0

    # Gears

    def gear(self) -> str:
        """The gear of the step being launched."""
        if self.worker.speculative_num_steps != 0:
            return "on"
        return self._possible(getattr(self.worker.adaptive_controller.params, "gear", "warm"))

    def prefill_gear(self) -> str:
        """The gear that requests which are prefilled now will decode in, as far as can be said now.

        That of the schedule for as many requests as hold a slot, these included.  The gear of the last
        step would leave the first requests after an idle spell without drafts.  Slots are taken and
        given back in the same order on every rank.
        """
        gear_at = getattr(self.worker.adaptive_controller.params, "gear_at", None)
        if gear_at is None:
            return "warm"
        pool = self.runner.req_to_token_pool
        return self._possible(gear_at(max(1, pool.size - pool.available_size())))

    def _possible(self, gear: str) -> str:
        return gear if gear in (*self.gears, "on") else "warm"

    # The warm gear

    def defer(self, extend: Callable[[Any, Any], None], batch: Any, result: Any) -> bool:
        """Keep what this step yielded for the draft; whether all that was kept has been taken in.

        `extend(batch, result)` is SGLang's draft-extend.  Raises whatever it raises.
        """
        deferred, slots = self._make_deferred(), _slots(batch)
        if not deferred.keep(batch, slots, result):
            return False
        deferred.take_in(extend, batch, slots, result.next_draft_input, result.new_seq_lens)
        return True

    def can_defer(self) -> bool:
        """Whether a draft-extend can be put off: it has no stream of its own, and a deeper state exists.

        Under a schedule only, which is sent where all ranks have the same gears.  Ranks that SGLang rules
        may not have, and a rank that puts off what its peers do leaves them waiting in a collective.
        """
        draft = self.worker._draft_worker
        governed = getattr(self.worker.adaptive_controller.params, "governed", False)
        return governed and "cold" in self.gears and not draft.plan_stream and self._width() > 1

    def catch_up(self, extend: Callable[[Any, Any], None], batch: Any) -> None:
        """Take in what is kept of `batch`, which is about to draft."""
        deferred = self._deferred
        if deferred is None or not deferred.counts:
            return
        slots = _slots(batch)
        if any(deferred.counts.of(slots)):
            deferred.take_in(extend, batch, slots, batch.spec_info, batch.seq_lens)
            self._set_draft_event(None)  # this step reads on, up to its own draft-extend

    def drop_kept(self, batch: Any) -> None:
        """Forget what is kept of `batch`: other tokens take its place, or none will be drafted from it."""
        if self._deferred is not None and self._deferred.counts:
            self._deferred.counts.drop(_slots(batch))

    def _width(self) -> int:
        return int(max(self.worker.adaptive_controller._states)) + 1

    def _make_deferred(self) -> DeferredExtend:
        if self._deferred is None:
            rows = self.runner.req_to_token_pool.req_to_token.shape[0]
            self._deferred = DeferredExtend(self.worker, self._width(), rows)
        return self._deferred

    # Attention

    def check_backend(self) -> str:
        """Name the target's attention backend; the one of depth 0 will be of the same class.

        Raises `RefusedError`, before anything is built, when it is not known to decode rightly.
        """
        attention.check(self.runner.attn_backend, self.runner)
        return attention.describe(self.runner.attn_backend)

    @contextmanager
    def adapting(self) -> Iterator[None]:
        """Within, the attention backend that SGLang makes for the target decodes at depth 0."""
        runner = self.runner
        make = runner._get_attention_backend

        def make_and_adapt(*args: Any, **kwargs: Any) -> Any:
            backend = make(*args, **kwargs)
            attention.adapt(backend, runner)
            backend.specgov_new_event = _event_factory(self.worker, runner)
            return backend

        runner._get_attention_backend = make_and_adapt
        try:
            yield
        finally:
            del runner._get_attention_backend

    # Reads that the scheduler's stream waits for

    def clear_shared_reads(self) -> None:
        """Forget the event of an earlier step, so that it cannot stand for this one."""
        runner = self.runner
        if hasattr(runner, "shared_read_done_event"):
            runner.shared_read_done_event = None
        take = getattr(runner.attn_backend, "take_shared_reads_done", None)
        if take is not None:
            take()

    def publish_shared_reads(self) -> None:
        """Say that this step's shared reads ended with the target's verify.

        The scheduler asks the draft runner, whose draft-extend is the last to read in SGLang's own
        steps; without an event there it waits for the whole forward, every step.
        """
        runner = self.runner
        if hasattr(runner, "shared_read_done_event"):
            self._set_draft_event(runner.shared_read_done_event)
            return
        take = getattr(runner.attn_backend, "take_shared_reads_done", None)
        self._set_draft_event(None if take is None else take())

    def _set_draft_event(self, event: Any) -> None:
        for name in ("shared_read_done_event", "war_fastpath_read_done_event"):  # the second: 0.5.17
            if hasattr(self.draft_runner, name):
                setattr(self.draft_runner, name, event)

    # Lengths

    def count_prefill(self, batch: Any) -> None:
        """A prefill is launched."""
        if self.lengths is not None:
            self.lengths.set(_slots(batch), batch.seq_lens_cpu.tolist())

    def count_step(self, batch: Any) -> None:
        """A step at depth 0 is launched: one token per request."""
        if self.lengths is None:
            return
        if batch.seq_lens_cpu is None:
            self.lengths.advance(_slots(batch))
        else:
            self.lengths.set(_slots(batch), [length + 1 for length in batch.seq_lens_cpu.tolist()])

    def count_drafting_step(self, batch: Any) -> None:
        """A step that drafts is launched: only the device will know."""
        if self.lengths:
            self.lengths.forget(_slots(batch))

    def set_lengths(self, future_map: Any, batch: Any) -> bool:
        """Fill in the lengths of the next launch from the count; False when it is not known.

        Leaves on `batch` what `FutureMap.resolve_seq_lens_cpu` would.
        """
        lengths = self.lengths.get(_slots(batch)) if self.lengths else None
        if lengths is None:
            return False
        import torch

        on_device = str(batch.device) != "cpu"
        host = torch.tensor(lengths, dtype=torch.int64, pin_memory=on_device)
        batch.seq_lens = host.to(batch.device, non_blocking=True) if on_device else host.clone()
        needed = future_map.needs_cpu_seq_lens
        batch.seq_lens_cpu = host if needed else None
        batch.seq_lens_sum = sum(lengths) if needed else None
        return True


def _slots(batch: Any) -> list[int]:
    slots: list[int] = batch.req_pool_indices_cpu.tolist()
    return slots


def _event_factory(worker: Any, runner: Any) -> Callable[[], Any] | None:
    """How to make an event, on releases whose verify graph publishes none (0.5.17); else None."""
    if str(worker.device) == "cpu" or not hasattr(runner, "war_fastpath_read_done_event"):
        return None
    import torch

    event: Callable[[], Any] = torch.get_device_module(worker.device).Event
    return event


def _lengths_can_be_counted(worker: Any) -> bool:
    """Whether requests get into a batch through this worker's prefill only, and none is mixed."""
    from sglang.srt.managers import overlap_utils

    args = worker.server_args
    return (
        args.disaggregation_mode == "null"
        and not args.enable_mixed_chunk
        and not getattr(overlap_utils, "_DEBUG_ASSERT", False)  # SGLang's CI counts these calls
    )


def _draft_is_stateless(worker: Any) -> bool:
    """Whether a draft can start from nothing but a token and hidden states.

    Rejection sampling needs the draft's distribution of the step before, index-sharing drafts its index.
    """
    return not worker.server_args.speculative_use_rejection_sampling and not getattr(
        worker._draft_worker, "seed_dsa_topk_from_draft_extend", False
    )
