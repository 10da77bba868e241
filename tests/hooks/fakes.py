"""SGLang's own policy and a whole server's scheduler processes, without SGLang."""

import asyncio

from sglang_hooks.ack_board import SLOT_BYTES, AckBoard
from sglang_hooks.governed_policy import GovernedStepPolicy
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.status import PlainDecodeStatus


class FakeNative:
    """SGLang's policy at a depth that the test sets; remembers what it was fed."""

    def __init__(self, depth=2, candidates=(0, 1, 2, 3)):
        self.depth = depth
        self.candidate_steps = list(candidates)
        self.fed = []
        self.graph_sizes = None

    def set_cuda_graph_bs(self, cuda_graph_bs):
        self.graph_sizes = cuda_graph_bs

    def get_steps_for_batch(self, batch_size):
        return self.depth

    def on_verify_complete(self, num_correct_drafts_per_req, batch_size):
        self.fed.append((num_correct_drafts_per_req, batch_size))
        return 1

    def cuda_graph_bs_for_step(self, step):
        return [1]


class Request:
    """A request of the scheduler: any object that takes attributes."""


def make_policy(depth=2, candidates=(0, 1, 2, 3), **kwargs):
    return GovernedStepPolicy(FakeNative(depth, candidates), candidates, depth, **kwargs)


class FakeEngine:
    """`dp_size` x `tp_size` scheduler processes behind an `EngineLink`; replies come from TP rank 0 only."""

    def __init__(self, *, dp_size=1, tp_size=1, gears=("warm",), depths=(0, 1, 2, 3), reason=None):
        self.board = AckBoard(bytearray(SLOT_BYTES * dp_size * tp_size))
        self.sent = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.error = None
        self.ranks = [
            RankControl(
                make_policy(candidates=depths) if reason is None else None,
                PlainDecodeStatus(gears=gears),
                topology=Topology(dp, tp, dp_size, tp_size),
                started_unix_s=1000.0,
                reason=reason,
                board=self.board,
            )
            for dp in range(dp_size)
            for tp in range(tp_size)
        ]

    async def set(self, flat):
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(dict(flat))
        applied = [(rank.topology.tp_rank, rank.apply(flat)) for rank in self.ranks]
        return [done for tp_rank, done in applied if tp_rank == 0]

    async def get(self):
        await self.answers.wait()
        reports = [
            (rank.topology.tp_rank, rank.report()) for rank in self.ranks
        ]  # all are asked, as by SGLang
        return [report for tp_rank, report in reports if tp_rank == 0]

    def depths_at(self, batch_size):
        """What each rank launches next at `batch_size`."""
        return [rank.policy.get_steps_for_batch(batch_size) for rank in self.ranks]
