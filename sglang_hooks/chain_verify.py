"""Depths above 0, attention: a chain of tokens is answered by the decode path, a row per token.

With topk 1 the tree of drafts is a chain: the token at place i sees the prefix and places 0 to i.  That is
what decoding shows a request of that length, so a batch that stands k + 1 times, with lengths one apart,
decodes to the same attention; all keys and values are written before any is read.  SGLang's Triton
backend takes such a batch through its prefill kernel instead, one program per request and head for the
whole prefix: the target's verify of the drafts, and behind it the draft model's extend by the same tokens.

`adapt` makes a backend a subclass of its own class that shows its inherited methods such a DECODE view of
a TARGET_VERIFY or DRAFT_EXTEND_V2 batch, as `plain_decode_attention` does for one token.  What the models,
the logits and the sampling see stays what it was, and whatever does not fit the view goes SGLang's own way.

It is on where a server was measured to be faster with it and as right; `SPECGOV_CHAIN_VERIFY=1` turns it on
wherever it is known how to (`KNOWN`), together with `SPECGOV_ALLOW_UNTESTED=1` on other releases too, and
`SPECGOV_CHAIN_VERIFY=0` nowhere.  The draft's extend is on where the verify is, but for
`SPECGOV_CHAIN_EXTEND=0`; it bears on which drafts are proposed, never on what is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_hooks import compat
from sglang_hooks.environment import setting, switch
from sglang_hooks.guard import Guard
from sglang_hooks.plain_decode_attention import (
    DecodesOneToken,
    RefusedError,
    adapted_class,
    check,
    decode_view,
    is_mla,
)
from sglang_hooks.status import ChainVerifyStatus

logger = logging.getLogger("specgov")

ENV = "SPECGOV_CHAIN_VERIFY"
EXTEND_ENV = "SPECGOV_CHAIN_EXTEND"

_ATTENTION = "sglang.srt.layers.attention"
_TRITON = f"{_ATTENTION}.triton_backend.TritonAttnBackend"
KNOWN = {_TRITON: ("0.5.17",), f"{_ATTENTION}.intel_amx_backend.IntelAMXAttnBackend": ("0.5.23",)}
"""Exact class to the releases whose decode path was read and run.  Others verify fast by themselves."""

Original = Callable[..., Any]


def install(register: Callable[[str, Original], None], status: ChainVerifyStatus, guard: Guard) -> None:
    """Go around the making of attention backends through `register(dotted path, hook)`.

    Unless it is turned off or known on no backend of this release; `status` says then what is in force.
    """
    wanted = switch(ENV)
    if wanted is False:
        status.reason = f"turned off by {setting(ENV)}"
        return
    release = compat.sglang_version()
    if not any(_is_known(path, release) for path in KNOWN):
        status.reason = f"not known on SGLang {release}"
        return
    hooks = ChainVerifyHooks(status, guard, everywhere=wanted is True)
    register(compat.GET_ATTENTION_BACKEND, hooks.around_get_attention_backend)
    register(compat.INIT_ATTENTION_BACKENDS, hooks.around_init_attention_backends)
    if switch(EXTEND_ENV) is not False:
        register(compat.CREATE_DRAFT_EXTEND_BACKEND, hooks.around_create_draft_extend_backend)


class ChainVerifyHooks:
    """The functions that go around SGLang's in one scheduler process."""

    def __init__(self, status: ChainVerifyStatus, guard: Guard, *, everywhere: bool) -> None:
        self._status = status
        self._guard = guard
        self._everywhere = everywhere

    def around_get_attention_backend(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """The backend of a depth that is built after the first."""
        backend = original(runner, *args, **kwargs)
        self._try_to_adapt(backend, runner)
        return backend

    def around_init_attention_backends(self, original: Original, runner: Any) -> None:
        """The backend that the server starts with, which serves the first depth and all prefills."""
        original(runner)
        self._try_to_adapt(runner.attn_backend, runner)

    def around_create_draft_extend_backend(self, original: Original, factory: Any) -> Any:
        """The backend by which the draft model of one depth takes in what a verify accepted."""
        backend = original(factory)
        try:
            runner = factory.draft_model_runner
            wanted = self._status.in_force and _width(backend) > 1 and not is_mla(runner)
            if wanted and self._why_not(backend, runner) is None:
                adapt(backend)
                self._status.draft_extend = True
        except Exception:
            self._guard.failed("extending the draft's chains by decoding")
        return backend

    def _try_to_adapt(self, backend: Any, runner: Any) -> None:
        status = self._status
        try:
            if runner.is_draft_worker or _width(backend) <= 1 or hasattr(backend, "_specgov_width"):
                return
            status.backend = type(backend).__name__
            status.reason = self._why_not(backend, runner)
            if status.reason is None:
                adapt(backend)
                status.in_force = True
        except Exception as error:
            status.reason = f"adapting the backend failed: {error!r}"
            self._guard.failed("verifying chains by decoding")

    def _why_not(self, backend: Any, runner: Any) -> str | None:
        release = compat.sglang_version()
        reason = why_not(backend, runner, release)
        return reason or (None if self._everywhere else why_not_unasked(backend, runner, release))


def _is_known(path: str, release: str | None) -> bool:
    """Whether it was run there, or the operator lets it be used where it was not."""
    return release in KNOWN.get(path, ()) or (path in KNOWN and switch(compat.ALLOW_UNTESTED) is True)


def why_not(backend: Any, runner: Any, release: str | None) -> str | None:
    """Why `backend` keeps SGLang's own way, for the operator; None: it need not."""
    path = _path(backend)
    if not _is_known(path, release):
        reason = f"{path} on SGLang {release} is not one of those known to be right"
        if path not in KNOWN:
            return reason
        return f"{reason}; {compat.ALLOW_UNTESTED}=1 and {ENV}=1 at launch use it all the same"
    if not runner.spec_algorithm.is_eagle() or runner.server_args.speculative_eagle_topk != 1:
        return "only EAGLE with speculative_eagle_topk 1 drafts chains"
    if pads_planned_batches(runner.server_args):
        return (
            "ranks that wait for each other's batches (DP attention, expert all-to-all) pad them once planned"
        )
    try:
        check(backend, runner)
    except RefusedError as refused:
        return str(refused)
    return None


def pads_planned_batches(server_args: Any) -> bool:
    """Whether batches are padded to those of other ranks, which rows planned before do not stand."""
    return (
        server_args.enable_dp_attention
        or server_args.moe_a2a_backend != "none"
        or server_args.moe_dense_tp_size is not None
    )


def why_not_unasked(backend: Any, runner: Any, release: str | None) -> str | None:
    """Why a backend that could is left alone unless the operator asks; None: it was measured on a server."""
    if release not in KNOWN[_path(backend)]:
        return f"it was not run on SGLang {release}: {ENV}=1 turns it on"
    if _path(backend) != _TRITON:
        return f"its speed was not measured on this backend: {ENV}=1 turns it on"
    if is_mla(runner):
        return f"with MLA only its kernel was measured, on no server: {ENV}=1 turns it on"
    return None


def adapt(backend: Any) -> None:
    """Make `backend` answer chains of up to as many tokens as its depth has by decoding.

    Must run before the backend's CUDA graph state is set up.
    """
    width = _width(backend)
    if hasattr(backend, "kv_indptr"):  # Triton: one entry per request of the pool, and one more
        requests = backend.kv_indptr.shape[0] - 1
        backend.kv_indptr = backend.kv_indptr.new_zeros(requests * width + 1)
    backend._specgov_width = width
    backend.__class__ = adapted_class("Chain", type(backend), DecodesChains)


class DecodesChains:
    """What an adapted backend does instead of its own class; see the module's docstring."""

    _specgov_base: Any
    """The backend's own class."""
    _specgov_width: int
    """Tokens of the longest chain that there is room for."""
    max_context_len: int
    """SGLang's own: a row has room for so many indices."""
    _specgov_rows: tuple[tuple[int, int, int], dict[str, Any]] | None = None
    """Shape and rows of the chains whose metadata are in force; None: those of another batch are."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Eager: a batch above the largest captured one, or a server without graphs.

        Without the sum of lengths SGLang would reserve the whole context for every row.
        """
        self._specgov_rows = None
        if forward_batch.seq_lens_sum is not None:
            forward_batch = self._metadata_view(forward_batch)
        self._specgov_base.init_forward_metadata(self, forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """At capture, and before every replay."""
        view = self._metadata_view(forward_batch)
        self._specgov_base.init_forward_metadata_out_graph(self, view, in_capture=in_capture)

    init_forward_metadata_in_graph = DecodesOneToken.init_forward_metadata_in_graph
    forward = DecodesOneToken.forward

    def _metadata_view(self, forward_batch: Any) -> Any:
        """The DECODE view of a chain batch, its rows kept for its layers; any other batch as it is."""
        self._specgov_rows = None
        requests, width, counted = shape = chains_of(forward_batch)
        if not 1 < width <= self._specgov_width:
            return forward_batch
        rows = rows_of(forward_batch, requests, width, counted, self.max_context_len)
        self._specgov_rows = (shape, rows)
        return _with_rows(forward_batch, rows)

    def _seen(self, forward_batch: Any) -> Any:
        """The batch as it is now, with the rows of its metadata.

        Copied anew, since the runner may have copied or changed the batch after its metadata were made; only
        capturing and eager batches come here.  Chains of another shape than was planned for (padded since)
        are planned again, SGLang's own way.
        """
        if self._specgov_rows is None:
            return forward_batch
        planned, rows = self._specgov_rows
        shape = chains_of(forward_batch)
        if shape == planned:
            return _with_rows(forward_batch, rows)
        if shape != NO_CHAINS:
            self._specgov_rows = None
            self._specgov_base.init_forward_metadata(self, forward_batch)
        return forward_batch


NO_CHAINS = (0, 0, 0)


def chains_of(forward_batch: Any) -> tuple[int, int, int]:
    """Requests, tokens of each one's chain, and how many of these `seq_lens` counts; else `NO_CHAINS`."""
    mode, spec, requests = forward_batch.forward_mode, forward_batch.spec_info, forward_batch.batch_size
    if mode.is_target_verify() and spec.topk == 1:
        return requests, spec.draft_token_num, 0
    if mode.is_draft_extend_v2() and spec.num_front_tokens == 0:
        return requests, spec.num_tokens_per_req, spec.num_tokens_per_req
    return NO_CHAINS


def rows_of(forward_batch: Any, requests: int, width: int, counted: int, most: int) -> dict[str, Any]:
    """What differs in the view: row r * width + i is request r with i + 1 tokens of its chain.

    `seq_lens` counts the row's token, as decoding does: 1 at least (what pads a batch is shorter than a
    chain, and reads one scratch token), `most` at most (drafts past the context's end are never said, and
    SGLang's buffer has no room for their indices).  New tensors: those of the batch belong to the graph
    runner, which pads and reuses them, and may have room for more requests than there are.
    """
    places = range(1 - counted, width + 1 - counted)
    # without their sum SGLang's lengths on the host are stale, if they are there
    host = None if forward_batch.seq_lens_sum is None else forward_batch.seq_lens_cpu
    host_rows: Any = None if host is None else _one_apart(host[:requests], places, most)
    return {
        "batch_size": requests * width,
        "seq_lens": _one_apart(forward_batch.seq_lens[:requests], places, most),
        "seq_lens_cpu": host_rows,
        "seq_lens_sum": None if host_rows is None else int(host_rows.sum()),
        "req_pool_indices": forward_batch.req_pool_indices[:requests].repeat_interleave(width),
    }


def _with_rows(forward_batch: Any, rows: dict[str, Any]) -> Any:
    view = decode_view(forward_batch)
    for name, value in rows.items():
        setattr(view, name, value)
    return view


def _path(backend: Any) -> str:
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def _width(backend: Any) -> int:
    return int(getattr(backend, "num_draft_tokens", None) or 0)


def _one_apart(lengths: Any, places: range, most: int) -> Any:
    import torch

    steps = torch.arange(places.start, places.stop, dtype=lengths.dtype, device=lengths.device)
    return (lengths.unsqueeze(1) + steps).clamp(min=1, max=most).reshape(-1)
