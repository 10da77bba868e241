"""Every name of SGLang that the hook touches, with the parameters that it must have; checked before use.

Read from source by `ast`, so that a check imports nothing and needs no PyTorch: the same function serves
the running server and a released wheel.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_hooks.environment import switch
from sglang_hooks.rank_control import Topology
from sglang_hooks.releases import PLAIN_DECODE, SUPPORTED

_SRT = "sglang.srt."
SET_INTERNAL_STATE = _SRT + "managers.scheduler.Scheduler.set_internal_state"
GET_INTERNAL_STATE = _SRT + "managers.scheduler.Scheduler.get_internal_state"
PROCESS_BATCH_RESULT = _SRT + "managers.scheduler.Scheduler.process_batch_result"
WORKER_INIT = _SRT + "speculative.eagle_worker_v2.EAGLEWorkerV2.__init__"
_EAGLE_V2 = _SRT + "speculative.eagle_worker_v2."
BUILD_STATE = _EAGLE_V2 + "EAGLEWorkerV2.build_adaptive_runtime_state"
TRIVIAL_VERIFY_INPUT = _EAGLE_V2 + "EAGLEWorkerV2._build_trivial_verify_input"
DRAFT = _EAGLE_V2 + "EagleDraftWorker.draft"
DRAFT_EXTEND_FOR_DECODE = _EAGLE_V2 + "EagleDraftWorker._draft_extend_for_decode"
DRAFT_EXTEND_FOR_PREFILL = _EAGLE_V2 + "EagleDraftWorker._draft_extend_for_prefill"
_RUNNER = _SRT + "model_executor.model_runner.ModelRunner."
GET_ATTENTION_BACKEND = _RUNNER + "_get_attention_backend"
INIT_ATTENTION_BACKENDS = _RUNNER + "init_attention_backends"
CREATE_DRAFT_EXTEND_BACKEND = _SRT + "speculative.draft_utils.DraftBackendFactory.create_draft_extend_backend"
EAGLE_SAMPLE = _SRT + "speculative.eagle_utils.eagle_sample"
STASH = _SRT + "managers.overlap_utils.FutureMap.stash"
RESOLVE_SEQ_LENS = _SRT + "managers.overlap_utils.FutureMap.resolve_seq_lens_cpu"
ADAPTIVE_REFUSAL = _SRT + "speculative.adaptive_spec_params.adaptive_unsupported_reason"
RUN_HTTP_SERVER = _SRT + "entrypoints.http_server._setup_and_run_http_server"


@dataclass(frozen=True)
class Target:
    """A function (its leading parameters are given) or a class (its attributes are)."""

    path: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


SCHEDULER_TARGETS = (
    Target(SET_INTERNAL_STATE, ("self", "recv_req")),
    Target(GET_INTERNAL_STATE, ("self", "recv_req")),
    Target(PROCESS_BATCH_RESULT, ("self", "batch", "result")),
    Target(WORKER_INIT, ("self", "server_args")),
    Target(
        _SRT + "speculative.adaptive_runtime_state.AdaptiveController",
        attributes=("params", "worker", "activate_step_by_batch", "on_verify_complete", "init_states"),
    ),
    Target(_SRT + "speculative.adaptive_spec_params.AdaptiveSpeculativeParams.candidate_steps", ("self",)),
    Target(
        _SRT + "speculative.adaptive_spec_params.AdaptiveSpeculativeParams.get_steps_for_batch",
        ("self", "batch_size"),
    ),
    Target(
        _SRT + "speculative.adaptive_spec_params.AdaptiveSpeculativeParams.on_verify_complete",
        ("self", "num_correct_drafts_per_req", "batch_size"),
    ),
    Target(
        _SRT + "speculative.adaptive_spec_params.AdaptiveSpeculativeParams.set_cuda_graph_bs",
        ("self", "cuda_graph_bs"),
    ),
    Target(
        _SRT + "speculative.adaptive_spec_params.AdaptiveSpeculativeParams.cuda_graph_bs_for_step",
        ("self", "step"),
    ),
    Target(_SRT + "speculative.eagle_worker_v2.EAGLEWorkerV2.activate_step_by_batch", ("self", "batch_size")),
    Target(
        _SRT + "speculative.eagle_worker_v2.EAGLEWorkerV2.on_verify_complete_cpu",
        ("self", "num_correct_drafts_per_req", "batch_size"),
    ),
    Target(
        _SRT + "managers.utils.GenerationBatchResult",
        attributes=("num_correct_drafts_per_req_cpu", "speculative_num_draft_tokens"),
    ),
    Target(
        _SRT + "managers.schedule_batch.ScheduleBatch",
        attributes=("reqs", "forward_mode", "extend_num_tokens"),
    ),
    Target(_SRT + "managers.schedule_batch.Req.finished", ("self",)),
    Target(
        _SRT + "managers.schedule_batch.Req",
        attributes=("origin_input_ids", "output_ids", "is_retracted"),
    ),
    Target(_SRT + "runtime_context.get_parallel"),
    Target(ADAPTIVE_REFUSAL, ("server_args",)),
    Target(_SRT + "managers.io_struct.SetInternalStateReq", attributes=("server_args",)),
    Target(_SRT + "managers.io_struct.SetInternalStateReqOutput", attributes=("updated",)),
    Target(_SRT + "managers.io_struct.GetInternalStateReqOutput", attributes=("internal_state",)),
)

_VIEWED = (
    "init_forward_metadata",
    "init_forward_metadata_out_graph",
    "init_forward_metadata_in_graph",
    "forward",
)
"""Methods of an attention backend that are shown a DECODE view of a verify."""

PLAIN_DECODE_TARGETS = (
    Target(BUILD_STATE, ("self", "speculative_num_steps", "speculative_num_draft_tokens", "cuda_graph_bs")),
    Target(TRIVIAL_VERIFY_INPUT, ("self", "batch")),
    Target(DRAFT, ("self", "batch")),
    Target(DRAFT_EXTEND_FOR_DECODE, ("self", "batch", "batch_result")),
    Target(DRAFT_EXTEND_FOR_PREFILL, ("self", "batch", "target_hidden_states", "next_token_ids")),
    Target(EAGLE_SAMPLE, ("verify_input", "batch", "logits_output", "grammar_mask")),
    Target(STASH, ("self", "future_indices", "payload")),
    Target(RESOLVE_SEQ_LENS, ("self", "batch")),
    Target(
        _EAGLE_V2 + "EAGLEWorkerV2", attributes=("_target_worker", "_draft_worker", "adaptive_controller")
    ),
    Target(
        _SRT + "managers.overlap_utils.FutureMap",
        attributes=("needs_cpu_seq_lens", "new_seq_lens_buf", "output_tokens_buf", "topk_p_buf"),
    ),
    Target(
        _SRT + "managers.schedule_batch.ScheduleBatch",
        attributes=("req_pool_indices_cpu", "seq_lens_cpu", "seq_lens_sum", "enable_overlap"),
    ),
    Target(GET_ATTENTION_BACKEND, ("self", "init_new_workspace")),
    Target(_SRT + "speculative.eagle_utils.get_draft_recurrent_hidden_state_spec", ("model_runner",)),
    Target(
        _SRT + "layers.attention.base_attn_backend.AttentionBackend",
        attributes=(*_VIEWED, "verify_mask", "update_verify_buffers_to_fill_after_draft"),
    ),
)

CHAIN_VERIFY_TARGETS = (
    Target(GET_ATTENTION_BACKEND, ("self", "init_new_workspace")),
    Target(INIT_ATTENTION_BACKENDS, ("self",)),
    Target(_SRT + "layers.attention.base_attn_backend.AttentionBackend", attributes=_VIEWED),
    Target(CREATE_DRAFT_EXTEND_BACKEND, ("self",)),
    Target(_SRT + "speculative.draft_utils.DraftBackendFactory", attributes=("draft_model_runner",)),
    Target(_SRT + "speculative.eagle_info.EagleVerifyInput", attributes=("draft_token_num", "topk")),
    Target(
        _SRT + "speculative.eagle_info.EagleDraftExtendInput",
        attributes=("num_tokens_per_req", "num_front_tokens"),
    ),
)

HTTP_TARGETS = (
    Target(RUN_HTTP_SERVER, ("server_args", "tokenizer_manager")),
    Target(_SRT + "entrypoints.http_server.get_global_state", ()),
    Target(_SRT + "managers.tokenizer_control_mixin.TokenizerControlMixin.get_internal_state", ("self",)),
    Target(
        _SRT + "managers.tokenizer_control_mixin.TokenizerControlMixin.set_internal_state", ("self", "obj")
    ),
    Target(_SRT + "utils.auth.auth_level", ("level",)),
    Target(_SRT + "utils.auth.AuthLevel", attributes=("NORMAL", "ADMIN_OPTIONAL")),
)

ALLOW_UNTESTED = "SPECGOV_ALLOW_UNTESTED"
"""Set to 1 at launch it lets the hook do on a release what was not run there, if the names still fit."""

REGISTRY_TARGETS = (
    Target(_SRT + "plugins.hook_registry.HookRegistry.register", ("cls", "target", "hook", "hook_type")),
    Target(_SRT + "plugins.hook_registry.HookType", attributes=("AFTER", "AROUND", "BEFORE")),
)


def sglang_version() -> str | None:
    """The installed release, `None` when it cannot be told."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def version_mismatch(version: str | None) -> str | None:
    """Why this release must not be hooked; `None`: it may."""
    if version in SUPPORTED or switch(ALLOW_UNTESTED):
        return None
    return (
        f"SGLang {version} is not among the releases that specgov knows ({SUPPORTED[0]} to {SUPPORTED[-1]}); "
        f"{ALLOW_UNTESTED}=1 at launch uses it all the same, if its names still fit"
    )


