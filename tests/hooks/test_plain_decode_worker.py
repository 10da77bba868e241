"""What depth 0 reads from and sets on a worker: gears, the adapted backend, the events of both releases."""

import types

import pytest

from sglang_hooks import plain_decode_attention as attention
from sglang_hooks.plain_decode_deferred import DeferredExtend
from sglang_hooks.plain_decode_worker import DepthZero


def make(**attributes):
    return types.SimpleNamespace(**attributes)


def make_zero(*, depth=0, policy=None, runner=None, draft=None, states=(0, 1, 4)):
    """A `DepthZero` of a worker that is described rather than built."""
    zero = object.__new__(DepthZero)
    zero.worker = make(
        speculative_num_steps=depth,
        device="cpu",
        adaptive_controller=make(params=policy or make(), _states=dict.fromkeys(states)),
        _target_worker=make(model_runner=runner or make()),
        _draft_worker=make(draft_runner=draft or make(), plan_stream=None),
    )
    zero.gears = ("warm", "cold", "frozen")
    zero.lengths = None
    zero._deferred = None
    return zero


def test_the_gear_is_the_policys_at_depth_0_and_on_above_it():
    """A policy that knows no gears, SGLang's own, keeps the draft in step."""
    assert make_zero(policy=make(gear="cold")).gear() == "cold"
    assert make_zero(policy=make(gear="cold"), depth=2).gear() == "on"
    assert make_zero().gear() == "warm"


def test_a_gear_that_this_worker_cannot_run_becomes_warm():
    """Cold with rejection sampling would draft without a distribution."""
    zero = make_zero(policy=make(gear="cold"))
    zero.gears = ("warm",)
    assert zero.gear() == "warm"


def test_new_requests_get_the_gear_of_the_batch_that_they_will_be_in():
    """Of 8 slots 5 are taken, these requests included: the row for 5."""
    asked = []
    policy = make(gear="frozen", gear_at=lambda size: asked.append(size) or "on")
    runner = make(req_to_token_pool=make(size=8, available_size=lambda: 3))
    assert make_zero(policy=policy, runner=runner).prefill_gear() == "on"
    assert asked == [5]
    assert make_zero(runner=runner).prefill_gear() == "warm"


def test_the_backend_is_adapted_while_the_state_is_built_and_the_runner_is_left_as_it_was(monkeypatch):
    """SGLang's method is its own again afterwards, also when building fails."""

    class Runner:
        def _get_attention_backend(self, init_new_workspace):
            return make(init_new_workspace=init_new_workspace)

    monkeypatch.setattr(attention, "adapt", lambda backend, _runner: setattr(backend, "adapted", True))
    runner = Runner()
    zero = make_zero(runner=runner)
    with zero.adapting():
        backend = runner._get_attention_backend(init_new_workspace=True)
    assert (backend.adapted, backend.init_new_workspace, backend.specgov_new_event) == (True, True, None)
    with pytest.raises(MemoryError), zero.adapting():
        raise MemoryError
    assert not hasattr(runner._get_attention_backend(init_new_workspace=False), "adapted")


def test_the_verifys_event_stands_for_the_step_on_newer_releases():
    """The target's runner published it; the scheduler asks the draft's."""
    runner, draft = make(shared_read_done_event="old", attn_backend=make()), make(shared_read_done_event="x")
    zero = make_zero(runner=runner, draft=draft)
    zero.clear_shared_reads()
    assert runner.shared_read_done_event is None
    zero.publish_shared_reads()
    assert draft.shared_read_done_event is None
    runner.shared_read_done_event = "this step's"
    zero.publish_shared_reads()
    assert draft.shared_read_done_event == "this step's"


def test_the_backends_event_stands_for_the_step_on_0_5_17():
    """Its verify graph publishes none, so the adapted backend records one; an earlier one is dropped."""
    events = ["old"]
    backend = make(take_shared_reads_done=lambda: events.pop() if events else None)
    draft = make(war_fastpath_read_done_event=None)
    zero = make_zero(runner=make(attn_backend=backend), draft=draft)
    zero.clear_shared_reads()
    assert events == []
    events.append("this step's")
    zero.publish_shared_reads()
    assert draft.war_fastpath_read_done_event == "this step's"


def test_a_backend_that_was_not_adapted_has_no_event_to_give():
    """The scheduler then waits for the whole forward, as for any step without one."""
    draft = make(war_fastpath_read_done_event="older")
    make_zero(runner=make(attn_backend=make()), draft=draft).publish_shared_reads()
    assert draft.war_fastpath_read_done_event is None


@pytest.mark.parametrize(
    ("change", "can"),
    [
        ({}, True),
        ({"states": (0,)}, False),
        ({"plan_stream": object()}, False),
        ({"gears": ("warm",)}, False),
        ({"governed": False}, False),
    ],
    ids=["as usual", "no deeper state", "a stream of its own", "a draft with state", "SGLang rules"],
)
def test_a_draft_extend_is_put_off_only_where_it_can_be_caught_up(change, can):
    """It takes the deepest state's draft-extend, on the stream of the step, and peers that do the same."""
    policy = make(governed=change.get("governed", True))
    zero = make_zero(states=change.get("states", (0, 1, 4)), policy=policy)
    zero.worker._draft_worker.plan_stream = change.get("plan_stream")
    zero.gears = change.get("gears", zero.gears)
    assert zero.can_defer() is can


class Slots(list):
    def tolist(self):
        return list(self)


def test_catching_up_runs_only_when_something_is_kept_and_takes_the_event_back():
    """A step that goes on reading must not be covered by an event of its beginning."""
    draft = make(war_fastpath_read_done_event=None)
    zero = make_zero(draft=draft)
    zero._deferred = DeferredExtend(zero.worker, 5, 8)
    taken = []

    def take_in(extend, batch, slots, draft_input, lengths):
        draft.war_fastpath_read_done_event = "of the draft-extend"
        taken.append((slots, draft_input, lengths))

    zero._deferred.take_in = take_in
    batch = make(req_pool_indices_cpu=Slots([3, 4]), spec_info="draft input", seq_lens="lengths")
    zero.catch_up(None, batch)
    assert taken == []
    zero._deferred.counts.add([3])
    zero.catch_up(None, batch)
    assert taken == [([3, 4], "draft input", "lengths")]
    assert draft.war_fastpath_read_done_event is None


def test_the_deepest_states_draft_extend_is_in_place_only_while_it_runs():
    """Its width, graph and attention backend, and the draft's own afterwards, whatever happens."""
    zero = make_zero()
    draft = zero.worker._draft_worker
    draft.speculative_num_draft_tokens, draft.draft_extend_attn_backend = 1, "own backend"
    draft.cuda_graph_runner_for_draft_extend, draft.draft_runner.attn_backend = "own graph", "own backend"
    deepest = make(
        speculative_num_draft_tokens=5,
        draft_extend_attn_backend="deep backend",
        cuda_graph_runner_for_draft_extend="deep graph",
    )
    zero.worker.adaptive_controller._states[4] = deepest

    def seen():
        return (
            draft.speculative_num_draft_tokens, draft.draft_extend_attn_backend,
            draft.cuda_graph_runner_for_draft_extend, draft.draft_runner.attn_backend,
        )  # fmt: skip

    def run():
        with DeferredExtend(zero.worker, 5, 8)._deepest():
            assert seen() == (5, "deep backend", "deep graph", "deep backend")
            raise MemoryError

    with pytest.raises(MemoryError):
        run()
    assert seen() == (1, "own backend", "own graph", "own backend")
