"""Dummy weights under which the context decides the next token, as an SGLang plugin (BENCH_UNIT_WEIGHTS=1).

SGLang's own dummy weights are +-0.001: attention then drowns in rounding, and all servers "agree" with each
other.  Here each parameter is uniform with unit gain, from a seed of its own name, so that two servers have
the same weights.
"""

import os
import zlib


def _initialize(original, model, *args, **kwargs):
    import torch  # noqa: PLC0415 - the host, late

    original(model, *args, **kwargs)
    for name, weight in model.state_dict().items():
        if not torch.is_floating_point(weight) or torch.finfo(weight.dtype).bits < 16:
            continue
        if weight.dim() == 1:
            weight.fill_(1.0 if "norm" in name else 0.0)
            continue
        bound = 0.5 if "embed_tokens" in name else (3.0 / weight.shape[-1]) ** 0.5
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(zlib.crc32(name.encode()))
        weight.uniform_(-bound, bound, generator=generator)


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - the host, late

    if os.environ.get("BENCH_UNIT_WEIGHTS") == "1":
        HookRegistry.register(
            "sglang.srt.model_loader.weight_utils.initialize_dummy_weights", _initialize, HookType.AROUND
        )
