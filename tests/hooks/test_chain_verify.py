"""Which attention backends verify a chain by decoding, and what an adapted one is shown (with stand-ins)."""

import sys
import types

import numpy as np
import pytest

from sglang_hooks import chain_verify, compat
from sglang_hooks.chain_verify import ChainVerifyHooks, install, why_not, why_not_unasked
from sglang_hooks.guard import Guard
from sglang_hooks.plain_decode_attention import check, describe
from sglang_hooks.status import ChainVerifyStatus
from tests.hooks.test_plain_decode_attention import (
    AMX,
    DECODE,
    EXTEND,
    FLASHINFER,
    TRITON,
    VERIFY,
    Mode,
    backend_of,
    host,  # noqa: F401  # a fixture
    runner,
    whenever_planned,
)

DRAFT_EXTEND = Mode("DRAFT_EXTEND_V2")
RELEASE = {TRITON: "0.5.17", AMX: "0.5.23"}


class Tensor(np.ndarray):
    """A host array that answers what is asked of a PyTorch tensor here."""

    device = "cuda:0"

    def unsqueeze(self, axis):
        return np.expand_dims(self, axis)

    def repeat_interleave(self, times):
        return np.repeat(self, times)

    def new_zeros(self, length):
        return tensor([0] * length)

    def clamp(self, **limits):
        return np.clip(self, limits["min"], limits["max"])


def tensor(values):
    return np.array(values, dtype=np.int64).view(Tensor)


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """The one function of PyTorch that is called."""
    fake = types.ModuleType("torch")
    fake.arange = lambda start, stop, dtype, device: np.arange(start, stop, dtype=dtype).view(Tensor)
    monkeypatch.setitem(sys.modules, "torch", fake)


def target(*, topk=1, eagle=True, draft=False, args=(), **changes):
    """The model runner of a target that speculates."""
    found = runner(**changes)
    found.is_draft_worker = draft
    found.spec_algorithm = types.SimpleNamespace(is_eagle=lambda: eagle)
    one_rank = {"enable_dp_attention": False, "moe_a2a_backend": "none", "moe_dense_tp_size": None}
    found.server_args = types.SimpleNamespace(speculative_eagle_topk=topk, **{**one_rank, **dict(args)})
    return found


def triton(width=5, requests=4, **attributes):
    room = {"num_draft_tokens": width, "kv_indptr": tensor([0] * (requests + 1)), "max_context_len": 4096}
    return backend_of(TRITON, **{**room, **attributes})


def batch(mode=VERIFY, width=3, topk=1, **changes):
    """Two requests of 7 and 130 tokens in slots 4 and 9, each with a chain of `width` tokens to verify."""
    found = {
        "forward_mode": mode, "batch_size": 2, "out_cache_loc": "slots",
        "spec_info": types.SimpleNamespace(draft_token_num=width, topk=topk),
        "seq_lens": tensor([7, 130]), "seq_lens_cpu": tensor([7, 130]), "seq_lens_sum": 137,
        "req_pool_indices": tensor([4, 9]), **changes,
    }  # fmt: skip
    return types.SimpleNamespace(**found)


def draft_extend(width=3, front=0, **changes):
    """The draft model takes in `width` tokens of each of two requests."""
    spec = types.SimpleNamespace(num_tokens_per_req=width, num_front_tokens=front)
    return batch(DRAFT_EXTEND, spec_info=spec, **changes)


@pytest.fixture
def status():
    return ChainVerifyStatus()


@pytest.fixture
def hooks(status, monkeypatch):
    monkeypatch.setattr(compat, "sglang_version", lambda: "0.5.17")
    return ChainVerifyHooks(status, Guard(), everywhere=False)


@pytest.fixture
def adapted(hooks):
    return hooks.around_get_attention_backend(lambda _runner: triton(), target())


# -- who is adapted


