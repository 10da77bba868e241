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
from make_models import TINY, VOCABULARY, config, write_tokenizer


def unit(*shape):
    return torch.empty(*shape).uniform_(-1, 1) * (3.0 / shape[-1]) ** 0.5


def write_target(folder):
    model = LlamaForCausalLM(config(TINY, TINY.layers)).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape) if "embed_tokens" in name else unit(*weight.shape))
    model.save_pretrained(folder)
    write_tokenizer(folder)


def write_draft(folder):
    layer = "midlayer."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    hidden, intermediate = TINY.hidden, TINY.intermediate
    width, kv_width = TINY.heads * TINY.head_dim, TINY.kv_heads * TINY.head_dim
    tensors = {
        "fc.weight": unit(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": unit(VOCABULARY, hidden),
        f"{attention}q_proj.weight": unit(width, 2 * hidden),
        f"{attention}k_proj.weight": unit(kv_width, 2 * hidden),
        f"{attention}v_proj.weight": unit(kv_width, 2 * hidden),
        f"{attention}o_proj.weight": unit(hidden, width),
        f"{mlp}gate_proj.weight": unit(intermediate, hidden),
        f"{mlp}up_proj.weight": unit(intermediate, hidden),
        f"{mlp}down_proj.weight": unit(hidden, intermediate),
        f"{layer}hidden_norm.weight": torch.ones(hidden),
        f"{layer}input_layernorm.weight": torch.ones(hidden),
        f"{layer}post_attention_layernorm.weight": torch.ones(hidden),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = config(TINY, 1).to_dict() | {
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
