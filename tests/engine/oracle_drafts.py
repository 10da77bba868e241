"""A test's own SGLang plugin: drafts that are right, whatever the draft model says.

`ORACLE_FILE` (unset: nothing is hooked): JSON, [[prompt and answer of a request as one list of token ids],
...]; read when it appears or changes.  A request whose prompt begins one of them has its drafts replaced
by what comes next there, so that a verify which is right accepts them all, and one that is wrong in any row
does not.
"""

import json
import os
from pathlib import Path

FILE = Path(os.environ.get("ORACLE_FILE", ""))
KNOWN = {"at": None, "texts": []}


def texts():
    at = FILE.stat().st_mtime_ns if FILE.exists() else None
    if at != KNOWN["at"]:
        KNOWN["at"], KNOWN["texts"] = at, json.loads(FILE.read_text()) if at else []
    return KNOWN["texts"]


def set_drafts(verify_input, _worker, batch, *_args, **_kwargs):
    import torch

    known, width = texts(), verify_input.draft_token_num
    if not known or batch.forward_mode.is_idle():
        return
    tokens = verify_input.draft_token.view(-1, width).tolist()
    places = verify_input.positions.view(-1, width).tolist()
    for request, row, at in zip(batch.reqs, tokens, places, strict=True):
        prompt = list(request.origin_input_ids)
        text = next((t for t in known if t[: len(prompt)] == prompt), None)
        if text is not None:
            row[1:] = [text[p] if p < len(text) else token for p, token in zip(at[1:], row[1:], strict=True)]
    drafts = torch.tensor(tokens, dtype=verify_input.draft_token.dtype).to(verify_input.draft_token.device)
    verify_input.draft_token.copy_(drafts.view(verify_input.draft_token.shape))


def register():
    if "ORACLE_FILE" not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft"
    HookRegistry.register(target, set_drafts, HookType.AFTER)
