"""The glue, with a stand-in for SGLang: what it takes out, what it passes on, what it survives."""

import sys
import types

import pytest

from sglang_hooks import ack_board, plugin
from sglang_hooks.plugin import SchedulerHooks
from sglang_hooks.schedule import Command, Row, Schedule
from tests.hooks.fakes import FakeNative


class Reply:
    def __init__(self, updated):
        self.updated = updated


class Mode:
    def __init__(self, name):
        self.name = name

    def is_decode(self):
        return self.name == "decode"

    def is_extend(self):
        return self.name == "extend"


class Req:
    def __init__(self, *, finished=False):
        self.is_retracted = False
        self.origin_input_ids = [1, 2, 3]
        self.output_ids = [4]
        self._finished = finished

    def finished(self):
        return self._finished


def make(**attributes):
    return types.SimpleNamespace(**attributes)


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """The modules of SGLang that the hooks import while they run."""
    monkeypatch.delenv(ack_board.ENV, raising=False)
    io_struct = types.ModuleType("sglang.srt.managers.io_struct")
    io_struct.SetInternalStateReqOutput = Reply
    params = types.ModuleType("sglang.srt.speculative.adaptive_spec_params")
    params.adaptive_unsupported_reason = lambda _args: None
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.speculative"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for module in (io_struct, params):
        monkeypatch.setitem(sys.modules, module.__name__, module)


PARALLEL = {"dp_rank": None, "tp_rank": 0, "dp_size": 1, "tp_size": 1, "pp_size": 1}


def make_worker(*, nnodes=1, disaggregation_mode="null", **parallel):
    controller = make(params=FakeNative(2))
    return make(
        adaptive_controller=controller,
        speculative_num_steps=2,
        ps=make(**{**PARALLEL, **parallel}),
        server_args=make(nnodes=nnodes, disaggregation_mode=disaggregation_mode),
    )


@pytest.fixture
def hooks():
    """Hooks of a scheduler process whose worker has been made."""
    hooks = SchedulerHooks()
    hooks.after_worker_init(None, make_worker())
    return hooks


def set_state(hooks, server_args):
    """Send `server_args`; what SGLang's own handler got, and the reply."""
    passed_on = []

    def original(_scheduler, recv_req):
        passed_on.append(dict(recv_req.server_args))
        return Reply(updated=True)

    reply = hooks.around_set_internal_state(original, make(), make(server_args=server_args))
    return passed_on, reply.updated


OURS = Command(1, 1, Schedule([Row(1, 3)])).to_wire()


def test_our_keys_do_not_reach_sglang(hooks):
    """Its own handler refuses keys that it does not know."""
    assert set_state(hooks, dict(OURS)) == ([], True)
    assert hooks._control.policy.governed


def test_other_keys_go_on_to_sglang(hooks):
    """With ours and without; a refusal of ours refuses the whole request."""
    assert set_state(hooks, {"pp_max_micro_batch_size": 8}) == ([{"pp_max_micro_batch_size": 8}], True)
    assert set_state(hooks, {**OURS, "x": 1}) == ([{"x": 1}], True)
    assert set_state(hooks, {**OURS, "specgov.sequence": 43, "x": 1}) == ([], False)


def test_our_exception_while_applying_is_counted_and_answered(hooks, caplog):
    """The scheduler goes on; the HTTP process learns that it was not applied."""
    hooks._control.apply = None
    assert set_state(hooks, dict(OURS)) == ([], False)
    assert hooks.guard.errors == 1
    assert "applying a schedule failed" in caplog.text


def process(hooks, batch, result, *, finish=(), scheduler=None):
    def original(_scheduler, _batch, result):
        result.num_correct_drafts_per_req_cpu = [1] * len(batch.reqs)
        for i in finish:
            batch.reqs[i]._finished = True
        return "output"

    return hooks.around_process_batch_result(original, scheduler or make(), batch, result)


def decode_batch(*reqs):
    return make(forward_mode=Mode("decode"), reqs=list(reqs))


def cells(hooks):
    return hooks._control.report()["telemetry"]["cells"]


