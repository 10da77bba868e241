"""An EAGLE3 draft model as SGLang runs it (`models/llama_eagle3.py`), in plain PyTorch, to be trained.

Index `a` of the draft's cache holds token `a + 1` beside what the target knew at index `a`; its output
predicts token `a + 2`.  The second draft and those after it have no such knowledge yet, and take the layer's
own output (before the norm) in its place.  Training runs these steps too (EAGLE-3's "training-time test"), so
that the model learns to go on from itself: step `s` of the chain that starts at `a` sits at position `a + s`,
sees the target's entries up to `a` and the chain's own after it.

The names of the weights are those that SGLang loads.  The embedding is the target's and not part of it.
"""

import torch
from torch import nn
from torch.nn import functional

CAPTURED = 3
"""Layers of the target whose input the draft is shown."""


def captured_layers(layers):
    """Which layers' inputs SGLang takes by default (`set_eagle3_layers_to_capture`)."""
    return [2, layers // 2, layers - 3]


class Norm(nn.Module):
    """Root mean square, in float32."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, positions, theta):
    """Rotary embedding, halves against each other (the Llama order)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim, hidden = config.head_dim, config.hidden_size
        self.theta = config.rope_parameters["rope_theta"]
        self.q_proj = nn.Linear(2 * hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)

    def forward(self, x, step, cache, spoil):
        """`x`: [batch, starts, 2 hidden] of step `step`; `cache`: (keys, values) of the steps before it."""
        batch, length, _ = x.shape
        positions = torch.arange(length, device=x.device) + step

        def split(projected, heads):
            return projected.view(batch, length, heads, self.dim).transpose(1, 2)

        query = rotate(split(self.q_proj(x), self.heads), positions, self.theta)
        key = rotate(split(self.k_proj(x), self.kv_heads), positions, self.theta)
        value = split(self.v_proj(x), self.kv_heads)
        repeat = self.heads // self.kv_heads
        cache.append((key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)))
        if spoil and step == 0:
            cache[0] = spoil(*cache[0])
        mixed = self.attend(query, cache).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(mixed)

    def attend(self, query, cache):
        """To the target's entries up to the start, and to the chain's own."""
        (first_key, first_value), *chain = cache
        length, scale = query.shape[2], self.dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ first_key.transpose(-1, -2) * scale).masked_fill(later, float("-inf"))
        own = [(query * key).sum(-1, keepdim=True) * scale for key, _ in chain]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        mixed = weights[..., :length] @ first_value
        for i, (_, value) in enumerate(chain):
            mixed = mixed + weights[..., length + i : length + i + 1] * value
        return mixed


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        norm = (config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Attention(config), Mlp(config)
        self.hidden_norm, self.input_layernorm = Norm(*norm), Norm(*norm)
        self.post_attention_layernorm = Norm(*norm)

    def forward(self, embedded, hidden, step, cache, spoil):
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, step, cache, spoil)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Draft(nn.Module):
    """`config`: the target's, of whose width the draft is."""

    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(CAPTURED * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, embedded, captured, steps, spoil=None):
        """Logits of each step of the chains that start at every index.

        Args:
            embedded: [batch, length, hidden], the target's embedding of the tokens.
            captured: [batch, length, 3 hidden], the inputs of `captured_layers`.
            steps: drafts in a chain.
            spoil: called with the keys and values of the target's entries, [batch, heads, length, dim] each;
                gives those that are there instead, as after a spell in which none were written.

        Returns:
            `steps` tensors [batch, length, vocabulary]; entry `a` of step `s` predicts token `a + s + 2` and
            means nothing where `a + s + 1` is past the end.
        """
        hidden, cache, found = self.fc(captured), [], []
        for step in range(steps):
            hidden = self.midlayer(embedded.roll(-step - 1, 1), hidden, step, cache, spoil)
            found.append(self.lm_head(self.norm(hidden)))
        return found
