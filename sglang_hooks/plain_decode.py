"""Depth 0 as plain decoding: what an SGLang worker does while speculation is off, and its gears.

SGLang's own depth 0 verifies a tree of one node with the kernels for trees, keeps the target's hidden
states, runs the draft model behind it and prepares all of it on the host.  Here

- the target's attention decodes (`plain_decode_attention`; chosen when the state for depth 0 is built),
- the step around it makes, samples and stores no more than one token needs (`plain_decode_step`),
- the host does not wait for lengths that it can count (`plain_decode_lengths`),
- the draft model is left out as far as the gear in force says:
  `warm` nothing is left out; `cold` not the draft-extend behind each step; `frozen` nor the draft
  prefill of new requests.

The outputs are the target's in every gear: a request whose draft KV cache has holes drafts badly, and
verification refuses what it drafts.

Nothing here may fail a step.  What cannot be done at build time leaves SGLang's own state in place, with
the reason in `status`; a shortcut that fails in a step is logged, switched off, and SGLang's own way is
taken in that same step.

`SPECGOV_PLAIN_DECODE=0` turns all of it off, gears included.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_hooks import plain_decode_attention as attention
from sglang_hooks.plain_decode_lengths import KnownLengths
from sglang_hooks.plain_decode_step import OneNodeTensors, is_greedy_root

logger = logging.getLogger(__name__)

ENV = "SPECGOV_PLAIN_DECODE"

WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
DRAFT_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
FUTURE_MAP = "sglang.srt.managers.overlap_utils.FutureMap"

_NOT_BUILT = (
    "no state for depth 0 was built that could be seen: 0 is not among the adaptive candidate steps, or "
    "--speculative-num-steps is 0 (start with a depth above 0)"
)

_current: PlainDecode | None = None
"""The one of this process: a scheduler process has one speculative worker."""


def enabled() -> bool:
    """Whether the operator left plain decoding on (`SPECGOV_PLAIN_DECODE`, on unless it is 0)."""
    return os.environ.get(ENV, "1").strip() != "0"


def hooks() -> dict[str, Callable[..., Any]]:
    """Every name of SGLang that this module goes around, and with what; empty when turned off."""
    if not enabled():
        return {}
    return {
        f"{WORKER}.build_adaptive_runtime_state": around_build_state,
        f"{WORKER}._build_trivial_verify_input": around_trivial_verify_input,
        f"{DRAFT_WORKER}.draft": around_draft,
        f"{DRAFT_WORKER}._draft_extend_for_decode": around_draft_extend_for_decode,
        f"{DRAFT_WORKER}._draft_extend_for_prefill": around_draft_extend_for_prefill,
        f"{FUTURE_MAP}.stash": around_stash,
        f"{FUTURE_MAP}.resolve_seq_lens_cpu": around_resolve_seq_lens,
        "sglang.srt.speculative.eagle_utils.eagle_sample": around_eagle_sample,
    }


def status() -> dict[str, Any]:
    """What is in force in this process, as `GET /speculation` reports it under `plain_decode`."""
    if not enabled():
        return {"in_force": False, "backend": None, "reason": f"turned off by {ENV}=0"}
    if _current is None:
        return {"in_force": False, "backend": None, "reason": _NOT_BUILT}
    return _current.status()


def gears() -> tuple[str, ...]:
    """The gears of off that this process can run; `warm` is SGLang's own."""
    return ("warm",) if _current is None else _current.gears


