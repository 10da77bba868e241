"""Whether the server of this process can be governed, and if not why.

The reasons are shown to whoever asks `GET /speculation` and by `specgov preflight`, so each says what is
in the way and, where something can be done, what.  Depths can only be changed where SGLang pre-builds one
runtime state per depth, that is where its own adaptive controller runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_hooks.environment import switch
from sglang_hooks.rank_control import Topology

NO_SPECULATION = "speculation is off: the server was started without --speculative-algorithm"
PIPELINE = (
    "pipeline parallelism: SGLang drafts on the last stage alone, so the depth would have to change on every "
    "stage at once; not supported, observe only"
)
PREFILL = (
    "a prefill server of a disaggregated deployment decodes nothing: govern its decode servers, observe this"
)
SEVERAL_NODES = (
    "several nodes: a node without the hook would run other depths and hang; "
    "set SPECGOV_ALLOW_MULTI_NODE=1 on every node once specgov is installed on all of them"
)
SEVERAL_TOKENIZERS = (
    "SGLang then serves HTTP from processes of their own, which load no plugin and could not share one "
    "lease; observe only"
)
RUST_FRONT_END = (
    "the Rust front end serves HTTP: it has no place for /speculation and passes no control request on to "
    "the schedulers; observe only"
)
_ADAPTIVE_IS_LEFT_OUT = (
    "no adaptive controller: start the server with --speculative-adaptive (its log says if SGLang turned "
    "that off, and why)"
)


def why_not_this_shape(topology: Topology, server_args: Any) -> str | None:
    """Why a server of this shape must not be governed, whatever it speculates with."""
    if topology.pp_size > 1:
        return PIPELINE
    if getattr(server_args, "disaggregation_mode", None) == "prefill":
        return PREFILL
    if topology.nnodes > 1 and not switch("SPECGOV_ALLOW_MULTI_NODE"):
        return SEVERAL_NODES
    return None


def why_no_controller(
    algorithm: Any, worker: str, server_args: Any, refusal: Callable[[Any], str | None]
) -> str:
    """Why there is no adaptive controller to govern by.

    `algorithm` is SGLang's `SpeculativeAlgorithm` (or a plugin's own), `worker` the class that speculates,
    `refusal` SGLang's `adaptive_unsupported_reason`, which knows topk, DP attention and the rest.
    """
    if algorithm.is_none():
        return NO_SPECULATION
    name = getattr(algorithm, "name", str(algorithm))
    if worker != "EAGLEWorkerV2":
        return f"{name} is served by {worker}, which cannot change its depth in this release: observe only"
    refused = refusal(server_args)
    if refused is not None:
        return f"SGLang itself refuses to change depths here, so observe only: {refused}"
    return f"{worker} has {_ADAPTIVE_IS_LEFT_OUT}"