def plain_decode_mismatch(version: str | None) -> str | None:
    """Why depth 0 must stay SGLang's own on this release, whatever its names; `None`: it need not."""
    if version in PLAIN_DECODE or switch(ALLOW_UNTESTED):
        return None
    return (
        f"plain decoding is not proven on SGLang {version} (but on {', '.join(PLAIN_DECODE)}); "
        f"{ALLOW_UNTESTED}=1 at launch uses it all the same, if its names still fit"
    )


def check(targets: tuple[Target, ...], read_source: Callable[[str], str | None]) -> list[str]:
    """Mismatches between `targets` and the source; empty: everything is as expected.

    `read_source` gives the source text of a dotted module, `None` where there is no such module.
    """
    trees: dict[str, ast.Module | None] = {}

    def tree_of(module: str) -> ast.Module | None:
        if module not in trees:
            source = read_source(module)
            trees[module] = None if source is None else ast.parse(source)
        return trees[module]

    found = (_mismatch(target, tree_of) for target in targets)
    return [mismatch for mismatch in found if mismatch is not None]


def installed_source(module: str) -> str | None:
    """Source of an installed module, found without importing it."""
    root, *parts = module.split(".")
    spec = importlib.util.find_spec(root)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        base = Path(folder).joinpath(*parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return None


def topology_of(owner: Any) -> Topology:
    """Ranks and sizes of this process; `owner` is its scheduler or its speculative worker."""
    parallel = getattr(owner, "ps", None)
    if parallel is None:  # gone since 0.5.21
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
    return Topology(
        dp_rank=parallel.dp_rank or 0,
        tp_rank=parallel.tp_rank,
        dp_size=parallel.dp_size,
        tp_size=parallel.tp_size,
        pp_size=parallel.pp_size,
        nnodes=owner.server_args.nnodes or 1,
    )


def _mismatch(target: Target, tree_of: Callable[[str], ast.Module | None]) -> str | None:
    node = _find(target.path, tree_of)
    if node is None:
        return f"{target.path} is missing"
    if isinstance(node, ast.ClassDef):
        missing = [name for name in target.attributes if name not in _attributes(node)]
        return f"{target.path} has no {', '.join(missing)}" if missing else None
    names = tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
    if names[: len(target.parameters)] == target.parameters:
        return None
    return f"{target.path} takes ({', '.join(names)}), expected ({', '.join(target.parameters)}, ...)"


_Found = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _find(path: str, tree_of: Callable[[str], ast.Module | None]) -> _Found | None:
    """The definition at `path`; its module is the longest prefix for which there is source."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        tree = tree_of(".".join(parts[:cut]))
        if tree is not None:
            node: ast.AST | None = tree
            for name in parts[cut:]:
                node = _definition(node, name)
            return node if isinstance(node, _Found) else None
    return None


def _definition(scope: ast.AST | None, name: str) -> _Found | None:
    for node in getattr(scope, "body", []):
        if isinstance(node, _Found) and node.name == name:
            return node
    return None


def _attributes(node: ast.ClassDef) -> set[str]:
    """Names that a class defines: methods, fields, constants, and what its methods set on `self`."""
    names = set()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(child.name)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            names.add(child.target.id)
        elif isinstance(child, ast.Assign):
            names.update(t.id for t in child.targets if isinstance(t, ast.Name))
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            names.add(child.attr)
    return names
