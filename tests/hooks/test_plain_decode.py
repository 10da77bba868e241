"""What the hooks of plain decoding leave out, what they never leave out, and what they survive."""

import types

import pytest

from sglang_hooks import compat, plain_decode
from sglang_hooks.guard import Guard
from sglang_hooks.plain_decode import PlainDecodeHooks, install
from sglang_hooks.plain_decode_attention import RefusedError
from sglang_hooks.plain_decode_lengths import KnownLengths
from sglang_hooks.recorder import Recorder
from sglang_hooks.status import PlainDecodeStatus


def make(**attributes):
    return types.SimpleNamespace(**attributes)


class Mode:
    def __init__(self, *, idle=False):
        self._idle = idle

    def is_idle(self):
        return self._idle


class Rows(list):
    """Something with a shape and a `tolist`, as a tensor of one dimension."""

    @property
    def shape(self):
        return (len(self),)

    def tolist(self):
        return list(self)


class Tensors:
    """Stands for `OneNodeTensors`; says what was asked of it."""

    def verify_input(self, batch):
        return ("one node", batch.seq_lens.shape[0])

    def draft_stub(self, rows):
        return {"topk_p": f"p{rows}", "topk_index": f"i{rows}", "hidden_states": f"h{rows}"}

    def draft_input(self, next_tokens):
        return ("draft input", next_tokens)

    def accept_root(self, logits):
        return ("root", logits)


class Zero:
    """Stands for `DepthZero`: a worker at depth 0 in `gear`, whose new requests will decode in `prefill`."""

    def __init__(self, worker, *, gear="cold", prefill="cold"):
        self.worker = worker
        self.in_force = True
        self.several_ranks = False
        self.gears = ("warm", "cold", "frozen")
        self.tensors = Tensors()
        self.lengths = KnownLengths()
        self.published = 0
        self.kept = 0
        self.deferrable = False
        self._gear, self._prefill = gear, prefill

    def gear(self):
        return self._gear

    def prefill_gear(self):
        return self._prefill

    def can_defer(self):
        return self.deferrable

    def defer(self, extend, batch, result):
        self.kept += 1
        if self.kept < 3:
            return False
        extend("the kept tokens", result)
        self.kept = 0
        return True

    def catch_up(self, extend, batch):
        if self.kept:
            extend(batch, "the kept tokens")

    def drop_kept(self, batch):
        self.kept = 0

    def clear_shared_reads(self):
        self.published = 0

    def publish_shared_reads(self):
        self.published += 1

    def count_prefill(self, batch):
        self.lengths.set(batch.req_pool_indices_cpu, batch.seq_lens_cpu)

    def count_step(self, batch):
        self.lengths.advance(batch.req_pool_indices_cpu)

    def count_drafting_step(self, batch):
        self.lengths.forget(batch.req_pool_indices_cpu)

    def set_lengths(self, _future_map, batch):
        batch.seq_lens_cpu = self.lengths.get(batch.req_pool_indices_cpu)
        return batch.seq_lens_cpu is not None


DRAFT_WORKER = make(name="draft")
WORKER = make(_draft_worker=DRAFT_WORKER)


def make_hooks(**zero):
    hooks = PlainDecodeHooks(PlainDecodeStatus(), Guard())
    hooks._zero = Zero(WORKER, **zero)
    return hooks


def make_batch(slots=(1, 2), lengths=(5, 9), *, idle=False, overlap=True, relayed=True):
    spec = make(future_indices=Rows(slots)) if relayed else None
    return make(
        forward_mode=Mode(idle=idle), req_pool_indices_cpu=Rows(slots), seq_lens=Rows(lengths),
        seq_lens_cpu=Rows(lengths), enable_overlap=overlap, spec_info=spec,
    )  # fmt: skip


def sglang(*args, **kwargs):
    """SGLang's own function."""
    return ("SGLang's own", args, kwargs)


# -- turning it on and off


