"""Entry point of SGLang's plugin group `sglang.srt.plugins`: check, then hook; never raise.

SGLang calls `register` in every process.  Here is glue only: what is decided is in `governed_policy`,
what is counted in `recorder`, who may ask in `control_plane`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from sglang_hooks import ack_board, chain_verify, compat, governable, plain_decode
from sglang_hooks.environment import switch
from sglang_hooks.governed_policy import GovernedStepPolicy
from sglang_hooks.guard import Guard
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.schedule import PREFIX
from sglang_hooks.status import CHAIN_VERIFY, PLAIN_DECODE

logger = logging.getLogger("specgov")


def register() -> None:
    """Hook this process; on any mismatch with SGLang hook nothing and say why in the log."""
    if switch("SPECGOV_DISABLE", in_doubt=True):
        logger.warning("specgov: off (SPECGOV_DISABLE=1)")
        return
    try:
        _register()
    except Exception:
        logger.exception("specgov: nothing is hooked in this process")


def _register() -> None:
    serves_http = (
        multiprocessing.parent_process() is None or "sglang.srt.entrypoints.http_server" in sys.modules
    )
    schedules = "sglang.srt.managers.scheduler" in sys.modules
    mismatches = _mismatches(compat.SCHEDULER_TARGETS + compat.HTTP_TARGETS)
    for mismatch in mismatches:
        logger.error("specgov: speculation will not be governed: %s", mismatch)
    if serves_http and not compat.check(
        compat.REGISTRY_TARGETS + compat.HTTP_TARGETS, compat.installed_source
    ):
        _hook_http_server(mismatches[0] if mismatches else None)
    if schedules and not mismatches:
        _hook_scheduler()


def _mismatches(targets: tuple[compat.Target, ...]) -> list[str]:
    version = compat.version_mismatch(compat.sglang_version())
    return [version] if version else compat.check(compat.REGISTRY_TARGETS + targets, compat.installed_source)


# The HTTP process


def _hook_http_server(reason: str | None) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    inherited = ack_board.ENV in os.environ and multiprocessing.parent_process() is not None
    board = ack_board.attach() if inherited else ack_board.create()
    done: list[bool] = []

    def before_serving(server_args: Any, *_args: Any, **_kwargs: Any) -> None:
        if done:
            return
        done.append(True)
        try:
            ack_board.unname()  # every scheduler process has it open by now
            if server_args.tokenizer_worker_num > 1:
                logger.error(
                    "specgov: /speculation is not served with several tokenizer workers: %s",
                    governable.SEVERAL_TOKENIZERS,
                )
                return
            _add_routes(board, reason)
        except Exception:
            logger.exception("specgov: /speculation is not served")

    HookRegistry.register(compat.RUN_HTTP_SERVER, before_serving, HookType.BEFORE)


def _add_routes(board: ack_board.AckBoard | None, reason: str | None) -> None:
    from sglang.srt.entrypoints import http_server
    from sglang.srt.utils.auth import AuthLevel, auth_level

    from sglang_hooks.control_plane import ControlPlane, parse_fallback
    from sglang_hooks.endpoint import add_routes

    plane = ControlPlane(
        None if reason else SglangLink(http_server),
        board,
        sglang_version=compat.sglang_version(),
        fallback=parse_fallback(os.environ.get("SPECGOV_FALLBACK")),
        reason=reason,
    )
    add_routes(
        http_server.app,
        plane,
        mark_read=auth_level(AuthLevel.NORMAL),
        mark_write=auth_level(AuthLevel.ADMIN_OPTIONAL),
    )


class SglangLink:
    """SGLang's own control requests: broadcast to all ranks in order, answered once per DP rank."""

    def __init__(self, http_server: Any) -> None:
        self._http_server = http_server

    async def set(self, flat: Any) -> list[bool]:
        """See `EngineLink.set`."""
        from sglang.srt.managers.io_struct import SetInternalStateReq

        manager = self._http_server.get_global_state().tokenizer_manager
        return list(await manager.set_internal_state(SetInternalStateReq(server_args=dict(flat))))

    async def get(self) -> list[dict[str, Any]]:
        """See `EngineLink.get`."""
        states = await self._http_server.get_global_state().tokenizer_manager.get_internal_state()
        return [state["specgov"] for state in states if "specgov" in state]


# The scheduler processes


def _hook_scheduler() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = SchedulerHooks()
    HookRegistry.register(compat.WORKER_INIT, hooks.after_worker_init, HookType.AFTER)
    HookRegistry.register(compat.SET_INTERNAL_STATE, hooks.around_set_internal_state, HookType.AROUND)
    HookRegistry.register(compat.GET_INTERNAL_STATE, hooks.after_get_internal_state, HookType.AFTER)
    HookRegistry.register(compat.PROCESS_BATCH_RESULT, hooks.around_process_batch_result, HookType.AROUND)
    _install_plain_decode(hooks.guard)
    _install_chain_verify(hooks.guard)


def _install_plain_decode(guard: Guard) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    never_run = compat.plain_decode_mismatch(compat.sglang_version())
    mismatches = [never_run] if never_run else _mismatches(compat.PLAIN_DECODE_TARGETS)
    if mismatches:
        PLAIN_DECODE.reason = mismatches[0]
        logger.error("specgov: depth 0 stays SGLang's own: %s", "; ".join(mismatches))
        return
    plain_decode.install(
        lambda target, hook: HookRegistry.register(target, hook, HookType.AROUND), PLAIN_DECODE, guard
    )


