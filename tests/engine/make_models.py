"""make_models.py DIR: a target whose greedy successor is known, and an EAGLE3 draft that is at times right.

The target says t -> t + 1, but t + 9 where t % 8 == 7 (modulo 512), whatever came before: every output
can be checked token by token.  The draft says t + 1 at its first position, which is right seven times
of eight, and nothing useful at the second, so drafts are accepted and refused for real.

How: token t is embedded as H / 2 points on circles, at angles t * w.  The attention and the MLP add
nothing, so the last hidden state is that embedding, and the row of the language model's head for token
u is the sum of the embeddings of its predecessors.  `-kv4` are the same with four key-value heads, for four
ranks, since SGLang on CPU replicates none.  Runs inside the engine's own environment; 6 MB.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 512, 128, 256, 8, 4, 2
HEAD_DIM = HIDDEN // HEADS
TYPE = torch.bfloat16


def successor(token):
    return (token + (9 if token % 8 == 7 else 1)) % VOCABULARY


def config(layers, kv_heads=KV_HEADS, **more):
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        **more,
    )


def circles(frequencies):
    """The embedding: (cos, sin) of token * frequency, for each frequency."""
    angles = torch.arange(VOCABULARY)[:, None].float() * frequencies
    return torch.stack([torch.cos(angles), torch.sin(angles)], -1).reshape(VOCABULARY, HIDDEN)


def one_step_rotation(frequencies):
    """The matrix that turns the embedding of t into that of t + 1."""
    rotation = torch.zeros(HIDDEN, HIDDEN)
    for i, frequency in enumerate(frequencies.tolist()):
        c, s = math.cos(frequency), math.sin(frequency)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[c, -s], [s, c]])
    return rotation


def head(embedding, successor_of):
    weights = torch.zeros(VOCABULARY, HIDDEN)
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


def write_target(folder, embedding, kv_heads):
    model = LlamaForCausalLM(config(LAYERS, kv_heads))
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


def write_draft(folder, embedding, rotation, kv_heads):
    def small(*shape):
        return torch.randn(*shape) * 0.02

    ones = torch.ones(HIDDEN)
    layer = "midlayer."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    weights = {
        "fc.weight": torch.cat([rotation, torch.zeros(HIDDEN, 2 * HIDDEN)], 1),
        "norm.weight": ones,
        "lm_head.weight": head(embedding, lambda token: (token + 1) % VOCABULARY),
        f"{attention}q_proj.weight": small(HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{attention}k_proj.weight": small(kv_heads * HEAD_DIM, 2 * HIDDEN),
        f"{attention}v_proj.weight": small(kv_heads * HEAD_DIM, 2 * HIDDEN),
        f"{attention}o_proj.weight": torch.zeros(HIDDEN, HEADS * HEAD_DIM),
        f"{mlp}gate_proj.weight": small(INTERMEDIATE, HIDDEN),
        f"{mlp}up_proj.weight": small(INTERMEDIATE, HIDDEN),
        f"{mlp}down_proj.weight": torch.zeros(HIDDEN, INTERMEDIATE),
        f"{layer}hidden_norm.weight": ones,
        f"{layer}input_layernorm.weight": ones,
        f"{layer}post_attention_layernorm.weight": ones,
    }
    tensors = {name: tensor.to(TYPE).contiguous().clone() for name, tensor in weights.items()}
    tensors["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
    tensors["t2d"] = torch.ones(VOCABULARY, dtype=torch.bool)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = config(1, kv_heads).to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "bfloat16",
        "draft_vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))


def main(root):
    torch.manual_seed(1)
    frequencies = torch.rand(HIDDEN // 2) * math.pi * 2
    embedding = circles(frequencies)
    said = (embedding @ head(embedding, successor).T).argmax(-1).tolist()
    assert said == [successor(token) for token in range(VOCABULARY)], "the target is not what it should be"
    for suffix, kv_heads in (("", KV_HEADS), ("-kv4", 4)):
        write_target(root / f"target{suffix}", embedding, kv_heads)
        write_draft(root / f"draft{suffix}", embedding, one_step_rotation(frequencies), kv_heads)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
