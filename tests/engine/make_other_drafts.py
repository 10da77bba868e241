"""make_other_drafts.py DIR: drafts of other kinds for the target of `make_models.py`, which made DIR.

`draft-eagle` is an EAGLE head, `target-mtp` the same target as a MiMo with one multi-token-prediction layer
of its own (SGLang's NEXTN; a dense model, for whose kernels there are stand-ins on CPU).  Both draft by the
target's own head, so they would be right at every position if they handed on the token's embedding; a seeded
error in that makes them right after four tokens of five, at every position alike.  Runs inside the engine's
own environment; 3 MB.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from make_models import (
    TINY,
    TYPE,
    VOCABULARY,
    config,
    small,
    successor,
    write_target,
    write_tensors,
)

ERROR = 0.25
RIGHT = (0.5, 0.9)
"""The share of tokens after which a draft must be right: neither always nor never."""


def embedding_and_head(target):
    tensors = load_file(target / "model.safetensors")
    return tensors["model.embed_tokens.weight"].float(), tensors["lm_head.weight"].float()


def with_errors(embedding, head):
    """A matrix that hands an embedding on, but for an error by which the head reads some of them wrongly."""
    torch.manual_seed(7)
    matrix = torch.eye(TINY.hidden) + ERROR * torch.randn(TINY.hidden, TINY.hidden)
    said = (embedding @ matrix.T @ head.T).argmax(-1).tolist()
    right = sum(said[token] == successor(token) for token in range(VOCABULARY)) / VOCABULARY
    assert RIGHT[0] < right < RIGHT[1], f"the drafts would be right after {right:.0%} of tokens"
    return matrix


def silent_block(*, biases):
    """A decoder layer that adds nothing: its attention and its MLP put out zeros."""
    hidden, intermediate = TINY.hidden, TINY.intermediate
    width, kv_width = TINY.heads * TINY.head_dim, TINY.kv_heads * TINY.head_dim
    rows = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
    weights = {f"self_attn.{name}.weight": small(count, hidden) for name, count in rows.items()}
    weights |= {f"self_attn.{name}.bias": torch.zeros(count) for name, count in rows.items() if biases}
    return weights | {
        "self_attn.o_proj.weight": torch.zeros(hidden, width),
        "mlp.gate_proj.weight": small(intermediate, hidden),
        "mlp.up_proj.weight": small(intermediate, hidden),
        "mlp.down_proj.weight": torch.zeros(hidden, intermediate),
        "post_attention_layernorm.weight": torch.ones(hidden),
    }


def under(prefix, weights):
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def in_type(weights):
    return {name: tensor.to(TYPE) for name, tensor in weights.items()}


def write_eagle(folder, matrix):
    nothing = torch.zeros_like(matrix)
    weights = {"fc.weight": torch.cat([matrix, nothing], 1), "fc.bias": torch.zeros(TINY.hidden)}
    weights |= under("layers.0.", silent_block(biases=False))
    write_tensors(folder, in_type(weights))
    fields = {"architectures": ["LlamaForCausalLMEagle"], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config(TINY, 1).to_dict() | fields, indent=1))


def write_mtp(folder, embedding, matrix):
    llama = config(TINY, TINY.layers).to_dict()
    fields = {
        name: llama[name]
        for name in ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    }
    shape = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=TINY.hidden,
        intermediate_size=TINY.intermediate,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.heads,
        num_key_value_heads=TINY.kv_heads,
        tie_word_embeddings=False,
        **fields,
    )
    write_target(folder, Qwen2ForCausalLM(shape), embedding)
    add_mtp_layer(folder, matrix)


def add_mtp_layer(folder, matrix):
    ones = torch.ones(TINY.hidden)
    layer = silent_block(biases=True) | {
        "input_proj.weight": torch.cat([torch.zeros_like(matrix), matrix], 1),
        "input_layernorm.weight": ones,
        "token_layernorm.weight": ones,
        "hidden_layernorm.weight": ones,
        "final_layernorm.weight": ones,
    }
    own = load_file(folder / "model.safetensors")
    write_tensors(folder, own | in_type(under("model.mtp_layers.0.", layer)))
    path = folder / "config.json"
    fields = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=1))


def main(root):
    embedding, head = embedding_and_head(root / "target")
    matrix = with_errors(embedding, head)
    write_eagle(root / "draft-eagle", matrix)
    write_mtp(root / "target-mtp", embedding, matrix)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
