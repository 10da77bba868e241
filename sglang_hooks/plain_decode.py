"""Depth 0 as plain decoding: what an SGLang worker does while speculation is off, and its gears.

SGLang's own depth 0 verifies a tree of one node with the kernels for trees, keeps the target's hidden
states, runs the draft model behind it and prepares all of it on the host.  Here

- the target's attention decodes (`plain_decode_attention`; chosen when the state for depth 0 is built),
- the step around it makes, samples and stores no more than one token needs (`plain_decode_step`),
- the host does not wait for lengths that it can count (`plain_decode_lengths`),
- the draft model is left out as far as the gear in force says: `warm` it takes in several tokens at a
  time (`plain_decode_deferred`); `cold` the draft-extend is left out; `frozen` so is the draft prefill of
  new requests.

The outputs are the target's in every gear: a request whose draft KV cache has holes drafts badly, and
verification refuses what it drafts.

What cannot be done when the state is built leaves SGLang's own in place, with the reason in the status; a
shortcut that fails in a step is counted, logged and switched off, and SGLang's own way is taken in that same
step.  Not so what fails on one of several ranks alone (memory, a device), nor what the attention is planned
with, whose graphs know no other way: these end the scheduler, as a fault of SGLang's own does.

`SPECGOV_PLAIN_DECODE=0` turns all of it off, gears included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_hooks import compat
from sglang_hooks.environment import setting, switch
from sglang_hooks.guard import Guard
from sglang_hooks.plain_decode_attention import RefusedError
from sglang_hooks.plain_decode_step import is_greedy_root
from sglang_hooks.plain_decode_worker import DepthZero
from sglang_hooks.recorder import mark_cold
from sglang_hooks.status import PlainDecodeStatus

logger = logging.getLogger("specgov")

ENV = "SPECGOV_PLAIN_DECODE"

NOT_BUILT = (
    "no state for depth 0 was built that could be adapted: 0 is not among the adaptive candidate steps, "
    "or the server starts at depth 0, whose state SGLang builds another way"
)

Original = Callable[..., Any]


def install(register: Callable[[str, Original], None], status: PlainDecodeStatus, guard: Guard) -> None:
    """Go around SGLang's functions through `register(dotted path, hook)`, unless turned off.

    `status` says from then on what is in force.
    """
    if switch(ENV) is False:
        status.reason = f"turned off by {setting(ENV)}"
        return
    status.reason = NOT_BUILT
    hooks = PlainDecodeHooks(status, guard)
    register(compat.BUILD_STATE, hooks.around_build_state)
    register(compat.TRIVIAL_VERIFY_INPUT, hooks.around_trivial_verify_input)
    register(compat.DRAFT, hooks.around_draft)
    register(compat.EAGLE_SAMPLE, hooks.around_eagle_sample)
    register(compat.DRAFT_EXTEND_FOR_DECODE, hooks.around_draft_extend_for_decode)
    register(compat.DRAFT_EXTEND_FOR_PREFILL, hooks.around_draft_extend_for_prefill)
    register(compat.STASH, hooks.around_stash)
    register(compat.RESOLVE_SEQ_LENS, hooks.around_resolve_seq_lens)


class Shortcut:
    """`with shortcut as usable:` gives whether it may be taken, and asks `survived` about what it raises.

    A class and not a generator: some are entered at every step, and this costs a fifth.
    """

    __slots__ = ("_name", "_off", "_survived")

    def __init__(self, name: str, off: set[str], survived: Callable[[str, Exception], bool]) -> None:
        self._name = name
        self._off = off
        self._survived = survived

    def __enter__(self) -> bool:
        return self._name not in self._off

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, Exception) and self._survived(self._name, error)


class PlainDecodeHooks:
    """The functions that go around SGLang's in one scheduler process, which has one such worker."""

    def __init__(self, status: PlainDecodeStatus, guard: Guard) -> None:
        self._status = status
        self._guard = guard
        self._zero: DepthZero | None = None
        self._off: set[str] = set()
        self._counted_lengths, self._deferred_extend, self._frozen_prefill, self._greedy_root = (
            self._shortcut(name)
            for name in ("counted lengths", "deferred draft-extend", "frozen prefill", "greedy root")
        )
        self._shared_reads, self._verify_input, self._gear, self._skipped_extend = map(
            self._shortcut, ("shared reads", "one-node verify input", "gear", "skipped draft-extend")
        )

    # When the server starts

    def around_build_state(
        self, original: Original, worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Build the state for depth 0 with attention that decodes, or SGLang's own and say why."""
        zero = self._attach(worker)
        if speculative_num_steps != 0 or zero is None:
            return original(worker, speculative_num_steps, *args, **kwargs)
        status = self._status
        try:
            status.backend = zero.check_backend()
            with zero.adapting():
                state = original(worker, speculative_num_steps, *args, **kwargs)
        except RefusedError as refused:
            status.reason = str(refused)
            logger.warning("specgov: SGLang's own depth 0 stays: %s", refused)
        except Exception as error:
            if zero.several_ranks and _is_this_ranks_alone(error):
                raise  # the others are in the middle of a capture, and will not begin another
            status.reason = f"building the state failed: {error!r}"
            self._guard.failed("building depth 0 as plain decoding")
        else:
            zero.in_force = status.in_force = True
            status.reason = None
            logger.info("specgov: depth 0 is plain decoding on %s", status.backend)
            return state
        return original(worker, speculative_num_steps, *args, **kwargs)

    def _attach(self, worker: Any) -> DepthZero | None:
        """The `DepthZero` of `worker`, made on first sight; None when it cannot be made."""
        if self._zero is None or self._zero.worker is not worker:
            try:
                self._zero = DepthZero(worker)
                self._status.gears = self._zero.gears
            except Exception as error:
                self._status.reason = f"the worker is not built as expected: {error!r}"
                self._guard.failed("looking at the worker for plain decoding")
        return self._zero

    # A step

    def around_trivial_verify_input(self, original: Original, worker: Any, batch: Any) -> Any:
        """Every launch at depth 0 begins here."""
        zero = self._zero
        if zero is None or zero.worker is not worker or batch.forward_mode.is_idle():
            return original(worker, batch)
        self._count(zero.count_step, batch)
        with self._shared_reads as usable:
            if usable:
                zero.clear_shared_reads()
        with self._verify_input as usable:
            if usable and zero.in_force:
                return zero.tensors.verify_input(batch)
        return original(worker, batch)

    def around_draft(self, original: Original, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Every launch above depth 0 begins here; the draft first catches up with what was put off."""
        zero = self._of(worker, batch)
        if zero is not None:
            self._count(zero.count_drafting_step, batch)
            with self._deferred_extend as usable:
                if usable:
                    zero.catch_up(worker._draft_extend_for_decode, batch)
                    zero.drop_kept(batch)
        return original(worker, batch, *args, **kwargs)

    def around_eagle_sample(
        self,
        original: Original,
        verify_input: Any,
        batch: Any,
        logits_output: Any,
        grammar_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """A greedy root is its own answer."""
        zero = self._zero
        if zero is not None and verify_input.draft_token_num == 1:
            with self._greedy_root as usable:
                if (
                    usable
                    and zero.root_may_be_argmax
                    and kwargs.get("watermark_state") is None
                    and is_greedy_root(verify_input, batch, grammar_mask)
                ):
                    return zero.tensors.accept_root(logits_output.next_token_logits)
        return original(verify_input, batch, logits_output, grammar_mask, *args, **kwargs)

    def around_draft_extend_for_decode(
        self, original: Original, worker: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Put the draft-extend off while the gear is warm, leave it out while it is cold or frozen."""
        zero, gear = self._of(worker, batch), "on"
        with self._gear as usable:
            if usable and zero is not None:
                gear = zero.gear()
        with self._skipped_extend as may_skip:
            if zero is not None and gear != "on" and may_skip:
                with self._deferred_extend as usable:
                    if usable and gear == "warm" and zero.can_defer():
                        if not zero.defer(partial(original, worker), batch, result):
                            self._draft_nothing(zero, batch, result)
                        return None
                    if usable:
                        zero.drop_kept(batch)
                if gear != "warm":
                    self._draft_nothing(zero, batch, result)
                    return None
        return original(worker, batch, result, *args, **kwargs)

    def _draft_nothing(self, zero: DepthZero, batch: Any, result: Any) -> None:
        # With the overlap scheduler the relay keeps what an earlier draft left there (`around_stash`);
        # without it the next draft reads this very input.
        if not batch.enable_overlap:
            for name, value in zero.tensors.draft_stub(batch.seq_lens.shape[0]).items():
                setattr(result.next_draft_input, name, value)
        with self._shared_reads as usable:
            if usable:
                zero.publish_shared_reads()

    # Around a step

    def around_draft_extend_for_prefill(
        self,
        original: Original,
        worker: Any,
        batch: Any,
        target_hidden_states: Any,
        next_token_ids: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Leave the draft prefill of new requests out while the gear is frozen."""
        zero = self._of(worker, batch)
        if zero is not None:
            self._count(zero.count_prefill, batch)
            with self._deferred_extend as usable:
                if usable:
                    zero.drop_kept(batch)
            with self._frozen_prefill as usable:
                if usable and zero.prefill_gear() == "frozen":
                    mark_cold(batch.reqs)
                    return zero.tensors.draft_input(next_token_ids)
        return original(worker, batch, target_hidden_states, next_token_ids, *args, **kwargs)

    def around_stash(self, original: Original, future_map: Any, future_indices: Any, payload: Any) -> Any:
        """Relay the next token alone when nothing was drafted, leaving the draft's rows as they are.

        Every row was written by its request's prefill (by a stub when frozen), so what is left there is
        a token of the vocabulary and finite hidden states.  Releases from 0.5.22 on do this themselves, for
        requests that leave their staging area, by whose function they are told apart.
        """
        if (
            self._zero is None
            or payload.topk_p is not None
            or future_map.spec_algo.is_none()
            or hasattr(future_map, "make_staged_spec_input")
        ):
            return original(future_map, future_indices, payload)
        with self._skipped_extend:  # a relay that fails ends what needs it
            if getattr(future_map, "topk_p_buf", None) is not None:
                tokens = future_map.output_tokens_buf
                tokens[future_indices] = payload.bonus_tokens.to(tokens.dtype)
                return None
            for name, value in self._zero.tensors.draft_stub(future_indices.shape[0]).items():
                setattr(payload, name, value)
        return original(future_map, future_indices, payload)

    def around_resolve_seq_lens(
        self, original: Original, future_map: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Fill in the lengths of the next launch from the count, when it is known, without waiting."""
        zero = self._zero
        if zero is not None and not args and not kwargs and _is_relayed(batch):
            with self._counted_lengths as usable:
                if usable and zero.set_lengths(future_map, batch):
                    return None
        return original(future_map, batch, *args, **kwargs)

    # Shared

    def _of(self, draft_worker: Any, batch: Any) -> DepthZero | None:
        """The `DepthZero` that `draft_worker` belongs to; None for any other, and for an idle batch."""
        zero = self._zero
        if zero is None or zero.worker._draft_worker is not draft_worker or batch.forward_mode.is_idle():
            return None
        return zero

    def _count(self, count: Callable[[Any], None], batch: Any) -> None:
        with self._counted_lengths as usable:
            if usable:
                count(batch)

    def _shortcut(self, name: str) -> Shortcut:
        return Shortcut(name, self._off, self._survived)

    def _survived(self, name: str, error: Exception) -> bool:
        """Switch shortcut `name` off for good; called while `error` is being handled.

        Not when one of several ranks runs out of memory, or has a fault of its device: what fails on this
        rank alone would leave the ranks with different collectives, and a crash is better than a hang.
        """
        if _is_this_ranks_alone(error) and self._zero is not None and self._zero.several_ranks:
            return False
        self._off.add(name)
        self._status.reason = f"switched off after a failure: {', '.join(sorted(self._off))} ({error!r})"
        self._guard.failed(f"plain decoding: {name}")
        return True


def _is_this_ranks_alone(error: Exception) -> bool:
    """Memory and devices are what ranks do not have alike; everything else fails on all of them."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # PyTorch's
        return True
    said = str(error).lower()
    return any(part in said for part in ("out of memory", "alloc_failed", "cuda error", "hip error"))


def _is_relayed(batch: Any) -> bool:
    """Whether the lengths of `batch` come through the relay of the overlap scheduler."""
    return batch.spec_info is not None and batch.spec_info.future_indices is not None
