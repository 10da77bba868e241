"""Depth 0, attention: a target backend answers a one-token TARGET_VERIFY by its own decode path.

At depth 0 SGLang verifies a tree of one node: one query token per request that may see everything
before it.  That is a decode step but for three conventions: the forward mode is TARGET_VERIFY (so
the backend takes its extend or verify kernel, with a mask), `spec_info` is a verify input, and
`seq_lens` does not count the token yet, while decoding counts it.  `adapt` makes the backend a
subclass of its own class which shows its inherited methods a DECODE view of such a batch.  What the
model, the logits and the sampling see stays TARGET_VERIFY.

A backend is adapted only when its exact class is in `SUPPORTED`: each was read for what it does
with lengths, indices and `spec_info` in a DECODE batch, on the releases that `compat` names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """This target keeps SGLang's own path at depth 0; the message is the reason, for the operator."""


def adapt(backend: Any, runner: Any) -> None:
    """Make `backend` (of the target's `runner`) decode at depth 0.

    Must run before the backend's CUDA graph state is set up.  Raises `RefusedError`, with the backend as
    it was, when it is not known to be right.
    """
    check(backend, runner)
    backend.__class__ = adapted_class("PlainDecode", type(backend), DecodesOneToken)


def adapted_class(prefix: str, cls: type, behaviour: type) -> type:
    """A subclass of a backend's own class `cls` with the methods of `behaviour`, which call `_specgov_base`.

    A subclass, so that isinstance checks, attributes, prefill and every other mode stay as they are.  By
    copying, not by mixing in: Python changes the class of an object only along one line of bases.
    """
    methods = {name: value for name, value in vars(behaviour).items() if not name.startswith("__")}
    return type(f"{prefix}{cls.__name__}", (cls,), {**methods, "_specgov_base": cls})


def check(backend: Any, runner: Any) -> None:
    """Raise `RefusedError` unless `backend` is known to decode rightly at depth 0."""
    reason = _refuse_model(backend, runner) or _refuse_class(backend, runner)
    if reason:
        raise RefusedError(reason)


def describe(backend: Any) -> str:
    """The class name as it stood before adapting; a split backend names its decode side too."""
    inner = getattr(backend, "decode_backend", None)
    name = getattr(backend, "_specgov_base", type(backend)).__name__
    return f"{name}(decode={type(inner).__name__})" if _path(backend) == _HYBRID else name


def _path(backend: Any) -> str:
    """The dotted path of the backend's own class, under what was made of it (`adapted_class`)."""
    cls = getattr(backend, "_specgov_base", type(backend))
    return f"{cls.__module__}.{cls.__qualname__}"


def _refuse_class(backend: Any, runner: Any) -> str | None:
    refuse = SUPPORTED.get(_path(backend))
    if refuse is None:
        return f"the attention backend {_path(backend)} is not one of those known to be right at depth 0"
    return refuse(backend, runner)


def _refuse_model(backend: Any, runner: Any) -> str | None:
    """What rules every backend out, because it was not proven with any."""
    config = runner.model_config
    translator = getattr(backend, "kv_index_translator", None)
    translates = (
        getattr(backend, "_translate_kv_loc", None) is not None  # 0.5.17
        or bool(getattr(translator, "is_translating", False))  # 0.5.20 and newer
    )
    refusals = (
        (config.is_encoder_decoder, "encoder-decoder models have cross-attention metadata of their own"),
        (runner.sliding_window_size is not None, "sliding-window attention is not proven with it"),
        (getattr(backend, "topk", 1) > 1, "speculative_eagle_topk must be 1"),
        (getattr(backend, "dcp_size", 1) > 1, "decode context parallelism is not proven with it"),
        (translates, "the unified KV pool translates KV indices, which is not proven with it"),
        (getattr(runner, "hisparse_coordinator", None), "HiSparse is not proven with it"),
    )
    return next((reason for applies, reason in refusals if applies), None)


def is_mla(runner: Any) -> bool:
    """Whether the target has latent attention."""
    return str(getattr(runner.model_config.attention_arch, "name", "")) == "MLA"


def _refuse_mla(_backend: Any, runner: Any) -> str | None:
    return "MLA models are not proven on this attention backend" if is_mla(runner) else None


def _refuse_triton(_backend: Any, _runner: Any) -> str | None:
    # Decode metadata is kv_indptr, kv_indices and num_kv_splits, filled from seq_lens into the
    # backend's own buffers; forward_decode reads nothing else, so lengths are free to be a new tensor.
    return None


def _refuse_flashinfer(backend: Any, runner: Any) -> str | None:
    # As Triton's, planned through the decode wrapper of the captured batch size.  Only the FP4
    # workspace path reads lengths inside the graph, where the view's tensor would be a dead address.
    if getattr(backend, "decode_uses_dequant_workspace", False):
        return "an FP4 KV cache with a dequantized workspace reads lengths inside the CUDA graph"
    return _refuse_mla(backend, runner)


def _refuse_flash_attention(backend: Any, _runner: Any) -> str | None:
    # cache_seqlens, cu_seqlens_k and the page table are filled from seq_lens into preallocated buffers.
    refusals = (
        (backend.fa_impl_ver != 3, f"FlashAttention {backend.fa_impl_ver} is not proven with it"),
        (backend.has_local_attention, "chunked local attention is not proven with it"),
        (backend.is_prefill_aware_swa, "prefill-aware sliding windows keep state per backend"),
    )
    return next((reason for applies, reason in refusals if applies), None)