def test_every_hooked_name_is_in_the_table_of_checked_names(monkeypatch):
    """What is not checked before use is not hooked."""
    monkeypatch.delenv(plain_decode.ENV, raising=False)
    hooked = []
    install(lambda path, _hook: hooked.append(path), PlainDecodeStatus(), Guard())
    assert len(hooked) == 8
    assert set(hooked) <= {target.path for target in compat.PLAIN_DECODE_TARGETS}


@pytest.mark.parametrize("value", ["0", "off", "maybe"])
def test_turned_off_by_the_environment_nothing_is_hooked_and_the_status_says_so(monkeypatch, value):
    """SPECGOV_PLAIN_DECODE=0, or what nobody understands; only SGLang's own gear is left."""
    monkeypatch.setenv("SPECGOV_PLAIN_DECODE", value)
    status, hooked = PlainDecodeStatus(), []
    install(lambda path, _hook: hooked.append(path), status, Guard())
    assert hooked == []
    assert status.to_json() == {
        "in_force": False,
        "backend": None,
        "reason": f"turned off by SPECGOV_PLAIN_DECODE={value}",
    }
    assert status.gears == ("warm",)


# -- building the state


class Builds(Zero):
    """A worker whose attention backend can be adapted, or not for a reason."""

    def __init__(self, worker, refuse=None):
        super().__init__(worker)
        self.in_force = False
        self.refuse = refuse
        self.inside = False

    def check_backend(self):
        if self.refuse:
            raise self.refuse
        return "TritonAttnBackend"

    def adapting(self):
        zero = self

        class Adapting:
            def __enter__(self):
                zero.inside = True

            def __exit__(self, *_):
                zero.inside = False

        return Adapting()


def building(refuse=None):
    hooks = PlainDecodeHooks(PlainDecodeStatus(), Guard())
    hooks._zero = Builds(WORKER, refuse)
    return hooks


def test_the_state_for_depth_0_is_built_with_a_decoding_backend():
    """SGLang's own function runs once, inside the adaptation, and its state is taken."""
    hooks = building()
    state = hooks.around_build_state(
        lambda *a, **k: (hooks._zero.inside, a, k), WORKER, 0, 1, cuda_graph_bs=[1]
    )
    assert state == (True, (WORKER, 0, 1), {"cuda_graph_bs": [1]})
    assert hooks._status.to_json() == {"in_force": True, "backend": "TritonAttnBackend", "reason": None}


def test_every_other_depth_is_built_as_ever():
    """No adaptation above depth 0."""
    hooks = building()
    assert hooks.around_build_state(lambda *a, **k: hooks._zero.inside, WORKER, 2, 3) is False
    assert hooks._status.in_force is False


def test_a_refused_backend_leaves_sglangs_state_and_its_reason():
    """Refused before anything is built: SGLang's function runs once."""
    hooks = building(RefusedError("sliding-window attention is not proven with it"))
    calls = []
    hooks.around_build_state(lambda *a: calls.append(a), WORKER, 0)
    assert calls == [(WORKER, 0)]
    assert hooks._status.reason == "sliding-window attention is not proven with it"
    assert hooks._status.in_force is False
    assert hooks._guard.errors == 0


def test_a_failure_while_building_falls_back_to_sglangs_own_state():
    """The server starts, depth 0 is SGLang's, and the status says what failed."""
    hooks = building()

    def build(_worker, _depth):
        if hooks._zero.inside:
            raise MemoryError("capture")
        return "SGLang's state"

    assert hooks.around_build_state(build, WORKER, 0) == "SGLang's state"
    assert hooks._status.reason == "building the state failed: MemoryError('capture')"
    assert hooks._guard.errors == 1


def test_a_worker_that_is_not_as_expected_is_left_alone():
    """Nothing of it is hooked afterwards either: there is no depth 0 to speak of."""
    hooks = PlainDecodeHooks(PlainDecodeStatus(), Guard())
    assert hooks.around_build_state(sglang, make(), 0)[0] == "SGLang's own"
    assert "not built as expected" in hooks._status.reason
    assert hooks.around_trivial_verify_input(sglang, make(), make_batch())[0] == "SGLang's own"


# -- a step


