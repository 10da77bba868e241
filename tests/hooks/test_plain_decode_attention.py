"""Which attention backends may decode at depth 0, and what an adapted one is shown (with stand-ins)."""

import sys
import types

import pytest

from sglang_hooks import plain_decode_attention as attention
from sglang_hooks.plain_decode_attention import RefusedError, adapt, check, describe


class Mode:
    """SGLang's ForwardMode, as far as it is asked."""

    def __init__(self, name):
        self.name = name

    def is_target_verify(self):
        return self.name == "TARGET_VERIFY"

    def is_draft_extend_v2(self):
        return self.name == "DRAFT_EXTEND_V2"


DECODE, VERIFY, EXTEND = Mode("DECODE"), Mode("TARGET_VERIFY"), Mode("EXTEND")


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """The one module of SGLang that an adapted backend imports."""
    info = types.ModuleType("sglang.srt.model_executor.forward_batch_info")
    info.ForwardMode = types.SimpleNamespace(DECODE=DECODE)
    for name in ("sglang", "sglang.srt", "sglang.srt.model_executor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, info.__name__, info)


class Backend:
    """Keeps what its own methods were shown."""

    def __init__(self, **attributes):
        self.shown = []
        vars(self).update(attributes)

    def init_forward_metadata(self, forward_batch):
        self.shown.append(("eager", forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self.shown.append(("capture" if in_capture else "replay", forward_batch))

    def init_forward_metadata_in_graph(self, forward_batch):
        self.shown.append(("in graph", forward_batch))

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        self.shown.append(("layer", forward_batch))
        return (q, k, v, layer, save_kv_cache, kwargs)

    @property
    def verify_mask(self):
        return "a mask of the whole context"

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs):
        raise AssertionError


def backend_of(path, **attributes):
    """An instance of a class with this dotted path."""
    module, name = path.rsplit(".", 1)
    return type(name, (Backend,), {"__module__": module, "__qualname__": name})(**attributes)


ATTENTION = attention._ATTENTION
TRITON = f"{ATTENTION}.triton_backend.TritonAttnBackend"
FLASHINFER = f"{ATTENTION}.flashinfer_backend.FlashInferAttnBackend"
FA = f"{ATTENTION}.flashattention_backend.FlashAttentionBackend"
AMX = f"{ATTENTION}.intel_amx_backend.IntelAMXAttnBackend"
HYBRID = f"{ATTENTION}.hybrid_attn_backend.HybridAttnBackend"
FA3 = {"fa_impl_ver": 3, "has_local_attention": False, "is_prefill_aware_swa": False}


def runner(arch="MHA", **changes):
    """A target's model runner."""
    config = types.SimpleNamespace(
        is_encoder_decoder=changes.pop("is_encoder_decoder", False),
        attention_arch=types.SimpleNamespace(name=arch),
    )
    found = {"model_config": config, "sliding_window_size": None, "hisparse_coordinator": None, **changes}
    return types.SimpleNamespace(**found)


def batch(mode=VERIFY, **changes):
    """Two requests of 7 and 130 tokens, each about to get one more."""
    spec = types.SimpleNamespace(draft_token_num=1)
    found = {
        "forward_mode": mode, "spec_info": spec, "batch_size": 2, "out_cache_loc": "slots",
        "seq_lens": Lens(7, 130), "seq_lens_cpu": Lens(7, 130), "seq_lens_sum": 137, **changes,
    }  # fmt: skip
    return types.SimpleNamespace(**found)


class Lens(tuple):
    """Lengths that add like a tensor."""

    __slots__ = ()

    def __new__(cls, *lengths):
        return super().__new__(cls, lengths)

    def __add__(self, one):
        return Lens(*(length + one for length in self))


# -- who is adapted


@pytest.mark.parametrize(
    "backend",
    [
        backend_of(TRITON),
        backend_of(FLASHINFER, decode_uses_dequant_workspace=False),
        backend_of(FA, **FA3),
        backend_of(AMX),
        backend_of(HYBRID, decode_backend=backend_of(TRITON), spec_attn_is_decode=False),
    ],
    ids=lambda b: type(b).__name__,
)
def test_a_backend_that_was_read_is_adapted(backend):
    """Afterwards it still is an instance of its own class, under a name that tells."""
    own = type(backend)
    adapt(backend, runner())
    assert isinstance(backend, own)
    assert type(backend).__name__ == f"PlainDecode{own.__name__}"


@pytest.mark.parametrize("path", [TRITON, FA])
def test_mla_is_adapted_where_its_decode_path_was_read(path):
    """Triton and FlashAttention 3 serve MLA with the same classes and the same metadata."""
    check(backend_of(path, **(FA3 if path == FA else {})), runner("MLA"))


UNKNOWN = "not one of those known"


def on_triton(**attributes):
    return backend_of(TRITON, **attributes)


def on_fa(**attributes):
    return backend_of(FA, **{**FA3, **attributes})


def split(inner, *, verifies_with_decode=False):
    return backend_of(HYBRID, decode_backend=inner, spec_attn_is_decode=verifies_with_decode)


TRANSLATES = types.SimpleNamespace(is_translating=True)


@pytest.mark.parametrize(
    ("backend", "on", "reason"),
    [
        (backend_of(f"{ATTENTION}.hybrid_linear_attn_backend.HybridLinearAttnBackend"), runner(), UNKNOWN),
        (backend_of(f"{ATTENTION}.tbo_backend.TboAttnBackend"), runner(), UNKNOWN),
        (backend_of(f"{ATTENTION}.flashmla_backend.FlashMLABackend"), runner("MLA"), UNKNOWN),
        (backend_of("somebody.elses.TritonAttnBackend"), runner(), UNKNOWN),
        (backend_of(FLASHINFER, decode_uses_dequant_workspace=True), runner(), "FP4"),
        (backend_of(FLASHINFER), runner("MLA"), "MLA"),
        (backend_of(AMX), runner("MLA"), "MLA"),
        (on_fa(fa_impl_ver=4), runner(), "FlashAttention 4"),
        (on_fa(has_local_attention=True), runner(), "local attention"),
        (on_fa(is_prefill_aware_swa=True), runner(), "sliding windows"),
        (on_triton(), runner(sliding_window_size=4096), "sliding-window"),
        (on_triton(), runner(is_encoder_decoder=True), "encoder-decoder"),
        (on_triton(), runner(hisparse_coordinator=object()), "HiSparse"),
        (on_triton(topk=4), runner(), "speculative_eagle_topk"),
        (on_triton(dcp_size=2), runner(), "context parallelism"),
        (on_triton(_translate_kv_loc=print), runner(), "unified KV pool"),
        (on_triton(kv_index_translator=TRANSLATES), runner(), "unified KV pool"),
        (split(backend_of("a.B")), runner(), r"a\.B is not one"),
        (split(on_triton()), runner("MLA"), "--speculative-attention-mode decode"),
        (split(on_triton(topk=2), verifies_with_decode=True), runner(), "speculative_eagle_topk"),
    ],
)
def test_what_was_not_proven_is_refused_with_its_reason_and_left_alone(backend, on, reason):
    """The class stays what it was, so SGLang's own depth 0 runs."""
    own = type(backend)
    with pytest.raises(RefusedError, match=reason):
        adapt(backend, on)
    assert type(backend) is own


def test_a_subclass_of_a_known_backend_is_not_a_known_backend():
    """Whatever it overrides was not read."""
    derived = type("MyTriton", (type(backend_of(TRITON)),), {"__module__": "mine"})()
    with pytest.raises(RefusedError, match=r"mine\.MyTriton"):
        adapt(derived, runner())


def test_a_split_backend_is_described_with_its_decode_side():
    """That is the one which then serves depth 0."""
    assert describe(split(on_triton())) == "HybridAttnBackend(decode=TritonAttnBackend)"
    assert describe(backend_of(FA)) == "FlashAttentionBackend"


# -- what an adapted backend is shown

whenever_planned = pytest.mark.parametrize(
    ("how", "call"),
    [
        ("eager", lambda b, fb: b.init_forward_metadata(fb)),
        ("capture", lambda b, fb: b.init_forward_metadata_out_graph(fb, in_capture=True)),
        ("replay", lambda b, fb: b.init_forward_metadata_out_graph(fb)),
    ],
)
"""How, and the call by which SGLang has a backend plan a batch."""


@pytest.fixture
def adapted():
    backend = backend_of(TRITON)
    adapt(backend, runner())
    return backend


@whenever_planned
def test_metadata_are_made_for_a_decode_batch_that_counts_the_token(adapted, how, call):
    """7 and 130 tokens become 8 and 131, their sum 139; no verify input; the batch itself is untouched."""
    verify = batch()
    call(adapted, verify)
    [(seen_how, view)] = adapted.shown
    assert (seen_how, view.forward_mode, view.spec_info) == (how, DECODE, None)
    assert (view.seq_lens, view.seq_lens_cpu, view.seq_lens_sum) == (Lens(8, 131), Lens(8, 131), 139)
    assert (verify.forward_mode, verify.seq_lens, verify.seq_lens_sum) == (VERIFY, Lens(7, 130), 137)


def test_lengths_that_the_host_does_not_have_stay_absent(adapted):
    """Backends that need no host lengths get none from SGLang; absent is not zero."""
    adapted.init_forward_metadata(batch(seq_lens_cpu=None, seq_lens_sum=None))
    [(_, view)] = adapted.shown
    assert (view.seq_lens, view.seq_lens_cpu, view.seq_lens_sum) == (Lens(8, 131), None, None)


def test_layers_see_the_batch_as_it_is_now_with_the_lengths_of_its_metadata(adapted):
    """The runner may still pad or replace fields between the metadata and the first layer."""
    verify = batch()
    adapted.init_forward_metadata(verify)
    verify.out_cache_loc = "padded slots"
    result = adapted.forward("q", "k", "v", "layer", verify, save_kv_cache=False, sinks=1)
    (_, view) = adapted.shown[-1]
    assert (view.forward_mode, view.out_cache_loc, view.seq_lens) == (DECODE, "padded slots", Lens(8, 131))
    assert view.seq_lens is adapted.shown[0][1].seq_lens
    assert result == ("q", "k", "v", "layer", False, {"sinks": 1})


def test_layers_of_a_batch_whose_metadata_were_made_elsewhere_count_too(adapted):
    """Never the lengths of another batch."""
    adapted.init_forward_metadata(batch(seq_lens=Lens(1, 1)))
    adapted.forward(layer="layer", forward_batch=batch())
    assert adapted.shown[-1][1].seq_lens == Lens(8, 131)


def test_what_is_recorded_into_the_graph_sees_the_decode_view(adapted):
    """The same view as the metadata outside of it."""
    verify = batch()
    adapted.init_forward_metadata_out_graph(verify, in_capture=True)
    adapted.init_forward_metadata_in_graph(verify)
    assert adapted.shown[-1][0] == "in graph"
    assert adapted.shown[-1][1].forward_mode is DECODE


@pytest.mark.parametrize("mode", [DECODE, EXTEND])
def test_every_other_mode_passes_through_as_it_is(adapted, mode):
    """Prefill runs on the same backend object."""
    other = batch(mode)
    adapted.init_forward_metadata(other)
    adapted.init_forward_metadata_out_graph(other)
    adapted.init_forward_metadata_in_graph(other)
    adapted.forward("q", "k", "v", "layer", other)
    assert [view for _, view in adapted.shown] == [other] * 4


def test_more_than_one_token_per_request_is_an_error_not_a_wrong_answer(adapted):
    """Only the state for depth 0 has this backend; anything else there is a broken invariant."""
    wide = batch(spec_info=types.SimpleNamespace(draft_token_num=3))
    with pytest.raises(RuntimeError, match="one token per request, got 3"):
        adapted.init_forward_metadata(wide)


def test_no_mask_is_offered_and_no_draft_position_is_awaited(adapted):
    """Filling a mask of the whole context is a kernel per step that nobody reads."""
    assert adapted.verify_mask is None
    adapted.update_verify_buffers_to_fill_after_draft(None, 8)
    assert "plain decoding" in adapted.glue_target_verify_metadata()


class Event:
    def __init__(self):
        self.recorded = False

    def record(self):
        self.recorded = True


def test_a_replay_leaves_one_event_for_the_scheduler_to_wait_on(adapted):
    """Taken once; a capture leaves none, and so does a backend that was given no events."""
    adapted.init_forward_metadata_out_graph(batch())
    assert adapted.take_shared_reads_done() is None
    adapted.specgov_new_event = Event
    adapted.init_forward_metadata_out_graph(batch(), in_capture=True)
    assert adapted.take_shared_reads_done() is None
    adapted.init_forward_metadata_out_graph(batch())
    assert adapted.take_shared_reads_done().recorded
    assert adapted.take_shared_reads_done() is None
