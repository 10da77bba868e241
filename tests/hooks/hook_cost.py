"""What the hook costs a decode step, with and without it, in one run: `python -m tests.hooks.hook_cost`.

SGLang's own work is left out on both sides: the policy lookup of its adaptive controller and an empty
result processor are called as its scheduler calls them, once as they are, once through the hook.  The
difference is what a decode step is longer by on the scheduler's thread.  Microseconds, median of steps.
"""

import statistics
import time
import types

from sglang_hooks.governed_policy import GovernedStepPolicy
from sglang_hooks.plugin import SchedulerHooks
from sglang_hooks.rank_control import RankControl, Topology
from sglang_hooks.schedule import Probe, Row, Schedule
from sglang_hooks.status import PlainDecodeStatus

STEPS = 20_000
BATCH_SIZES = (1, 8, 64, 256)


class Native:
    """A policy that answers at once, so that only the hook's own time is left."""

    candidate_steps = (0, 1, 2, 3)

    def get_steps_for_batch(self, batch_size):
        return 2

    def on_verify_complete(self, num_correct_drafts_per_req, batch_size):
        return None


class Req:
    """What the hook reads of a request, as slow as SGLang's own."""

    def __init__(self):
        self.finished_reason = None
        self.is_retracted = False
        self.origin_input_ids = [1] * 100
        self.output_ids = [1] * 50

    def finished(self):
        return self.finished_reason is not None


class Decode:
    def is_decode(self):
        return True


def make_step(batch_size, *, hooked):
    """A function that does once what a decode step does around the policy and the result."""
    accepted = [i % 2 for i in range(batch_size)]
    batch = types.SimpleNamespace(forward_mode=Decode(), reqs=[Req() for _ in range(batch_size)])
    policy = Native()

    def process(_scheduler, _batch, result):
        result.num_correct_drafts_per_req_cpu = accepted
        policy.on_verify_complete(accepted, batch_size)

    if not hooked:

        def plain_step():
            depth = policy.get_steps_for_batch(batch_size)
            process(None, batch, types.SimpleNamespace(speculative_num_draft_tokens=depth + 1))

        return plain_step

    policy = GovernedStepPolicy(policy, Native.candidate_steps, 2)
    rows = [Row(1, 3), Row(4, 2), Row(32, 1), Row(128, 2)]
    policy.follow(Schedule(rows), Probe(3, 400, 8))
    hooks = SchedulerHooks()
    hooks._control = RankControl(policy, PlainDecodeStatus(), topology=Topology(), started_unix_s=0.0)

    def hooked_step():
        depth = policy.get_steps_for_batch(batch_size)
        result = types.SimpleNamespace(speculative_num_draft_tokens=depth + 1)
        hooks.around_process_batch_result(process, None, batch, result)

    return hooked_step


def median_us(step):
    """Median time of one step, microseconds."""
    times = []
    for _ in range(STEPS):
        before_ns = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - before_ns)
    return statistics.median(times) / 1000


def main():
    """Print the table."""
    print(f"{'batch size':>10} {'without, us':>12} {'with, us':>10} {'hook, us':>10}")
    for batch_size in BATCH_SIZES:
        without, with_hook = (median_us(make_step(batch_size, hooked=hooked)) for hooked in (False, True))
        print(f"{batch_size:>10} {without:>12.2f} {with_hook:>10.2f} {with_hook - without:>10.2f}")


if __name__ == "__main__":
    main()
