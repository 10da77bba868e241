"""A test's own SGLang plugin: loads the product's plugin with a stopwatch around everything that it hooks.

Every scheduler process writes `hook_cost.<dp rank>.<tp rank>` in `STEP_LOG_FOLDER`, one line of JSON per
decode launch: the batch size and, by hooked function, the product's own microseconds since the launch
before.  SGLang's functions that its hooks call are taken out, SGLang's own policy too.  `stopwatch` is a hook
that does nothing: what the readings themselves add to each entry.
"""

import json
import os
import time
from pathlib import Path

clock = time.perf_counter
SPENT_S = {}
FILE = []


def spend(name, seconds):
    SPENT_S[name] = SPENT_S.get(name, 0.0) + seconds


def timed(hook, name):
    """`hook`, an AROUND hook, with the time between its start and its end that was not its original's."""

    def around(original, *args, **kwargs):
        inner_s = 0.0

        def timed_original(*inner_args, **inner_kwargs):
            nonlocal inner_s
            began_s = clock()
            try:
                return original(*inner_args, **inner_kwargs)
            finally:
                inner_s += clock() - began_s

        began_s = clock()
        try:
            return hook(timed_original, *args, **kwargs)
        finally:
            spend(name, clock() - began_s - inner_s)

    return around


def timed_policy(ours, native):
    """`ours`, a method of the product's policy, less what SGLang's own takes for the same question."""

    def method(policy, *args):
        began_s = clock()
        answer = ours(policy, *args)
        middle_s = clock()
        native(policy.native, *args)
        spend("policy", (middle_s - began_s) - (clock() - middle_s))
        return answer

    return method


nothing = timed(lambda original: original(), "stopwatch")


def log_launch(result, _controller, batch_size):
    """Close the account of a step."""
    if not FILE:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        name = f"hook_cost.{parallel.dp_rank or 0}.{parallel.tp_rank}"
        FILE.append((Path(os.environ["STEP_LOG_FOLDER"]) / name).open("w", buffering=1))
    nothing(lambda: None)
    spent_us = {name: round(seconds * 1e6, 2) for name, seconds in SPENT_S.items()}
    FILE[0].write(json.dumps({"batch_size": batch_size, "us": spent_us}) + "\n")
    SPENT_S.clear()
    return result


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    from sglang_hooks import plugin
    from sglang_hooks.governed_policy import GovernedStepPolicy

    untimed = HookRegistry.register

    def register_timed(target, hook, kind):
        name = target.rpartition(".")[2]
        untimed(target, timed(hook, name) if kind is HookType.AROUND else hook, kind)

    HookRegistry.register = register_timed
    try:
        plugin.register()
    finally:
        HookRegistry.register = untimed
    GovernedStepPolicy.get_steps_for_batch = timed_policy(
        GovernedStepPolicy.get_steps_for_batch, AdaptiveSpeculativeParams.get_steps_for_batch
    )
    target = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.activate_step_by_batch"
    untimed(target, log_launch, HookType.AFTER)


def read(folder):
    """The lines of all ranks, in the order of each."""
    paths = sorted(Path(folder).glob("hook_cost.*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]
