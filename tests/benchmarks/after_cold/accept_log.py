"""An SGLang plugin of this benchmark: writes down how many drafts of each request were accepted, by step.

`accepts` in `STEP_LOG_FOLDER`: one line of JSON per decode step, `[depth, [[request id, tokens that it had
before, accepted drafts], ...]]`; at depth 0 nothing was drafted.  A request that has just ended may appear
once more, as the overlap scheduler launches a step before it knows.
"""

import json
import os
from pathlib import Path

FILE = []


def log_accepted(result, _worker, batch, *_args, **_kwargs):
    if not FILE:
        FILE.append((Path(os.environ["STEP_LOG_FOLDER"]) / "accepts").open("w", buffering=1))
    lengths, after = result.accept_lens.tolist(), result.new_seq_lens.tolist()
    rows = [
        [request.rid, now - length, length - 1]
        for request, now, length in zip(batch.reqs, after, lengths, strict=True)
    ]
    FILE[0].write(json.dumps([result.speculative_num_draft_tokens - 1, rows]) + "\n")
    return result


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415  # in the engine

    target = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"
    HookRegistry.register(target, log_accepted, HookType.AFTER)


def read(folder):
    """{request id: [(tokens before, depth, accepted), ...]}, each in the order of its steps."""
    steps = {}
    for line in (Path(folder) / "accepts").read_text().splitlines():
        depth, rows = json.loads(line)
        for rid, before, accepted in rows:
            steps.setdefault(rid, []).append((before, depth, accepted))
    return steps