class PlainDecode:
    """Depth 0 on one worker: what is in force, and what the steps share."""

    def __init__(self, worker: Any) -> None:
        """Raises whatever reading the worker raises when it is not built as expected."""
        from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

        self.worker = worker
        self.backend: str | None = None
        self.reason: str | None = _NOT_BUILT
        self.failed: dict[str, str] = {}
        runner = worker._target_worker.model_runner
        hidden = get_draft_recurrent_hidden_state_spec(worker._draft_worker.draft_runner)
        self.tensors = OneNodeTensors(worker.device, worker.topk, hidden)
        self.tensors.reserve(runner.req_to_token_pool.req_to_token.shape[0])
        self.lengths = KnownLengths() if _lengths_can_be_counted(worker) else None
        self.gears = ("warm", "cold", "frozen") if _draft_is_stateless(worker) else ("warm",)

    @property
    def in_force(self) -> bool:
        """Whether attention decodes at depth 0."""
        return self.backend is not None and self.reason is None

    def status(self) -> dict[str, Any]:
        """`in_force`, the attention `backend`, and the `reason` when it is not (or not in full)."""
        reason = self.reason
        if reason is None and self.failed:
            reason = "; ".join(f"{what} was switched off: {why}" for what, why in sorted(self.failed.items()))
        return {"in_force": self.in_force, "backend": self.backend, "reason": reason}

    def gear(self) -> str:
        """The gear of the step being launched."""
        if self.worker.speculative_num_steps != 0:
            return "on"
        gear = getattr(self.worker.adaptive_controller.params, "gear", "warm")
        return gear if gear in self.gears else "warm"

    def prefill_gear(self) -> str:
        """The gear that a request which is prefilled now will decode in, as far as can be said now.

        The table's row for all requests that hold a slot, these included.  Slots are counted alike on
        every rank.  (The gear of the last step would leave the first requests after an idle spell
        without drafts.)
        """
        policy = self.worker.adaptive_controller.params
        gear_at = getattr(policy, "gear_at", None)
        if gear_at is None:
            return self.gear()
        pool = self.worker._target_worker.model_runner.req_to_token_pool
        gear = gear_at(max(1, pool.size - pool.available_size()))
        return gear if gear in self.gears else "warm"

    def works(self, shortcut: str) -> bool:
        """Whether `shortcut` is still in use in this process."""
        return shortcut not in self.failed

    @contextmanager
    def guarded(self, shortcut: str) -> Iterator[None]:
        """Switch `shortcut` off for good when it raises; the caller then takes SGLang's own way."""
        try:
            yield
        except Exception as error:
            self.failed[shortcut] = repr(error)
            logger.exception("plain decode: %s failed and is switched off", shortcut)

    # -- attention -------------------------------------------------------------------------------------

    def check_backend(self) -> None:
        """Raise `RefusedError` before anything is built: the new backend will be like the present one."""
        runner = self.worker._target_worker.model_runner
        self.backend = attention.describe(runner.attn_backend)
        attention.check(runner.attn_backend, runner)

    @contextmanager
    def adapting(self) -> Iterator[None]:
        """Within, the target's new attention backend decodes at depth 0."""
        runner = self.worker._target_worker.model_runner
        build = runner._get_attention_backend

        def build_and_adapt(*args: Any, **kwargs: Any) -> Any:
            backend = build(*args, **kwargs)
            self.backend = attention.adapt(backend, runner)
            backend.specgov_new_event = _event_factory(self.worker)
            return backend

        runner._get_attention_backend = build_and_adapt
        try:
            yield
        finally:
            del runner._get_attention_backend

    # -- reads that the scheduler's stream waits for ---------------------------------------------------

    def clear_shared_reads(self) -> None:
        """Forget the event of an earlier step, so that it cannot stand for this one."""
        runner = self.worker._target_worker.model_runner
        if hasattr(runner, "shared_read_done_event"):
            runner.shared_read_done_event = None
        take = getattr(runner.attn_backend, "take_shared_reads_done", None)
        if take is not None:
            take()

    def publish_shared_reads(self) -> None:
        """Say that this step ends its shared reads with the target's verify.

        The scheduler asks the draft runner, whose draft-extend is the last to read in SGLang's own
        steps; without an event there it waits for the whole forward, every step.
        """
        runner = self.worker._target_worker.model_runner
        draft_runner = self.worker._draft_worker.draft_runner
        if hasattr(runner, "shared_read_done_event"):
            draft_runner.shared_read_done_event = runner.shared_read_done_event
            return
        take = getattr(runner.attn_backend, "take_shared_reads_done", None)
        if take is not None and hasattr(draft_runner, "war_fastpath_read_done_event"):
            draft_runner.war_fastpath_read_done_event = take()


