"""make_models.py DIR [wide]: a target whose greedy successor is known, a draft that is right at times.

The target says t -> t + 1, but t + 9 where t % 8 == 7 (modulo 512), whatever came before: every output
can be checked token by token.  The draft says t + 1 at its first position, which is right seven times
of eight, and nothing useful at the second, so drafts are accepted and refused for real.

How: token t is embedded as H / 2 points on circles, at angles t * w.  The attention and the MLP add
nothing, so the last hidden state is that embedding, and the row of the language model's head for token
u is the sum of the embeddings of its predecessors.  `-kv4` are the same with four key-value heads, for four
ranks, since SGLang on CPU replicates none; `wide` makes, instead of these, one pair of the width of an 8B
model, for whose shapes a GPU has kernels.  Runs inside the engine's own environment; 6 MB, wide 0.9 GB.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
TYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """Of a Llama and of its draft, whose one layer is as wide."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2

    @property
    def head_dim(self):
        return self.hidden // self.heads


TINY, TINY_KV4 = Shape(), Shape(kv_heads=4)
WIDE = Shape(hidden=4096, intermediate=512, heads=32, kv_heads=8)


def successor(token):
    return (token + (9 if token % 8 == 7 else 1)) % VOCABULARY


def config(shape, layers):
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )


def circles(frequencies):
    """The embedding: (cos, sin) of token * frequency, for each frequency."""
    angles = torch.arange(VOCABULARY)[:, None].float() * frequencies
    return torch.stack([torch.cos(angles), torch.sin(angles)], -1).flatten(1)


def one_step_rotation(frequencies):
    """The matrix that turns the embedding of t into that of t + 1."""
    rotation = torch.zeros(2 * len(frequencies), 2 * len(frequencies))
    for i, frequency in enumerate(frequencies.tolist()):
        c, s = math.cos(frequency), math.sin(frequency)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[c, -s], [s, c]])
    return rotation


def head(embedding, successor_of):
    weights = torch.zeros_like(embedding)
    for token in range(VOCABULARY):
        weights[successor_of(token)] += embedding[token]
    return weights


def write_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["a tiny tokenizer for a tiny model " * 3] * 50, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=2048,
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


def write_target(folder, model, embedding):
    """`model` as the target: what its attention and its MLP say is nothing, and its head knows successors."""
    weights = model.state_dict()
    weights["model.embed_tokens.weight"].copy_(embedding)
    weights["lm_head.weight"].copy_(head(embedding, successor))
    for name, tensor in weights.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    model = model.to(TYPE)
    model.config.dtype = TYPE
    model.save_pretrained(folder)
    write_tokenizer(folder)


def small(*shape):
    return torch.randn(*shape) * 0.02


def write_tensors(folder, weights):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_draft(folder, shape, embedding, rotation):
    hidden, intermediate = shape.hidden, shape.intermediate
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ones = torch.ones(hidden)
    layer = "midlayer."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    weights = {
        "fc.weight": torch.cat([rotation, torch.zeros(hidden, 2 * hidden)], 1),
        "norm.weight": ones,
        "lm_head.weight": head(embedding, lambda token: (token + 1) % VOCABULARY),
        f"{attention}q_proj.weight": small(width, 2 * hidden),
        f"{attention}k_proj.weight": small(kv_width, 2 * hidden),
        f"{attention}v_proj.weight": small(kv_width, 2 * hidden),
        f"{attention}o_proj.weight": torch.zeros(hidden, width),
        f"{mlp}gate_proj.weight": small(intermediate, hidden),
        f"{mlp}up_proj.weight": small(intermediate, hidden),
        f"{mlp}down_proj.weight": torch.zeros(hidden, intermediate),
        f"{layer}hidden_norm.weight": ones,
        f"{layer}input_layernorm.weight": ones,
        f"{layer}post_attention_layernorm.weight": ones,
    }
    tensors = {name: tensor.to(TYPE) for name, tensor in weights.items()}
    tensors["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
    tensors["t2d"] = torch.ones(VOCABULARY, dtype=torch.bool)
    write_tensors(folder, tensors)
    fields = config(shape, 1).to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "bfloat16",
        "draft_vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))


def write_pair(target, draft, shape):
    torch.manual_seed(1)
    frequencies = torch.rand(shape.hidden // 2) * math.pi * 2
    embedding = circles(frequencies)
    said = (embedding @ head(embedding, successor).T).argmax(-1).tolist()
    assert said == [successor(token) for token in range(VOCABULARY)], "the target is not what it should be"
    write_target(target, LlamaForCausalLM(config(shape, shape.layers)), embedding)
    write_draft(draft, shape, embedding, one_step_rotation(frequencies))


def main(root, wide):
    if wide:
        write_pair(root / "target", root / "draft", WIDE)
    else:
        write_pair(root / "target", root / "draft", TINY)
        write_pair(root / "target-kv4", root / "draft-kv4", TINY_KV4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["wide"])