def test_the_verify_input_of_depth_0_is_made_of_constants():
    """Only while attention decodes: SGLang's verify kernel needs the mask that the short one leaves out."""
    hooks = make_hooks()
    assert hooks.around_trivial_verify_input(sglang, WORKER, make_batch()) == ("one node", 2)
    hooks._zero.in_force = False
    assert hooks.around_trivial_verify_input(sglang, WORKER, make_batch())[0] == "SGLang's own"


def test_an_idle_batch_is_sglangs_own_everywhere():
    """It has no rows to speak of."""
    hooks, idle = make_hooks(prefill="frozen"), make_batch((), (), idle=True)
    assert hooks.around_trivial_verify_input(sglang, WORKER, idle)[0] == "SGLang's own"
    assert hooks.around_draft(sglang, DRAFT_WORKER, idle)[0] == "SGLang's own"
    assert hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, idle, make())[0] == "SGLang's own"
    assert hooks.around_draft_extend_for_prefill(sglang, DRAFT_WORKER, idle, 0, 0)[0] == "SGLang's own"


@pytest.mark.parametrize(("gear", "runs"), [("on", True), ("warm", True), ("cold", False), ("frozen", False)])
def test_the_draft_extend_runs_as_the_gear_says(gear, runs):
    """Left out, the step says itself when its shared reads ended."""
    hooks = make_hooks(gear=gear)
    result = make(next_draft_input=make())
    done = hooks.around_draft_extend_for_decode(
        sglang, DRAFT_WORKER, make_batch(), result, kv_loc_plan="plan"
    )
    assert (done is not None) is runs
    assert hooks._zero.published == (not runs)
    if runs:
        assert done == ("SGLang's own", (DRAFT_WORKER, done[1][1], result), {"kv_loc_plan": "plan"})


def test_warm_puts_the_draft_extend_off_and_takes_several_tokens_in_at_once():
    """The third of three steps runs SGLang's function on what was kept; others tell of their last read."""
    hooks = make_hooks(gear="warm")
    hooks._zero.deferrable = True
    calls = []
    for _ in range(3):
        hooks.around_draft_extend_for_decode(
            lambda *args: calls.append(args), DRAFT_WORKER, make_batch(), "the step"
        )
    assert calls == [(DRAFT_WORKER, "the kept tokens", "the step")]
    assert hooks._zero.published == 2


def test_what_was_put_off_is_taken_in_before_a_draft_and_forgotten_at_a_prefill_and_in_cold():
    """A draft starts from the latest token; a slot's next request has none of its predecessor's."""
    hooks = make_hooks(gear="warm")
    hooks._zero.deferrable = True
    worker = make(_draft_extend_for_decode=lambda *args: order.append(args[1]))
    hooks._zero.worker = make(_draft_worker=worker)
    order = []
    hooks.around_draft_extend_for_decode(sglang, worker, make_batch(), make())
    hooks.around_draft(lambda *_: order.append("draft"), worker, make_batch())
    assert order == ["the kept tokens", "draft"]
    assert hooks._zero.kept == 0
    for forget in (
        lambda: hooks.around_draft_extend_for_prefill(sglang, worker, make_batch(), "hidden", "next"),
        lambda: hooks.around_draft_extend_for_decode(sglang, worker, make_batch(), make()),
    ):
        hooks._zero._gear = "warm"
        hooks.around_draft_extend_for_decode(sglang, worker, make_batch(), make())
        assert hooks._zero.kept == 1
        hooks._zero._gear = "cold"
        forget()
        assert hooks._zero.kept == 0


def test_a_draft_extend_that_cannot_be_put_off_runs_in_every_step():
    """So does one whose putting off failed, in that same step."""
    hooks = make_hooks(gear="warm")
    assert (
        hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make())[0] == "SGLang's own"
    )
    hooks._zero.deferrable = True
    hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make())
    assert hooks._zero.kept == 1
    hooks._zero.deferrable = False  # SGLang rules again: what was kept has a hole behind it
    hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make())
    assert hooks._zero.kept == 0
    hooks._zero.deferrable = True
    hooks._zero.defer = None
    assert (
        hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make())[0] == "SGLang's own"
    )
    assert "deferred draft-extend" in hooks._status.reason