def test_turned_off_or_not_known_nothing_is_hooked(monkeypatch, status):
    """By the environment variable or for the release, and the status says which."""
    monkeypatch.setenv(chain_verify.ENV, "0")
    registered = {}
    install(registered.__setitem__, status, Guard())
    assert not registered
    assert status.to_json() == {
        "in_force": False, "backend": None, "reason": "turned off by SPECGOV_CHAIN_VERIFY=0",
        "draft_extend": False,
    }  # fmt: skip
    monkeypatch.delenv(chain_verify.ENV)
    monkeypatch.setattr(compat, "sglang_version", lambda: "0.5.22")
    install(registered.__setitem__, status, Guard())
    assert (registered, status.reason) == ({}, "not known on SGLang 0.5.22")
    monkeypatch.setattr(compat, "sglang_version", lambda: "0.5.23")
    install(registered.__setitem__, status, Guard())
    assert set(registered) == {
        compat.GET_ATTENTION_BACKEND, compat.INIT_ATTENTION_BACKENDS, compat.CREATE_DRAFT_EXTEND_BACKEND,
    }  # fmt: skip
    registered.clear()
    monkeypatch.setenv(chain_verify.EXTEND_ENV, "0")
    install(registered.__setitem__, status, Guard())
    assert set(registered) == {compat.GET_ATTENTION_BACKEND, compat.INIT_ATTENTION_BACKENDS}


def test_the_backends_of_built_depths_and_of_the_first_one_are_adapted(hooks, status):
    """And stay instances of their own class, with a row of room for every token of the pool's requests."""
    on = target()
    built = hooks.around_get_attention_backend(lambda _runner: triton(requests=4), on)
    assert type(built).__name__ == "ChainTritonAttnBackend"
    assert built.kv_indptr.shape == (21,)
    on.attn_backend = triton()
    hooks.around_init_attention_backends(lambda _runner: None, on)
    assert type(on.attn_backend).__name__ == "ChainTritonAttnBackend"
    assert status.to_json() == {
        "in_force": True, "backend": "TritonAttnBackend", "reason": None, "draft_extend": False,
    }  # fmt: skip


def test_the_draft_models_backend_of_a_depth_is_adapted_too(hooks, status):
    """Where the target verifies by decoding, and it says nothing of that."""
    status.in_force = True
    factory = types.SimpleNamespace(draft_model_runner=target(draft=True))
    built = hooks.around_create_draft_extend_backend(lambda _factory: triton(requests=4), factory)
    assert type(built).__name__ == "ChainTritonAttnBackend"
    assert built.kv_indptr.shape == (21,)
    assert (status.draft_extend, status.in_force, status.backend) == (True, True, None)


@pytest.mark.parametrize(
    ("backend", "on"),
    [
        (triton(width=1), target(draft=True)),
        (triton(), target(draft=True, arch="MLA")),
        (triton(), target(draft=True, topk=2)),
        (backend_of(FLASHINFER, num_draft_tokens=5), target(draft=True)),
        (None, target(draft=True)),
        (triton(), None),
    ],
    ids=["depth 0", "MLA", "trees", "another backend", "no backend", "a draft worker of another shape"],
)
def test_what_extends_no_chain_that_is_known_keeps_sglangs_own_way(hooks, status, backend, on):
    """With `SPECGOV_CHAIN_VERIFY=1` as well; nothing keeps a server from starting."""
    hooks._everywhere = status.in_force = True
    own = type(backend)
    factory = types.SimpleNamespace(draft_model_runner=on)
    assert type(hooks.around_create_draft_extend_backend(lambda _factory: backend, factory)) is own
    assert not status.draft_extend


def test_where_the_target_verifies_sglangs_own_way_the_draft_extends_so_too(hooks, status):
    factory = types.SimpleNamespace(draft_model_runner=target(draft=True))
    backend = triton()
    own = type(backend)
    assert type(hooks.around_create_draft_extend_backend(lambda _factory: backend, factory)) is own
    assert status == ChainVerifyStatus()