def test_a_decode_result_is_recorded_for_requests_that_had_not_finished_before_it(hooks):
    """One of three had finished a step ago; one finishes in this one and still counts."""
    hooks._control.policy.get_steps_for_batch(3)
    batch = decode_batch(Req(), Req(finished=True), Req())
    assert process(hooks, batch, make(speculative_num_draft_tokens=3), finish=[2]) == "output"
    (cell,) = cells(hooks)
    assert (cell["batch_bucket"], cell["depth"], cell["request_steps"], cell["tokens"]) == (3, 2, 2, 4)


@pytest.mark.parametrize(("behind", "timed"), [("extend", 0), ("decode", 1)])
def test_a_step_with_a_prefill_launched_behind_it_is_not_timed(hooks, behind, timed):
    """The overlap scheduler keeps what it has launched in a queue; the host was busy launching it."""
    hooks._clock = iter([1.0, 1.1]).__next__
    scheduler = make(result_queue=[(make(forward_mode=Mode(behind)), make())])
    for queue in (make(), scheduler):
        hooks._control.policy.get_steps_for_batch(1)
        process(hooks, decode_batch(Req()), make(speculative_num_draft_tokens=3), scheduler=queue)
    (cell,) = cells(hooks)
    assert (cell["steps"], cell["timed_steps"], cell["skipped_prefill"]) == (2, timed, 1 - timed)


def test_a_prefill_is_counted(hooks):
    """It makes the decode interval around it unclean, which holds its requests and their computed tokens."""
    for batch in (
        decode_batch(Req()),
        make(forward_mode=Mode("extend"), reqs=[Req(), Req()], extend_num_tokens=300),
        decode_batch(Req()),
    ):
        hooks._control.policy.get_steps_for_batch(1)
        process(hooks, batch, make(speculative_num_draft_tokens=3))
    assert hooks._control.report()["telemetry"]["prefill_batches"] == 1
    (cell,) = cells(hooks)
    assert (cell["prefill_spells"], cell["prefilled_requests"], cell["prefilled_tokens"]) == (1, 2, 300)


@pytest.mark.parametrize(("behind", "idle", "prefills"), [("extend", 1, 1), ("decode", 2, 0)])
def test_a_batch_that_ends_is_followed_by_idleness_unless_a_prefill_was_launched_behind_it(
    hooks, behind, idle, prefills
):
    """The first result has nothing before it; what is prefilled after a pause holds no step up."""
    queues = [make(), make(result_queue=[(make(forward_mode=Mode(behind)), make())]), make()]
    prefill = make(forward_mode=Mode("extend"), reqs=[Req()], extend_num_tokens=300)
    for scheduler, batch, finish in zip(
        queues, (decode_batch(Req()), decode_batch(Req()), prefill), ([], [0], []), strict=True
    ):
        hooks._control.policy.get_steps_for_batch(1)
        process(hooks, batch, make(speculative_num_draft_tokens=3), finish=finish, scheduler=scheduler)
    hooks._control.policy.get_steps_for_batch(1)
    process(hooks, decode_batch(Req()), make(speculative_num_draft_tokens=3))
    (cell,) = cells(hooks)
    assert (cell["skipped_idle"], cell["prefill_spells"]) == (idle, prefills)


@pytest.mark.parametrize("width", [None, "x"])
def test_a_result_that_looks_otherwise_than_expected_passes_unharmed(hooks, width):
    """SGLang's own processing runs and its answer comes back; ours is counted and logged once."""
    for _ in range(3):
        assert process(hooks, decode_batch(Req()), make(speculative_num_draft_tokens=width)) == "output"
    assert hooks.guard.errors == 3
    assert cells(hooks) == []


def test_sglangs_own_exception_is_not_swallowed(hooks):
    """It is SGLang's to handle."""

    def original(*_):
        raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs"):
        hooks.around_process_batch_result(
            original, make(), decode_batch(Req()), make(speculative_num_draft_tokens=3)
        )
    with pytest.raises(RuntimeError, match="theirs"):
        hooks.around_set_internal_state(original, make(), make(server_args={"x": 1}))
    assert hooks.guard.errors == 0