def test_another_draft_worker_is_none_of_ours():
    """The process has one that was attached."""
    hooks = make_hooks(gear="cold")
    assert hooks.around_draft_extend_for_decode(sglang, make(), make_batch(), make())[0] == "SGLang's own"


def test_without_the_overlap_scheduler_the_next_draft_gets_a_stub():
    """There is no relay that could keep an earlier one; with it the input stays empty on purpose."""
    for overlap, expected in (
        (False, {"topk_p": "p2", "topk_index": "i2", "hidden_states": "h2"}),
        (True, {}),
    ):
        result = make(next_draft_input=make())
        make_hooks(gear="cold").around_draft_extend_for_decode(
            sglang, DRAFT_WORKER, make_batch(overlap=overlap), result
        )
        assert vars(result.next_draft_input) == expected


@pytest.mark.parametrize(
    ("prefill", "runs"), [("on", True), ("warm", True), ("cold", True), ("frozen", False)]
)
def test_the_draft_prefill_runs_unless_new_requests_will_be_frozen(prefill, runs):
    """By the gear that they will decode in, not by the one of the last step."""
    hooks = make_hooks(gear="frozen", prefill=prefill)
    batch = make_batch()
    batch.reqs = [make(), make()]
    done = hooks.around_draft_extend_for_prefill(sglang, DRAFT_WORKER, batch, "hidden", "next")
    own = ("SGLang's own", (DRAFT_WORKER, batch, "hidden", "next"), {})
    assert done == (own if runs else ("draft input", "next"))
    recorder = Recorder()
    recorder.prefill(1.0, batch.reqs, 20)
    recorder.decode(2.0, 1, "on", batch_size=2, requests=batch.reqs, accepted=[1, 0], context_tokens=9)
    (cell,) = recorder.cells()
    assert cell["accepted" if runs else "accepted_after_cold"] == [1, 1], "what they draft is counted apart"


# -- the relay


class Buffer(dict):
    dtype = "int64"

    def __setitem__(self, rows, values):
        for row, value in zip(rows, values, strict=True):
            dict.__setitem__(self, row, value)


class Tokens(list):
    def to(self, _dtype):
        return self


def make_relay(*, speculative=True, **fields):
    return make(
        spec_algo=make(is_none=lambda: not speculative), output_tokens_buf=Buffer({1: 11, 2: 12, 3: 13}),
        **{"topk_p_buf": "made before"} | fields,
    )  # fmt: skip


def make_payload(topk_p=None):
    return make(bonus_tokens=Tokens([21, 23]), topk_p=topk_p, topk_index=None, hidden_states=None)


def test_a_step_without_drafts_relays_the_next_token_alone():
    """Rows 1 and 3 get their tokens; SGLang's own function would need the drafts."""
    relay = make_relay()
    assert make_hooks().around_stash(sglang, relay, Rows([1, 3]), make_payload()) is None
    assert relay.output_tokens_buf == {1: 21, 2: 12, 3: 23}


def make_fresh_relay(*, since_0_5_19):
    """Nothing was relayed yet: the buffers are None, and in older releases not even named."""
    relay = make_relay(topk_p_buf=None)
    if not since_0_5_19:
        del relay.topk_p_buf
    return relay


@pytest.mark.parametrize("since_0_5_19", [True, False])
def test_the_first_thing_ever_relayed_is_a_whole_stub(since_0_5_19):
    """SGLang makes its buffers from the first payload."""
    payload = make_payload()
    relay = make_fresh_relay(since_0_5_19=since_0_5_19)
    done = make_hooks().around_stash(sglang, relay, Rows([1, 3]), payload)
    assert done[0] == "SGLang's own"
    assert (payload.topk_p, payload.topk_index, payload.hidden_states) == ("p2", "i2", "h2")