def test_depth_0_is_adapted_as_ever_beside_it(adapted):
    """The target's own backend, whose class is asked for, then is one that verifies chains by decoding."""
    check(adapted, target())
    assert describe(adapted) == "TritonAttnBackend"


@pytest.mark.parametrize(
    ("backend", "on"),
    [
        (triton(width=1), target()),
        (triton(), target(draft=True)),
        (backend_of(TRITON, num_draft_tokens=None), target()),
        (backend_of(TRITON), target()),
    ],
    ids=["depth 0", "the draft model", "no speculation", "a backend that cannot"],
)
def test_what_verifies_no_chain_is_left_alone_in_silence(hooks, status, backend, on):
    """Depth 0 has a way of its own; the reason stays what it was."""
    own = type(backend)
    assert type(hooks.around_get_attention_backend(lambda _runner: backend, on)) is own
    assert status == ChainVerifyStatus()


@pytest.mark.parametrize(
    ("backend", "on", "release", "reason"),
    [
        (triton(), target(), "0.5.23", "TritonAttnBackend on SGLang 0.5.23 is not one"),
        (backend_of(FLASHINFER), target(), "0.5.17", "FlashInferAttnBackend on SGLang 0.5.17 is not one"),
        (triton(), target(eagle=False), "0.5.17", "only EAGLE"),
        (triton(), target(topk=4), "0.5.17", "speculative_eagle_topk 1"),
        (triton(), target(sliding_window_size=4096), "0.5.17", "sliding-window"),
        (triton(dcp_size=2), target(), "0.5.17", "context parallelism"),
        (triton(), target(args={"enable_dp_attention": True}), "0.5.17", "pad them once planned"),
        (triton(), target(args={"moe_a2a_backend": "deepep"}), "0.5.17", "pad them once planned"),
        (triton(), target(args={"moe_dense_tp_size": 1}), "0.5.17", "pad them once planned"),
        (backend_of(AMX), target(arch="MLA"), "0.5.23", "MLA"),
    ],
)
def test_what_was_not_proven_keeps_sglangs_own_verify_and_says_why(backend, on, release, reason):
    assert reason in why_not(backend, on, release)


@pytest.mark.parametrize(("path", "arch"), [(TRITON, "MHA"), (TRITON, "MLA"), (AMX, "MHA")])
def test_what_was_proven_has_nothing_against_it(path, arch):
    assert why_not(backend_of(path), target(arch=arch), RELEASE[path]) is None


@pytest.mark.parametrize(
    ("allowed", "backend", "reason"),
    [
        ("0", triton(), "SPECGOV_ALLOW_UNTESTED=1 and SPECGOV_CHAIN_VERIFY=1 at launch use it all the same"),
        ("1", triton(), None),
        ("1", backend_of(FLASHINFER), "is not one of those known to be right"),
    ],
)
def test_on_a_release_where_it_was_not_run_a_known_backend_can_be_allowed(
    monkeypatch, allowed, backend, reason
):
    """A backend that is known on no release cannot."""
    monkeypatch.setenv("SPECGOV_ALLOW_UNTESTED", allowed)
    said = why_not(backend, target(), "0.5.22")
    assert (said is None) if reason is None else said.endswith(reason)


@pytest.mark.parametrize(
    ("backend", "on", "release", "reason"),
    [
        (triton(), target(), "0.5.17", None),
        (triton(), target(), "0.5.23", "it was not run on SGLang 0.5.23"),
        (triton(), target(arch="MLA"), "0.5.17", "with MLA only its kernel was measured"),
        (backend_of(AMX), target(), "0.5.23", "its speed was not measured on this backend"),
    ],
)
def test_what_was_not_measured_on_a_server_has_to_be_asked_for(backend, on, release, reason):
    """And the reason says what to type."""
    said = why_not_unasked(backend, on, release)
    assert (said is None) if reason is None else (reason in said and "SPECGOV_CHAIN_VERIFY=1" in said)


