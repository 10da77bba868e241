"""A test's own SGLang plugin: every scheduler process writes down each decode launch that it makes.

One file per rank, `steps.<dp rank>.<tp rank>` in `STEP_LOG_FOLDER`, one line per launch:
`<batch size> <depth>`.  Independent of the product's own counters, which it is there to check.
"""

import os
from pathlib import Path

from sglang_hooks.compat import topology_of

FILE = []


def log_launch(result, controller, batch_size):
    if not FILE:
        topology = topology_of(controller.worker)
        name = f"steps.{topology.dp_rank}.{topology.tp_rank}"
        FILE.append((Path(os.environ["STEP_LOG_FOLDER"]) / name).open("w", buffering=1))
    FILE[0].write(f"{batch_size} {controller.worker.speculative_num_steps}\n")
    return result


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.activate_step_by_batch"
    HookRegistry.register(target, log_launch, HookType.AFTER)


def read(folder):
    """{(dp rank, tp rank): [(batch size, depth), ...]}."""
    logs = {}
    for path in sorted(Path(folder).glob("steps.*")):
        _, dp_rank, tp_rank = path.name.split(".")
        lines = path.read_text().splitlines()
        logs[int(dp_rank), int(tp_rank)] = [tuple(map(int, line.split())) for line in lines]
    return logs