@pytest.mark.parametrize(
    ("relay", "payload"),
    [
        (make_relay(), make_payload(topk_p="drafted")),
        (make_relay(speculative=False), make_payload()),
        (make_relay(make_staged_spec_input=print), make_payload()),
    ],
    ids=["drafted", "not speculative", "a release that can itself"],
)
def test_everything_else_is_relayed_by_sglang(relay, payload):
    """Its payload is handed on as it came."""
    before = dict(vars(payload))
    assert make_hooks().around_stash(sglang, relay, Rows([1, 3]), payload)[0] == "SGLang's own"
    assert vars(payload) == before


# -- counted lengths


def launch(hooks, what, batch):
    if what == "prefill":
        hooks.around_draft_extend_for_prefill(sglang, DRAFT_WORKER, batch, "hidden", "next")
    elif what == "step":
        hooks.around_trivial_verify_input(sglang, WORKER, batch)
    else:
        hooks.around_draft(sglang, DRAFT_WORKER, batch, with_topology=False)


def resolved(hooks, slots):
    """Lengths that the hook filled in; None when it asked SGLang."""
    batch = make_batch(slots, (0,) * len(slots))
    return None if hooks.around_resolve_seq_lens(sglang, make(), batch) else batch.seq_lens_cpu


def test_lengths_are_counted_from_the_prefill_through_every_step_without_drafts():
    """5 and 9 tokens, two steps for both and one more for the second."""
    hooks = make_hooks()
    launch(hooks, "prefill", make_batch((1, 2), (5, 9)))
    launch(hooks, "step", make_batch((1, 2)))
    launch(hooks, "step", make_batch((1, 2)))
    launch(hooks, "step", make_batch((2,)))
    assert resolved(hooks, (2, 1)) == [12, 7]


def test_after_a_step_with_drafts_sglang_reads_the_lengths_back():
    """And goes on doing so: they are not known again before a request is prefilled."""
    hooks = make_hooks()
    launch(hooks, "prefill", make_batch((1, 2), (5, 9)))
    launch(hooks, "draft", make_batch((1,)))
    launch(hooks, "step", make_batch((1, 2)))
    assert resolved(hooks, (1, 2)) is None
    assert resolved(hooks, (2,)) == [10]


def test_a_batch_that_does_not_come_through_the_relay_is_not_touched():
    """A prefill has its lengths from the scheduler."""
    hooks = make_hooks()
    launch(hooks, "prefill", make_batch((1,), (5,)))
    batch = make_batch((1,), (77,), relayed=False)
    assert hooks.around_resolve_seq_lens(sglang, make(), batch)[0] == "SGLang's own"
    assert batch.seq_lens_cpu == [77]


# -- survival


def test_a_shortcut_that_fails_is_switched_off_and_sglangs_way_taken_in_the_same_step():
    """Counted once, named in the status, never tried again; no gear goes with it, which peers would have."""
    hooks = make_hooks()
    hooks._status.gears = ("warm", "cold", "frozen")
    tries = []

    def broken(batch):
        tries.append(batch)
        raise ValueError("shape")

    hooks._zero.tensors.verify_input = broken
    for _ in range(3):
        assert hooks.around_trivial_verify_input(sglang, WORKER, make_batch())[0] == "SGLang's own"
    assert len(tries) == 1
    assert hooks._guard.errors == 1
    assert hooks._status.reason == "switched off after a failure: one-node verify input (ValueError('shape'))"
    assert hooks._status.gears == ("warm", "cold", "frozen")