@pytest.mark.parametrize(("everywhere", "name"), [(True, "Chain"), (False, "")])
def test_asked_for_it_is_on_wherever_it_is_known_how(status, monkeypatch, everywhere, name):
    monkeypatch.setattr(compat, "sglang_version", lambda: "0.5.17")
    hooks = ChainVerifyHooks(status, Guard(), everywhere=everywhere)
    backend = hooks.around_get_attention_backend(lambda _runner: triton(), target(arch="MLA"))
    assert type(backend).__name__ == f"{name}TritonAttnBackend"
    assert status.in_force is everywhere


def test_a_failure_leaves_sglangs_backend_and_is_counted(hooks, status):
    """Nothing that goes wrong here may keep a server from starting."""
    backend, on = triton(), target()
    own = type(backend)
    del on.spec_algorithm
    assert type(hooks.around_get_attention_backend(lambda _runner: backend, on)) is own
    assert hooks._guard.errors == 1
    assert "adapting the backend failed" in status.reason


# -- what an adapted backend is shown


@whenever_planned
def test_a_chain_of_three_is_three_rows_one_token_apart(adapted, how, call):
    """Row by row the request's slot and a length that counts the row's token; the batch is untouched."""
    verify = batch()
    call(adapted, verify)
    [(seen_how, view)] = adapted.shown
    assert (seen_how, view.forward_mode, view.spec_info, view.batch_size) == (how, DECODE, None, 6)
    assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 133]
    assert view.seq_lens_cpu.tolist() == [8, 9, 10, 131, 132, 133]
    assert view.seq_lens_sum == 423
    assert view.req_pool_indices.tolist() == [4, 4, 4, 9, 9, 9]
    assert (verify.forward_mode, verify.batch_size, verify.seq_lens.tolist()) == (VERIFY, 2, [7, 130])


@whenever_planned
def test_a_draft_extends_lengths_count_its_chains_already(adapted, how, call):
    """Its runner hands over buffers with room for more requests, and pads with requests of one token."""
    lengths = [10, 133, 1, 999]
    extend = draft_extend(
        batch_size=3, seq_lens=tensor(lengths), seq_lens_cpu=tensor(lengths), seq_lens_sum=144,
        req_pool_indices=tensor([4, 9, 0, 77]),
    )  # fmt: skip
    call(adapted, extend)
    [(seen_how, view)] = adapted.shown
    assert (seen_how, view.forward_mode, view.spec_info, view.batch_size) == (how, DECODE, None, 9)
    assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 133, 1, 1, 1]
    assert view.seq_lens_cpu.tolist() == [8, 9, 10, 131, 132, 133, 1, 1, 1]
    assert view.req_pool_indices.tolist() == [4, 4, 4, 9, 9, 9, 0, 0, 0]
    assert (extend.forward_mode, extend.batch_size) == (DRAFT_EXTEND, 3)


def test_rows_past_the_contexts_end_read_no_more_than_it_holds(hooks):
    """SGLang's buffer has as many indices for each row; what is drafted past it is never said."""
    backend = hooks.around_get_attention_backend(lambda _runner: triton(max_context_len=132), target())
    backend.init_forward_metadata(batch())
    [(_how, view)] = backend.shown
    assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 132]
    assert view.seq_lens_sum == view.seq_lens.sum()


def test_an_eager_draft_extend_reserves_as_much_as_its_rows_read(adapted):
    lengths = {"seq_lens": tensor([10, 133]), "seq_lens_cpu": tensor([10, 133])}
    adapted.init_forward_metadata(draft_extend(**lengths, seq_lens_sum=143))
    [(_how, view)] = adapted.shown
    assert view.seq_lens_sum == view.seq_lens.sum() == 423