def _install_chain_verify(guard: Guard) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    mismatches = _mismatches(compat.CHAIN_VERIFY_TARGETS)
    if mismatches:
        CHAIN_VERIFY.reason = mismatches[0]
        return
    chain_verify.install(
        lambda target, hook: HookRegistry.register(target, hook, HookType.AROUND), CHAIN_VERIFY, guard
    )


class SchedulerHooks:
    """The functions that SGLang's hook registry calls in one scheduler process."""

    def __init__(self) -> None:
        self.guard = Guard()
        self._control: RankControl | None = None
        self._started_unix_s = time.time()
        self._clock = time.perf_counter

    def after_worker_init(self, _result: object, worker: Any, *_args: Any, **_kwargs: Any) -> None:
        """Put the governed policy where SGLang's adaptive controller looks for its own."""
        try:
            controller = getattr(worker, "adaptive_controller", None)
            if controller is not None:
                initial = worker.speculative_num_steps
                native = controller.params
                built = {*native.candidate_steps, initial}
                policy = GovernedStepPolicy(native, built, initial, self.guard.failed)
                topology = compat.topology_of(worker)
                why_not = governable.why_not_this_shape(topology, worker.server_args)
                self._control = self._make_control(policy, topology, why_not)
                controller.params = policy
        except Exception:
            self.guard.failed("installing the policy")

    def around_set_internal_state(self, original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
        """Take our keys out of the request and apply them; the rest goes on to SGLang."""
        try:
            ours = {key: value for key, value in recv_req.server_args.items() if key.startswith(PREFIX)}
            if ours:
                for key in ours:
                    del recv_req.server_args[key]
                applied = self._control_of(scheduler).apply(ours)
                if not (applied and recv_req.server_args):
                    return _answer(applied)
        except Exception:
            self.guard.failed("applying a schedule")
            return _answer(applied=False)
        return original(scheduler, recv_req)

    def after_get_internal_state(self, result: Any, scheduler: Any, _recv_req: Any) -> None:
        """Add our report to what SGLang reports."""
        try:
            result.internal_state["specgov"] = self._control_of(scheduler).report()
        except Exception:
            self.guard.failed("reporting")

    def around_process_batch_result(
        self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any
    ) -> Any:
        """Record what a batch yielded and how long after the one before it was done."""
        record = None
        try:
            record = self._recording(scheduler, batch, result)
        except Exception:
            self.guard.failed("looking at a result")
        output = original(scheduler, batch, result)
        if record is not None:
            try:
                record()
            except Exception:
                self.guard.failed("recording a result")
        return output

    def _recording(self, scheduler: Any, batch: Any, result: Any) -> Callable[[], None] | None:
        """What to do once the batch has been processed; who had finished can be seen only before."""
        control = self._control
        if control is None or control.policy is None:
            return None
        if batch.forward_mode.is_decode():
            launch = control.result_arriving(result.speculative_num_draft_tokens - 1)
            live = [not (r.finished() or r.is_retracted) for r in batch.reqs]
            behind = _prefill_launched(scheduler)
            return functools.partial(
                self._record, control, batch, result, launch, live, prefill_behind=behind
            )
        if batch.forward_mode.is_extend():
            tokens = int(batch.extend_num_tokens or 0)
            return lambda: control.recorder.prefill(self._clock(), batch.reqs, tokens)
        return None

    def _record(
        self, control: Any, batch: Any, result: Any, launch: Any, live: list[bool], *, prefill_behind: bool
    ) -> None:
        requests, accepted = batch.reqs, result.num_correct_drafts_per_req_cpu
        if not all(live):
            requests = list(itertools.compress(requests, live))
            accepted = list(itertools.compress(accepted, live))
        control.decode_result(
            self._clock(),
            launch,
            batch_size=len(live),
            requests=requests,
            accepted=accepted,
            context_tokens=sum([len(r.origin_input_ids) + len(r.output_ids) for r in requests]),
            prefill_behind=prefill_behind,
        )
        if not prefill_behind and all(r.finished() for r in requests):
            control.recorder.ran_dry()

    def _control_of(self, scheduler: Any) -> RankControl:
        if self._control is None:
            topology = compat.topology_of(scheduler)
            self._control = self._make_control(None, topology, _why_no_policy(scheduler, topology))
        return self._control

    def _make_control(
        self, policy: GovernedStepPolicy | None, topology: Topology, reason: str | None
    ) -> RankControl:
        return RankControl(
            policy,
            PLAIN_DECODE,
            topology=topology,
            started_unix_s=self._started_unix_s,
            reason=reason,
            board=ack_board.attach() if policy else None,
            guard=self.guard,
            chain_verify=CHAIN_VERIFY,
        )


def _prefill_launched(scheduler: Any) -> bool:
    """Whether the overlap scheduler has launched a prefill behind the batch whose result it processes.

    It queues what was launched and not yet processed; without overlap there is no queue.
    """
    launched: Any = getattr(scheduler, "result_queue", ())
    return len(launched) > 0 and bool(launched[-1][0].forward_mode.is_extend())


def _answer(applied: bool) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    return SetInternalStateReqOutput(updated=applied)


def _why_no_policy(scheduler: Any, topology: Topology) -> str:
    """Why there is no policy to govern by."""
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    args = scheduler.server_args
    return governable.why_not_this_shape(topology, args) or governable.why_no_controller(
        scheduler.spec_algorithm, type(scheduler.draft_worker).__name__, args, adaptive_unsupported_reason
    )
