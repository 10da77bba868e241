"""A test's own SGLang plugin: every scheduler process writes down how its models answer chains of tokens.

`attention` in `STEP_LOG_FOLDER`: one line per attention call of a first layer (the target's and the draft's)
that is no prefill, its batch's forward mode and its rows of queries.
"""

import json
import os
from pathlib import Path

FILE = []
MODES = {"DECODE", "TARGET_VERIFY", "DRAFT_EXTEND_V2"}


def log_call(_backend, q, _k, _v, layer, forward_batch, *_args, **_kwargs):
    if layer.layer_id == 0 and forward_batch.forward_mode.name in MODES:
        if not FILE:
            FILE.append((Path(os.environ["STEP_LOG_FOLDER"]) / "attention").open("w", buffering=1))
        FILE[0].write(
            json.dumps([forward_batch.forward_mode.name, q.shape[0], forward_batch.batch_size]) + "\n"
        )


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    backend = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"
    for method in ("forward_decode", "forward_extend"):
        HookRegistry.register(f"{backend}.{method}", log_call, HookType.BEFORE)


def read(folder):
    """[(forward mode, rows of queries, requests or rows in the batch), ...]."""
    return [tuple(json.loads(line)) for line in (Path(folder) / "attention").read_text().splitlines()]