def test_layers_see_the_rows_of_their_metadata_and_the_batch_as_it_is_now(adapted):
    """The graph runner sets the slots to write after the metadata were made."""
    verify = batch()
    adapted.init_forward_metadata_out_graph(verify, in_capture=True)
    verify.out_cache_loc = "slots of this step"
    adapted.init_forward_metadata_in_graph(verify)
    assert adapted.forward("q", "k", "v", "layer", verify, False, sinks=1) == (
        "q", "k", "v", "layer", False, {"sinks": 1},
    )  # fmt: skip
    for _how, view in adapted.shown[1:]:
        assert (view.forward_mode, view.out_cache_loc) == (DECODE, "slots of this step")
        assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 133]


def test_lengths_that_the_host_does_not_have_stay_absent(adapted):
    """In a graph; nothing is read back from the device for them."""
    adapted.init_forward_metadata_out_graph(batch(seq_lens_cpu=None, seq_lens_sum=None))
    [(_how, view)] = adapted.shown
    assert (view.seq_lens_cpu, view.seq_lens_sum) == (None, None)
    assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 133]


def test_layers_may_be_shown_a_copy_of_the_batch(adapted):
    """SGLang's eager runner copies it after its metadata were made."""
    adapted.init_forward_metadata(draft_extend())
    adapted.forward(forward_batch=draft_extend(out_cache_loc="slots of the copy"))
    (_, planned), (_, seen) = adapted.shown
    assert (seen.forward_mode, seen.out_cache_loc) == (DECODE, "slots of the copy")
    assert seen.seq_lens is planned.seq_lens


def test_chains_that_were_padded_since_they_were_planned_are_planned_again_by_sglang(adapted):
    """Metadata of rows must not meet a batch of another shape: the kernel would read past them."""
    adapted.init_forward_metadata(draft_extend())
    padded = draft_extend(batch_size=4)
    adapted.forward(forward_batch=padded)
    adapted.forward(forward_batch=padded)
    assert [(how, view is padded) for how, view in adapted.shown] == [
        ("eager", False), ("eager", True), ("layer", True), ("layer", True),
    ]  # fmt: skip


def test_lengths_on_the_host_without_their_sum_are_stale_and_not_shown(adapted):
    """SGLang's graph runner hands over what it held before; nothing is worked out from that."""
    adapted.init_forward_metadata_out_graph(batch(seq_lens_sum=None))
    [(_how, view)] = adapted.shown
    assert (view.seq_lens_cpu, view.seq_lens_sum) == (None, None)
    assert view.seq_lens.tolist() == [8, 9, 10, 131, 132, 133]


@pytest.mark.parametrize(
    "other",
    [
        batch(EXTEND),
        batch(DECODE),
        batch(width=1),
        batch(width=6),
        batch(topk=2),
        draft_extend(width=6),
        draft_extend(front=1),
        draft_extend(width=-1),
    ],
    ids=[
        "prefill",
        "decode",
        "one token",
        "more than there is room for",
        "a tree",
        "a longer extend",
        "a widened extend",
        "an extend of unknown width",
    ],
)
def test_any_other_batch_goes_sglangs_own_way(adapted, other):
    """Also when the batch before it was a chain."""
    adapted.init_forward_metadata_out_graph(batch())
    del adapted.shown[:]
    adapted.init_forward_metadata(other)
    adapted.forward(forward_batch=other)
    assert [view is other for _how, view in adapted.shown] == [True, True]


def test_an_eager_batch_whose_total_length_the_host_does_not_know_goes_sglangs_own_way(adapted):
    """SGLang would reserve the whole context for every row."""
    verify = batch(seq_lens_cpu=None, seq_lens_sum=None)
    adapted.init_forward_metadata_out_graph(batch())
    adapted.init_forward_metadata(verify)
    adapted.forward(forward_batch=verify)
    assert [view is verify for _how, view in adapted.shown] == [False, True, True]