def _event_factory(worker: Any) -> Callable[[], Any] | None:
    """How to make an event for releases whose verify graph publishes none (0.5.17); else None."""
    import torch

    runner = worker._target_worker.model_runner
    if worker.device == "cpu" or not hasattr(runner, "war_fastpath_read_done_event"):
        return None
    event: Callable[[], Any] = torch.get_device_module(worker.device).Event
    return event


def _lengths_can_be_counted(worker: Any) -> bool:
    """Whether every way for a request to get into a batch passes this worker's prefill."""
    from sglang.srt.managers import overlap_utils

    args = worker.server_args
    return (
        args.disaggregation_mode == "null"
        and not args.enable_mixed_chunk
        and not getattr(overlap_utils, "_DEBUG_ASSERT", False)
    )


def _draft_is_stateless(worker: Any) -> bool:
    """Whether a draft can start from nothing but a token and hidden states.

    Rejection sampling needs the draft's distribution of the step before, index-sharing drafts its index.
    """
    return not worker.server_args.speculative_use_rejection_sampling and not getattr(
        worker._draft_worker, "seed_dsa_topk_from_draft_extend", False
    )


def attach(worker: Any) -> PlainDecode | None:
    """The `PlainDecode` of `worker`, made on first sight; None when it cannot be made."""
    global _current  # noqa: PLW0603 - one worker per process
    if _current is None or _current.worker is not worker:
        try:
            _current = PlainDecode(worker)
        except Exception:
            logger.exception("plain decode: the worker is not built as expected; SGLang's own depth 0 stays")
            _current = None
    return _current


def _of(draft_worker: Any) -> PlainDecode | None:
    plain = _current
    return plain if plain is not None and plain.worker._draft_worker is draft_worker else None


# -- the hooks: each goes around the function of SGLang that `hooks` names for it ----------------------


def around_build_state(
    original: Callable[..., Any], worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any
) -> Any:
    """Build the state for depth 0 with a decoding attention backend, or SGLang's own and say why."""
    plain = attach(worker)
    if speculative_num_steps != 0 or plain is None:
        return original(worker, speculative_num_steps, *args, **kwargs)
    try:
        plain.check_backend()
        with plain.adapting():
            state = original(worker, speculative_num_steps, *args, **kwargs)
    except attention.RefusedError as refused:
        plain.reason = str(refused)
        logger.warning("plain decode: SGLang's own depth 0 stays: %s", refused)
    except Exception as error:
        plain.reason = f"building the state failed: {error!r}"
        logger.exception("plain decode: SGLang's own depth 0 stays")
    else:
        plain.reason = None
        logger.info("plain decode: depth 0 decodes on %s", plain.backend)
        return state
    return original(worker, speculative_num_steps, *args, **kwargs)


def around_trivial_verify_input(original: Callable[..., Any], worker: Any, batch: Any) -> Any:
    """Every launch at depth 0 begins here."""
    plain = _current
    if plain is None or plain.worker is not worker or batch.forward_mode.is_idle():
        return original(worker, batch)
    _count(plain, "advance", batch)
    plain.clear_shared_reads()
    if plain.in_force and plain.works("one-node verify input"):
        with plain.guarded("one-node verify input"):
            return plain.tensors.verify_input(batch)
    return original(worker, batch)