@pytest.mark.parametrize(
    ("broken", "gear", "step"),
    [
        (
            "gear",
            "cold",
            lambda h: h.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make()),
        ),
        (
            "drop_kept",
            "warm",
            lambda h: h.around_draft_extend_for_decode(sglang, DRAFT_WORKER, make_batch(), make()),
        ),
        ("drop_kept", "on", lambda h: h.around_draft(sglang, DRAFT_WORKER, make_batch())),
        (
            "drop_kept",
            "cold",
            lambda h: h.around_draft_extend_for_prefill(sglang, DRAFT_WORKER, make_batch(), "hidden", "next"),
        ),
        (
            "tensors.draft_stub",
            "cold",
            lambda h: h.around_draft_extend_for_decode(
                sglang, DRAFT_WORKER, make_batch(overlap=False), make(next_draft_input=make())
            ),
        ),
    ],
)
def test_whatever_of_ours_fails_in_a_step_sglangs_own_function_runs_in_that_step(broken, gear, step):
    """And in every later one; counted once."""

    def fails(*_args):
        raise ValueError("broken")

    hooks = make_hooks(gear=gear)
    owner, _, name = broken.rpartition(".")
    setattr(getattr(hooks._zero, owner) if owner else hooks._zero, name, fails)
    for _ in range(2):
        assert step(hooks)[0] == "SGLang's own"
    assert hooks._guard.errors == 1
    assert "switched off after a failure" in hooks._status.reason


def test_a_relay_that_fails_ends_the_steps_that_need_it():
    """SGLang relays this one as it is; from then on every step at depth 0 has its draft-extend."""
    hooks = make_hooks(gear="cold")
    hooks._zero.tensors.draft_stub = None
    relay = make_fresh_relay(since_0_5_19=True)
    assert hooks.around_stash(sglang, relay, Rows([1]), make_payload())[0] == "SGLang's own"
    assert hooks._guard.errors == 1
    batch = make_batch()
    assert hooks.around_draft_extend_for_decode(sglang, DRAFT_WORKER, batch, make())[0] == "SGLang's own"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_fault_of_one_ranks_device_is_not_survived_among_several_whatever_it_is_called(error):
    """PyTorch has a class for one of them; the others are told apart by their words."""

    def fails(_batch):
        raise error

    hooks = make_hooks()
    hooks._zero.tensors.verify_input, hooks._zero.several_ranks = fails, True
    with pytest.raises(type(error)):
        hooks.around_trivial_verify_input(sglang, WORKER, make_batch())


def test_memory_that_ends_while_one_of_several_ranks_captures_ends_the_server():
    """The others are in the middle of that capture's collectives, and would wait in them."""
    hooks, built = building(), []
    hooks._zero.several_ranks = True

    def full(*_args):
        built.append(1)
        raise MemoryError

    with pytest.raises(MemoryError):
        hooks.around_build_state(full, WORKER, 0)
    assert built == [1]


def test_memory_that_ends_on_one_of_several_ranks_is_not_survived():
    """The others would go on with other collectives, and hang; alone, SGLang's own way is taken."""

    class OutOfMemoryError(RuntimeError):
        pass

    def full(batch):
        raise OutOfMemoryError

    hooks = make_hooks()
    hooks._zero.tensors.verify_input = full
    hooks._zero.several_ranks = True
    with pytest.raises(OutOfMemoryError):
        hooks.around_trivial_verify_input(sglang, WORKER, make_batch())
    hooks._zero.several_ranks = False
    assert hooks.around_trivial_verify_input(sglang, WORKER, make_batch())[0] == "SGLang's own"


def test_a_count_that_fails_once_is_never_believed_again():
    """A wrong length is worse than a slow one."""
    hooks = make_hooks()
    launch(hooks, "prefill", make_batch((1,), (5,)))
    launch(hooks, "step", make(forward_mode=Mode(), seq_lens=Rows([5]), spec_info=None))
    assert resolved(hooks, (1,)) is None


def test_sglangs_own_errors_are_not_swallowed():
    """Only ours are survived."""

    def fails(*_args, **_kwargs):
        raise OSError("SGLang's own")

    hooks = make_hooks(gear="warm")
    hooks._off |= {"one-node verify input", "counted lengths"}
    with pytest.raises(OSError, match="SGLang's own"):
        hooks.around_trivial_verify_input(fails, WORKER, make_batch())
    with pytest.raises(OSError, match="SGLang's own"):
        hooks.around_draft_extend_for_decode(fails, DRAFT_WORKER, make_batch(), make())
    with pytest.raises(OSError, match="SGLang's own"):
        hooks.around_resolve_seq_lens(fails, make(), make_batch())
    assert hooks._guard.errors == 0
