"""Why a server cannot be governed: each way to run SGLang that rules it out, in the hook's own words."""

import types

import pytest

from sglang_hooks.governable import why_no_controller, why_not_this_shape
from sglang_hooks.rank_control import Topology


class Algorithm:
    """SGLang's enum, or a plugin's own algorithm: both have a name."""

    def __init__(self, name):
        self.name = name

    def is_none(self):
        return self.name == "NONE"


def args(**fields):
    return types.SimpleNamespace(**fields)


def no_refusal(_server_args):
    return None


@pytest.mark.parametrize(
    ("topology", "server_args", "reason"),
    [
        (Topology(), args(), None),
        (Topology(tp_size=8, dp_size=2), args(disaggregation_mode="null"), None),
        (Topology(), args(disaggregation_mode="decode"), None),
        (Topology(), args(disaggregation_mode="prefill"), "govern its decode servers"),
        (Topology(pp_size=2), args(), "pipeline parallelism"),
        (Topology(pp_size=2), args(disaggregation_mode="prefill"), "pipeline parallelism"),
        (Topology(tp_size=16, nnodes=2), args(), "SPECGOV_ALLOW_MULTI_NODE=1"),
    ],
)
def test_a_shape_that_could_hang_or_decodes_nothing_is_refused(topology, server_args, reason):
    """TP, DP and a decode server are fine; PP, a prefill server and unconfirmed nodes are not."""
    why = why_not_this_shape(topology, server_args)
    assert (why is None) if reason is None else (reason in why)


def test_several_nodes_are_governed_once_the_operator_says_that_all_have_the_hook(monkeypatch):
    """The hook of one node cannot see the others."""
    monkeypatch.setenv("SPECGOV_ALLOW_MULTI_NODE", "1")
    assert why_not_this_shape(Topology(tp_size=16, nnodes=2), args()) is None


@pytest.mark.parametrize(
    ("algorithm", "worker", "reason"),
    [
        ("NONE", "NoneType", "without --speculative-algorithm"),
        ("NGRAM", "NGRAMWorker", "NGRAM is served by NGRAMWorker"),
        ("STANDALONE", "StandaloneWorkerV2", "STANDALONE is served by StandaloneWorkerV2"),
        ("FROZEN_KV_MTP", "FrozenKVMTPWorkerV2", "cannot change its depth in this release: observe only"),
        ("EAGLE", "MultiLayerEagleWorkerV2", "EAGLE is served by MultiLayerEagleWorkerV2"),
        ("EAGLE", "VendorWorker", "EAGLE is served by VendorWorker"),
        ("MINE", "MyWorker", "MINE is served by MyWorker"),
        ("EAGLE3", "EAGLEWorkerV2", "start the server with --speculative-adaptive"),
    ],
)
def test_an_algorithm_whose_worker_has_one_depth_is_observed_only(algorithm, worker, reason):
    """The algorithm and the class that serves it are named."""
    assert reason in why_no_controller(Algorithm(algorithm), worker, args(), no_refusal)


def test_what_sglang_itself_refuses_is_said_in_its_own_words():
    """topk above 1, DP attention, two-batch overlap: the release knows its own list."""
    refused = "speculative_eagle_topk=4 (only topk=1 is supported)"
    why = why_no_controller(Algorithm("EAGLE3"), "EAGLEWorkerV2", args(), lambda _args: refused)
    assert why == f"SGLang itself refuses to change depths here, so observe only: {refused}"