def around_draft(
    original: Callable[..., Any], draft_worker: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Every launch above depth 0 begins here."""
    plain = _of(draft_worker)
    if plain is not None and not batch.forward_mode.is_idle():
        _count(plain, "forget", batch)
    return original(draft_worker, batch, *args, **kwargs)


def around_eagle_sample(
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A greedy root is its own answer."""
    plain = _current
    if plain is not None and plain.works("greedy root") and kwargs.get("watermark_state") is None:
        with plain.guarded("greedy root"):
            if is_greedy_root(verify_input, batch, grammar_mask):
                return plain.tensors.accept_root(logits_output.next_token_logits)
    return original(verify_input, batch, logits_output, grammar_mask, *args, **kwargs)


def around_draft_extend_for_decode(
    original: Callable[..., Any], draft_worker: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
) -> Any:
    """Leave the draft-extend out while the gear is cold or frozen."""
    plain = _of(draft_worker)
    if plain is None or plain.gear() not in ("cold", "frozen") or batch.forward_mode.is_idle():
        return original(draft_worker, batch, result, *args, **kwargs)
    # With the overlap scheduler the rows of the relay keep what an earlier draft left there
    # (`around_stash`); without it the next draft reads this input itself.
    if not batch.enable_overlap:
        for name, value in plain.tensors.draft_stub(batch.seq_lens.shape[0]).items():
            setattr(result.next_draft_input, name, value)
    plain.publish_shared_reads()
    return None


def around_draft_extend_for_prefill(
    original: Callable[..., Any],
    draft_worker: Any,
    batch: Any,
    target_hidden_states: Any,
    next_token_ids: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Leave the draft prefill of new requests out while the gear is frozen."""
    plain = _of(draft_worker)
    if plain is not None and not batch.forward_mode.is_idle():
        _count(plain, "set", batch)
        if plain.prefill_gear() == "frozen":
            from sglang.srt.speculative.eagle_info import EagleDraftInput

            return EagleDraftInput(
                **plain.tensors.draft_stub(batch.seq_lens.shape[0]),
                bonus_tokens=next_token_ids,
                num_tokens_per_req=1,
                num_tokens_for_logprob_per_req=1,
            )
    return original(draft_worker, batch, target_hidden_states, next_token_ids, *args, **kwargs)


def around_stash(original: Callable[..., Any], future_map: Any, future_indices: Any, payload: Any) -> Any:
    """Relay the next token alone when nothing was drafted, leaving the draft's rows as they are.

    Every row was written by its request's prefill (by a stub when frozen), so what is left there is a
    token of the vocabulary and finite hidden states.
    """
    plain = _current
    if plain is None or payload.topk_p is not None or future_map.spec_algo.is_none():
        return original(future_map, future_indices, payload)
    if hasattr(future_map, "_maybe_init_forward_bufs"):  # newer releases store what the payload has
        return original(future_map, future_indices, payload)
    if getattr(future_map, "topk_p_buf", None) is None:
        for name, value in plain.tensors.draft_stub(future_indices.shape[0]).items():
            setattr(payload, name, value)
        return original(future_map, future_indices, payload)
    buffer = future_map.output_tokens_buf
    buffer[future_indices] = payload.bonus_tokens.to(buffer.dtype)
    return None


def around_resolve_seq_lens(
    original: Callable[..., Any], future_map: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Fill in the lengths of the next launch from the count, when it is known, without waiting."""
    plain = _current
    if plain is None or plain.lengths is None or args or kwargs or not plain.works("counted lengths"):
        return original(future_map, batch, *args, **kwargs)
    spec = batch.spec_info
    if spec is None or spec.future_indices is None:
        return original(future_map, batch)
    with plain.guarded("counted lengths"):
        lengths = plain.lengths.get(batch.req_pool_indices_cpu.tolist())
        if lengths is not None:
            _set_lengths(future_map, batch, lengths)
            return None
    return original(future_map, batch)


def _set_lengths(future_map: Any, batch: Any, lengths: list[int]) -> None:
    import torch

    on_device = batch.device != "cpu"
    host = torch.tensor(lengths, dtype=torch.int64, pin_memory=on_device)
    batch.seq_lens = host.to(batch.device, non_blocking=True) if on_device else host.clone()
    if future_map.needs_cpu_seq_lens:
        batch.seq_lens_cpu = host
        batch.seq_lens_sum = sum(lengths)
    else:  # as SGLang leaves them for backends that read neither
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None


def _count(plain: PlainDecode, what: str, batch: Any) -> None:
    """Keep `plain.lengths` in step with a launch."""
    if plain.lengths is None or not plain.works("counted lengths"):
        return
    with plain.guarded("counted lengths"):
        slots = batch.req_pool_indices_cpu.tolist()
        if what == "set":
            plain.lengths.set(slots, batch.seq_lens_cpu.tolist())
        elif what == "forget":
            plain.lengths.forget(slots)
        elif batch.seq_lens_cpu is not None:
            plain.lengths.set(slots, (batch.seq_lens_cpu + 1).tolist())
        else:
            plain.lengths.advance(slots)
