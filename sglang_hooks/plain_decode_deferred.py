"""The warm gear for less: the draft's KV cache is extended by several tokens at once instead of by each.

The draft-extend behind a step costs a pass over the draft's weights, however few tokens it takes in.
SGLang's state for depth `k` has a draft-extend of `k + 1` tokens per request (after a verify any number of
them may have been accepted).  So at depth 0 the target's hidden states and the tokens of the last steps
are kept, and the draft-extend of the deepest state takes them in together: once a request has as many as
fit, or when drafting is about to begin again.  Until then the draft is at most that many tokens behind,
and nobody looks.

The host counts how many tokens of each request are kept; the count depends on launches alone, so it is the
same on every rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class KeptCounts:
    """How many tokens of each slot of the request pool are kept, over the last `width` steps.

    Pure.  Steps are kept in a ring of `width`; a slot that misses a step loses what it had.  Its entry stays
    until it is used again, so there are at most as many as the pool has slots.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._step = -1
        self._kept: dict[int, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept of any slot."""
        return bool(self._kept)

    def add(self, slots: Sequence[int]) -> int:
        """A step of `slots` is kept; returns its row of the ring."""
        self._step += 1
        for slot in slots:
            step, count = self._kept.get(slot, (-2, 0))
            self._kept[slot] = (self._step, min(count, self.width - 1) + 1 if step == self._step - 1 else 1)
        return self._step % self.width

    def of(self, slots: Sequence[int]) -> list[int]:
        """Kept tokens of each of `slots`, 0..`width`; the latest step is the last of them."""
        found = (self._kept.get(slot, (-2, 0)) for slot in slots)
        return [count if step == self._step else 0 for step, count in found]

    def drop(self, slots: Sequence[int]) -> None:
        """What was kept of `slots` has been taken in, or is of no use any more."""
        for slot in slots:
            self._kept.pop(slot, None)

    def rows(self, counts: Sequence[int]) -> list[list[int]]:
        """For each request the ring rows of its kept tokens, oldest first, filled up to `width` with any."""
        last = self._step
        return [
            [(last - count + 1 + i) % self.width if i < count else 0 for i in range(self.width)]
            for count in counts
        ]


class DeferredExtend:
    """What is kept on the device, and how it is taken in."""

    def __init__(self, worker: Any, width: int, pool_rows: int) -> None:
        """`width`: tokens per request of the draft-extend of the deepest state."""
        self._worker = worker
        self._pool_rows = pool_rows
        self._hidden: Any = None
        self._tokens: Any = None
        self.counts = KeptCounts(width)

    def keep(self, batch: Any, slots: Sequence[int], result: Any) -> bool:
        """Keep what a step at depth 0 yielded; whether some request now has as many tokens as fit."""
        hidden = result.logits_output.hidden_states
        if self._hidden is None:
            self._make_room(hidden)
        row = self.counts.add(slots)
        self._hidden[row][batch.req_pool_indices] = hidden
        self._tokens[row][batch.req_pool_indices] = result.next_token_ids.to(self._tokens.dtype)
        return max(self.counts.of(slots)) == self.counts.width

    def take_in(
        self,
        extend: Callable[[Any, Any], None],
        batch: Any,
        slots: Sequence[int],
        draft_input: Any,
        lengths: Any,
    ) -> None:
        """Extend the draft's KV cache by what is kept of `slots`, and set what the next draft starts from.

        `extend(batch, result)` is SGLang's draft-extend.  `lengths`: tokens of each request, the kept ones
        included.  A request of which nothing is kept starts from what it has.
        """
        import torch

        counts = self.counts.of(slots)
        device = lengths.device
        count = torch.tensor(counts, dtype=torch.int32).to(device, non_blocking=True)
        before = (draft_input.topk_p, draft_input.topk_index, draft_input.hidden_states)
        window = self._window(batch, counts, lengths - count)
        with self._deepest():
            extend(window, self._accepted(batch, counts, count, draft_input))
        if 0 in counts:
            self._restore(draft_input, before, (count > 0).unsqueeze(1))
        self.counts.drop(slots)

    def _make_room(self, hidden: Any) -> None:
        import torch

        shape = (self.counts.width, self._pool_rows)
        self._hidden = torch.zeros((*shape, hidden.shape[1]), dtype=hidden.dtype, device=hidden.device)
        self._tokens = torch.zeros(shape, dtype=torch.int64, device=hidden.device)

    def _window(self, batch: Any, counts: Sequence[int], starts: Any) -> Any:
        """A copy of `batch` as it was before the kept tokens; what lies past them is overwritten later."""
        from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

        window = copy.copy(batch)
        window.seq_lens = starts
        if batch.seq_lens_cpu is not None:
            import torch

            past = self._length_past(batch)
            window.seq_lens_cpu = batch.seq_lens_cpu + past - torch.tensor(counts, dtype=torch.int64)
            window.seq_lens_sum = int(window.seq_lens_cpu.sum())
        window.out_cache_loc = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=starts,
            batch_size=len(counts),
            draft_token_num=self.counts.width,
            device=batch.device,
        )
        return window

    @staticmethod
    def _length_past(batch: Any) -> int:
        """1 behind a verify, whose batch does not count its token yet; 0 before a draft."""
        return int(batch.forward_mode.is_target_verify())

    def _accepted(self, batch: Any, counts: Sequence[int], count: Any, draft_input: Any) -> Any:
        """The kept tokens in the form of a verify result that accepted `counts` of `width` each."""
        import torch

        rows = torch.tensor(self.counts.rows(counts), dtype=torch.int64).to(batch.device, non_blocking=True)
        at = (rows * self._pool_rows + batch.req_pool_indices.unsqueeze(1)).flatten()
        return SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=self._hidden.flatten(0, 1)[at]),
            next_token_ids=self._tokens.flatten()[at],
            accept_lens=count.clamp(min=1),
            next_draft_input=draft_input,
            prepared_draft_extend_inputs=None,
            new_seq_lens=None,
        )

    @staticmethod
    def _restore(draft_input: Any, before: tuple[Any, Any, Any], kept: Any) -> None:
        import torch

        for name, old in zip(("topk_p", "topk_index", "hidden_states"), before, strict=True):
            new = getattr(draft_input, name)
            if old is not None and new is not None:
                setattr(draft_input, name, torch.where(kept, new, old.to(new.dtype)))

    @contextmanager
    def _deepest(self) -> Iterator[None]:
        """Within, the draft worker's draft-extend is that of the deepest state."""
        draft = self._worker._draft_worker
        states = self._worker.adaptive_controller._states
        state = states[max(states)]
        runner = draft.draft_runner
        before = (
            draft.speculative_num_draft_tokens,
            draft.draft_extend_attn_backend,
            draft.cuda_graph_runner_for_draft_extend,
            runner.attn_backend,
        )
        draft.speculative_num_draft_tokens = state.speculative_num_draft_tokens
        draft.draft_extend_attn_backend = state.draft_extend_attn_backend
        draft.cuda_graph_runner_for_draft_extend = state.cuda_graph_runner_for_draft_extend
        if state.draft_extend_attn_backend is not None:
            runner.attn_backend = state.draft_extend_attn_backend
        try:
            yield
        finally:
            (
                draft.speculative_num_draft_tokens,
                draft.draft_extend_attn_backend,
                draft.cuda_graph_runner_for_draft_extend,
                runner.attn_backend,
            ) = before