def _refuse_hybrid(backend: Any, runner: Any) -> str | None:
    """A split backend serves DECODE by its decode side, so that side must be known too."""
    if is_mla(runner) and not backend.spec_attn_is_decode:
        # The model shapes its MLA inputs for the side that SGLang would verify with.
        return "an MLA model with split attention backends needs --speculative-attention-mode decode"
    inner = backend.decode_backend
    return _refuse_model(inner, runner) or _refuse_class(inner, runner)


_ATTENTION = "sglang.srt.layers.attention"
_HYBRID = f"{_ATTENTION}.hybrid_attn_backend.HybridAttnBackend"

SUPPORTED: dict[str, Callable[[Any, Any], str | None]] = {
    f"{_ATTENTION}.triton_backend.TritonAttnBackend": _refuse_triton,
    f"{_ATTENTION}.flashinfer_backend.FlashInferAttnBackend": _refuse_flashinfer,
    f"{_ATTENTION}.flashattention_backend.FlashAttentionBackend": _refuse_flash_attention,
    f"{_ATTENTION}.intel_amx_backend.IntelAMXAttnBackend": _refuse_mla,
    f"{_ATTENTION}.torch_native_backend.TorchNativeAttnBackend": _refuse_mla,
    _HYBRID: _refuse_hybrid,
}
"""Exact class to what rules it out (None: nothing).  A subclass of one of these is not one of these."""


class DecodesOneToken:
    """What an adapted backend does instead of its own class; see `adapt` and the module's docstring."""

    _specgov_base: Any
    """The backend's own class."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Eager: a batch above the largest captured one, or a server without graphs."""
        self._specgov_base.init_forward_metadata(self, self._counted(forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """At capture, and before every replay."""
        view = self._counted(forward_batch)
        self._specgov_base.init_forward_metadata_out_graph(self, view, in_capture=in_capture)
        if not in_capture:
            self._mark_shared_reads_done()

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Recorded into the graph."""
        self._specgov_base.init_forward_metadata_in_graph(self, self._seen(forward_batch))

    def forward(  # noqa: PLR0917 - SGLang's own signature
        self,
        q: Any = None,
        k: Any = None,
        v: Any = None,
        layer: Any = None,
        forward_batch: Any = None,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> Any:
        """One attention layer; the inherited method dispatches on the view's mode."""
        view = self._seen(forward_batch)
        return self._specgov_base.forward(self, q, k, v, layer, view, save_kv_cache, **kwargs)

    @property
    def verify_mask(self) -> None:
        """None: decoding reads no mask, and what `plain_decode_step` builds has none worth filling."""
        return

    def update_verify_buffers_to_fill_after_draft(self, spec_info: Any, cuda_graph_bs: int | None) -> None:
        """Nothing: neither mask nor draft positions are read."""

    def glue_target_verify_metadata(self) -> str:
        """Why the metadata may not be captured into SGLang's metadata graph (newer releases ask)."""
        return "depth 0 decodes, and plain decoding has no metadata graph either"

    def take_shared_reads_done(self) -> Any:
        """The event after which this step reads nothing shared with the scheduler, once; None if none."""
        return self.__dict__.pop("_specgov_shared_reads_done", None)

    def _mark_shared_reads_done(self) -> None:
        """Record that event, which SGLang's decode graph publishes and its verify graph does not.

        The metadata are a snapshot in both.  Without it the scheduler's stream waits for the whole forward.
        """
        new_event = self.__dict__.get("specgov_new_event")
        if new_event is not None:
            event = new_event()
            event.record()
            self.__dict__["_specgov_shared_reads_done"] = event

    def _counted(self, forward_batch: Any) -> Any:
        """The DECODE view, with lengths that count the token.

        New tensors: the lengths of the batch belong to the graph runner, which pads and reuses them.
        Padding rows (length 1 in a verify batch) have length 2 here and read the pool's scratch row.
        The view is kept for the layers of this batch, and with it one batch until the next.
        """
        if not forward_batch.forward_mode.is_target_verify():
            return forward_batch
        width = getattr(forward_batch.spec_info, "draft_token_num", 1)
        if width != 1:
            raise RuntimeError(f"depth 0 verifies one token per request, got {width}")
        view = decode_view(forward_batch)
        view.seq_lens = forward_batch.seq_lens + 1
        if forward_batch.seq_lens_cpu is not None:
            view.seq_lens_cpu = forward_batch.seq_lens_cpu + 1
        if forward_batch.seq_lens_sum is not None:
            view.seq_lens_sum = forward_batch.seq_lens_sum + forward_batch.batch_size
        self.__dict__["_specgov_counted"] = view
        self.__dict__["_specgov_counted_for"] = forward_batch
        return view

    def _seen(self, forward_batch: Any) -> Any:
        """The DECODE view for the layers: the batch as it is now, with the lengths of its metadata.

        Copied anew, since the runner may still have changed the batch after its metadata were made; only
        capturing and eager batches come here.
        """
        if not forward_batch.forward_mode.is_target_verify():
            return forward_batch
        if self.__dict__.get("_specgov_counted_for") is not forward_batch:
            return self._counted(forward_batch)
        counted = self.__dict__["_specgov_counted"]
        view = decode_view(forward_batch)
        view.seq_lens, view.seq_lens_cpu = counted.seq_lens, counted.seq_lens_cpu
        view.seq_lens_sum = counted.seq_lens_sum
        return view


def decode_view(forward_batch: Any) -> Any:
    """A shallow copy of a verify batch that says DECODE and has no verify input."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    view = copy.copy(forward_batch)
    view.forward_mode = ForwardMode.DECODE
    view.spec_info = None
    return view
