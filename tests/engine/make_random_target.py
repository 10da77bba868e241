"""make_random_target.py DIR: a target and a draft whose every output depends on their whole context.

The successor target of `make_models.py` looks at the last token alone, so it cannot show whether attention
read the right part of the KV cache.  These have random weights of unit gain: one wrong, missing or extra
entry of the cache changes the tokens that follow.  Runs inside the engine's own environment.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from make_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    config,
    write_tokenizer,
)


def unit(*shape):
    return torch.empty(*shape).uniform_(-1, 1) * (3.0 / shape[-1]) ** 0.5


def write_target(folder):
    model = LlamaForCausalLM(config(LAYERS)).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape) if "embed_tokens" in name else unit(*weight.shape))
    model.save_pretrained(folder)
    write_tokenizer(folder)


def write_draft(folder):
    layer = "midlayer."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    tensors = {
        "fc.weight": unit(HIDDEN, 3 * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": unit(VOCABULARY, HIDDEN),
        f"{attention}q_proj.weight": unit(HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{attention}k_proj.weight": unit(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{attention}v_proj.weight": unit(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{attention}o_proj.weight": unit(HIDDEN, HEADS * HEAD_DIM),
        f"{mlp}gate_proj.weight": unit(INTERMEDIATE, HIDDEN),
        f"{mlp}up_proj.weight": unit(INTERMEDIATE, HIDDEN),
        f"{mlp}down_proj.weight": unit(HIDDEN, INTERMEDIATE),
        f"{layer}hidden_norm.weight": torch.ones(HIDDEN),
        f"{layer}input_layernorm.weight": torch.ones(HIDDEN),
        f"{layer}post_attention_layernorm.weight": torch.ones(HIDDEN),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = config(1).to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "float32",
        "draft_vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))


def main(root):
    torch.manual_seed(11)
    write_target(root / "target")
    write_draft(root / "draft")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