def test_a_worker_of_another_shape_is_left_alone(caplog):
    """The failure is counted, SGLang's own policy stays."""
    worker = make_worker()
    del worker.speculative_num_steps
    native = worker.adaptive_controller.params
    hooks = SchedulerHooks()
    hooks.after_worker_init(None, worker)
    assert worker.adaptive_controller.params is native
    assert hooks.guard.errors == 1


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"nnodes": 2}, "SPECGOV_ALLOW_MULTI_NODE=1"),
        ({"disaggregation_mode": "prefill"}, "govern its decode servers"),
    ],
)
def test_shapes_that_could_hang_are_not_governed(shape, reason):
    """The reason is reported, and commands are refused."""
    hooks = SchedulerHooks()
    hooks.after_worker_init(None, make_worker(**shape))
    assert reason in hooks._control.report()["reason"]
    assert set_state(hooks, dict(OURS)) == ([], False)


@pytest.mark.parametrize(
    ("no_speculation", "reason"),
    [(True, "without --speculative-algorithm"), (False, "EAGLE3 is served by SimpleNamespace")],
)
def test_why_there_is_nothing_to_govern_is_reported(no_speculation, reason):
    """Speculation off and speculation without an adaptive controller are told apart."""
    hooks = SchedulerHooks()
    scheduler = make(
        ps=make(**PARALLEL),
        server_args=make(nnodes=1),
        spec_algorithm=make(is_none=lambda: no_speculation, name="EAGLE3"),
        draft_worker=make(),
    )
    result = make(internal_state={})
    hooks.after_get_internal_state(result, scheduler, None)
    assert not result.internal_state["specgov"]["controllable"]
    assert reason in result.internal_state["specgov"]["reason"]


@pytest.mark.parametrize(("workers", "served"), [(1, True), (4, False)])
def test_several_tokenizer_workers_are_not_served_and_the_log_says_why(monkeypatch, caplog, workers, served):
    """Their HTTP processes load no plugin, so this one would serve nobody."""
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registered, routes = {}, []
    registry.HookRegistry = make(register=lambda target, hook, _type: registered.update({target: hook}))
    registry.HookType = make(BEFORE="before")
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins", types.ModuleType("sglang.srt.plugins"))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setattr(ack_board, "create", lambda: None)
    monkeypatch.setattr(ack_board, "unname", lambda: None)
    monkeypatch.setattr(plugin, "_add_routes", lambda *given: routes.append(given))
    plugin._hook_http_server(None)
    (before_serving,) = registered.values()
    before_serving(make(tokenizer_worker_num=workers), "tokenizer manager")
    assert bool(routes) is served
    assert ("several tokenizer workers" in caplog.text) is not served


def test_the_switch_off_hooks_nothing(monkeypatch, caplog):
    """SPECGOV_DISABLE=1 is looked at before anything else."""
    monkeypatch.setenv("SPECGOV_DISABLE", "1")
    monkeypatch.setattr(plugin, "_register", None)
    plugin.register()
    assert "SPECGOV_DISABLE" in caplog.text


def test_register_never_raises(monkeypatch, caplog):
    """SGLang would log it and go on; so do we, and say what it means."""

    def fail():
        raise RuntimeError("broken")

    monkeypatch.setattr(plugin, "_register", fail)
    plugin.register()
    assert "nothing is hooked in this process" in caplog.text


def test_a_release_that_was_not_proven_is_not_hooked_but_says_so(monkeypatch, caplog):
    """The scheduler is left alone; the endpoint is there with the reason and the way round."""
    reasons = []
    monkeypatch.setattr(plugin.compat, "sglang_version", lambda: "9.9.9")
    monkeypatch.setattr(plugin.compat, "check", lambda _targets, _read: [])
    monkeypatch.setattr(plugin, "_hook_http_server", reasons.append)
    monkeypatch.setattr(plugin, "_hook_scheduler", None)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", types.ModuleType("scheduler"))
    plugin.register()
    assert "SGLang 9.9.9 is not among the releases" in reasons[0]
    assert "SGLang 9.9.9 is not among the releases" in caplog.text
    assert "nothing is hooked" not in caplog.text


def test_an_http_server_of_another_shape_is_not_hooked(monkeypatch):
    """Nor the scheduler, whose plans nobody could send then: 404, and the log says why."""
    monkeypatch.setattr(plugin.compat, "sglang_version", lambda: plugin.compat.SUPPORTED[0])
    monkeypatch.setattr(plugin.compat, "check", lambda targets, _read: [f"{targets[-1].path} is missing"])
    monkeypatch.setattr(plugin, "_hook_http_server", None)
    monkeypatch.setattr(plugin, "_hook_scheduler", None)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", types.ModuleType("scheduler"))
    plugin.register()
