"""A test's own SGLang plugin: every scheduler process writes down what is drafted, verify by verify.

`drafts` in `STEP_LOG_FOLDER`: one line per verify of more than one token, the verified tokens of each
request (its last token, then its drafts).
"""

import json
import os
from pathlib import Path

FILE = []


def log_drafts(_worker, batch, *_args, **_kwargs):
    spec = batch.spec_info
    if spec.draft_token_num > 1:
        if not FILE:
            FILE.append((Path(os.environ["STEP_LOG_FOLDER"]) / "drafts").open("w", buffering=1))
        rows = spec.draft_token.view(-1, spec.draft_token_num).tolist()
        FILE[0].write(json.dumps(rows) + "\n")


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"
    HookRegistry.register(target, log_drafts, HookType.BEFORE)


def read(folder):
    """[[tokens of a request, ...] per verify]."""
    return [json.loads(line) for line in (Path(folder) / "drafts").read_text().splitlines()]
