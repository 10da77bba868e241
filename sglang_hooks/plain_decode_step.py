"""Depth 0, the rest of a step: what verifying a tree of one node needs less than SGLang's general path.

The constants of such a tree are made once instead of every step (each is a kernel launch between two
forwards, and these gaps are most of what is left of depth 0 once attention decodes), a greedy root is
its own answer, and the draft model's outputs that nobody will read are neither computed nor stored.
"""

from __future__ import annotations

from typing import Any


class OneNodeTensors:
    """Constant device tensors, handed out as the first `n` rows.

    Read-only for everyone: the same memory serves every step, on every stream.  So reserve the largest
    batch before serving; growing later frees what a copy to the host may still read.
    """

    def __init__(self, device: Any, topk: int, hidden: tuple[int | None, Any]) -> None:
        """`hidden`: width (None: the draft reads no hidden states) and dtype of what a draft starts from."""
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
        from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput
        from sglang.srt.utils.async_probe import sanitize_nan_logits

        self._torch = torch
        self._full = CaptureHiddenMode.FULL
        self._make_draft_input, self._make_verify_input = EagleDraftInput, EagleVerifyInput
        self._sanitize = sanitize_nan_logits
        self._device = device
        self._topk = topk
        self._hidden_size, self._hidden_dtype = hidden
        self._rows = 0

    def reserve(self, rows: int) -> None:
        """Make room for `rows` requests."""
        if rows <= self._rows:
            return
        torch = self._torch
        rows = max(rows, 2 * self._rows)
        device = self._device
        self._index = torch.arange(rows, dtype=torch.long, device=device).unsqueeze(1)
        self._index_int32 = self._index.to(torch.int32)
        self._none = torch.full((rows, 1), -1, dtype=torch.long, device=device)
        self._one = torch.ones(rows, dtype=torch.int32, device=device)
        self._mask = torch.ones(1, dtype=torch.bool, device=device)
        self._topk_p = torch.zeros((1, self._topk), dtype=torch.float32, device=device)
        self._topk_index = torch.zeros((1, self._topk), dtype=torch.int64, device=device)
        self._hidden_states = (
            None
            if self._hidden_size is None
            else torch.zeros((1, self._hidden_size), dtype=self._hidden_dtype, device=device)
        )
        self._rows = rows

    def verify_input(self, batch: Any) -> Any:
        """The verify input of a tree whose only node is each request's last token.

        As SGLang's `_build_trivial_verify_input`, but for a mask of one byte: decoding reads none.
        """
        rows = batch.seq_lens.shape[0]
        self.reserve(rows)
        none = self._none[:rows]
        return self._make_verify_input(
            draft_token=batch.spec_info.bonus_tokens,
            custom_mask=self._mask,
            positions=batch.seq_lens,
            retrieve_index=self._index[:rows],
            retrieve_next_token=none,
            retrieve_next_sibling=none,
            retrieve_cum_len=None,
            spec_steps=0,
            topk=self._topk,
            draft_token_num=1,
            capture_hidden_mode=self._full,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )

    def accept_root(self, logits: Any) -> tuple[Any, Any, Any]:
        """The greedy answer for one row of logits per request, in the form that `eagle_sample` returns.

        Next token ids, tokens accepted per request (the bonus token alone: 1), and the index of the
        accepted node.
        """
        self._sanitize(logits, "verify: target model logits")
        rows = logits.shape[0]
        self.reserve(rows)
        next_tokens = self._torch.argmax(logits, dim=-1).to(self._torch.int32)
        return next_tokens, self._one[:rows], self._index_int32[:rows]

    def draft_stub(self, rows: int) -> dict[str, Any]:
        """What a draft would start from, for requests that nothing was drafted for.

        Zeros: a token of the vocabulary and finite hidden states, so that a later rise drafts badly and
        safely.
        """
        self.reserve(rows)
        hidden = self._hidden_states
        return {
            "topk_p": self._topk_p.expand(rows, -1),
            "topk_index": self._topk_index.expand(rows, -1),
            "hidden_states": None if hidden is None else hidden.expand(rows, -1),
        }

    def draft_input(self, next_tokens: Any) -> Any:
        """What the draft prefill of requests with these next tokens would return, without its run."""
        return self._make_draft_input(
            **self.draft_stub(next_tokens.shape[0]),
            bonus_tokens=next_tokens,
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )


def is_greedy_root(verify_input: Any, batch: Any, grammar_mask: Any) -> bool:
    """Whether sampling is an argmax over untouched logits of a tree of one node."""
    info = batch.sampling_info
    return (
        verify_input.draft_token_num == 1
        and verify_input.spec_steps == 0
        and not batch.forward_mode.is_idle()
        and info.is_all_greedy
        and grammar_mask is None
        and info.acc_additive_penalties is None
        and info.acc_scaling_penalties is None
        and info.logit_bias is None
    )
