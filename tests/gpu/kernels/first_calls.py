"""Does every kernel that a Llama server with EAGLE3 calls run on this machine, and agree with PyTorch?

    first_calls.py OUT.jsonl

One line per kernel: where it comes from, and the largest difference or what it raised.  For a bundle whose
SGLang, torch and kernels were not made for each other: what a server would die of is named within seconds.
The exit status is the number of kernels that failed.
"""

# ruff: noqa: PLC0415 - an import that fails is a finding
import json
import sys
import traceback
from pathlib import Path

import torch

HEADS, KV_HEADS, DIM, HIDDEN, SLOTS = 32, 8, 128, 4096, 600
WIDTH, LENGTHS = 5, (7, 130)
"""Two requests with these many tokens, and a chain of five to verify."""
TOLERANCE = 0.03
CUDA, B, I32, I64 = "cuda", torch.bfloat16, torch.int32, torch.int64


def some(*shape, dtype=B):
    return torch.randn(shape, device=CUDA).to(dtype)


def ints(values, dtype=I64):
    return torch.tensor(values, dtype=dtype, device=CUDA)


def normed(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()


def norm():
    """sgl_kernel, which calls FlashInfer"""
    from sgl_kernel import rmsnorm

    x, weight = some(9, HIDDEN), some(HIDDEN)
    return rmsnorm(x, weight, 1e-6), normed(x, weight)


def norm_of_sum():
    """sgl_kernel, which calls FlashInfer"""
    from sgl_kernel import fused_add_rmsnorm

    x, residual, weight = some(9, HIDDEN), some(9, HIDDEN), some(HIDDEN)
    right = normed((x.float() + residual.float()).to(B), weight)
    fused_add_rmsnorm(x, residual, weight, 1e-6)
    return x, right


def weak_reference():
    """sgl_kernel"""
    from sgl_kernel import weak_ref_tensor

    x = some(9, 8)
    return weak_ref_tensor(x), x


def bitmask():
    """sgl_kernel"""
    from sgl_kernel import apply_token_bitmask_inplace_cuda

    logits, right = torch.zeros(1, 32, device=CUDA), torch.full((1, 32), float("-inf"), device=CUDA)
    right[0, 3] = 0
    apply_token_bitmask_inplace_cuda(logits, ints([[1 << 3]], I32))
    return logits.isinf(), right.isinf()


def activation():
    """compiled by SGLang"""
    from sglang.kernels.ops.activation.activation import silu_and_mul

    x = some(9, 2 * HIDDEN)
    gate, up = x.float().chunk(2, dim=-1)
    return silu_and_mul(x), torch.nn.functional.silu(gate) * up


def rope():
    """compiled by SGLang"""
    from sglang.kernels.ops.attention.rope import apply_rope_with_cos_sin_cache_inplace

    q, k, positions = some(4, HEADS, DIM), some(4, KV_HEADS, DIM), ints([0, 5, 77, 900])
    angles = torch.outer(torch.arange(1024, device=CUDA), 1e4 ** -(torch.arange(64, device=CUDA) / 64))
    table = torch.cat([angles.cos(), angles.sin()], dim=-1).float()
    cos, sin = (part[positions].unsqueeze(1) for part in (angles.cos(), angles.sin()))
    low, high = q.float().chunk(2, dim=-1)
    right = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    apply_rope_with_cos_sin_cache_inplace(q, k, table, positions, is_neox=True)
    return q, right


def stored():
    """compiled by SGLang"""
    from sglang.kernels.ops.kvcache.kvcache import store_cache

    k, v = some(3, KV_HEADS * DIM), some(3, KV_HEADS * DIM)
    keys, values = (torch.zeros(SLOTS, KV_HEADS * DIM, dtype=B, device=CUDA) for _ in range(2))
    at = ints([5, 599, 17])
    store_cache(k, v, keys, values, at)
    return torch.cat([keys[at], values[at]]), torch.cat([k, v])


def positions():
    """compiled by SGLang"""
    from sglang.kernels.ops.attention.clamp_position import clamp_position

    return clamp_position(ints([0, 1, 9])), ints([0, 0, 8])


def greedy_chain():
    """compiled by SGLang: two of four drafts are what the target says"""
    from sglang.kernels.ops.speculative.tree import verify_tree_greedy

    index = torch.arange(WIDTH, device=CUDA).unsqueeze(0)
    following = ints([[1, 2, 3, 4, -1]])
    accepted, count = torch.full((1, WIDTH), -1, dtype=I32, device=CUDA), ints([0], I32)
    said = ints([[11, 12, 99, 14, 15]])
    verify_tree_greedy(
        torch.zeros(WIDTH, dtype=I32, device=CUDA), accepted, count, ints([[10, 11, 12, 13, 14]]), index,
        following, torch.full_like(index, -1), said,
    )  # fmt: skip
    return torch.cat([accepted[0], count]), ints([0, 1, 2, -1, -1, 2], I32)


def sampled_chain():
    """compiled by SGLang: a target that is sure accepts what it would say"""
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only

    index = torch.arange(3, device=CUDA).unsqueeze(0)
    accepted, count = torch.full((1, 3), -1, dtype=I32, device=CUDA), ints([0], I32)
    sure = torch.zeros(1, 3, 64, device=CUDA)
    sure[0, [0, 1, 2], [11, 12, 13]] = 1
    tree_speculative_sampling_target_only(
        torch.zeros(3, dtype=I32, device=CUDA), accepted, count, ints([[10, 11, 12]]), index,
        ints([[1, 2, -1]]), torch.full_like(index, -1), torch.full((1, 3), 0.5, device=CUDA),
        torch.full((1,), 0.5, device=CUDA), sure, torch.zeros_like(sure),
    )  # fmt: skip
    return torch.cat([accepted[0], count]), ints([0, 1, 2, 2], I32)


class Chains:
    """Two requests with a chain each, whose keys and values lie in the pool."""

    def __init__(self):
        self.q = some(2 * WIDTH, HEADS, DIM)
        self.keys, self.values = some(SLOTS, KV_HEADS, DIM), some(SLOTS, KV_HEADS, DIM)
        self.slots = [torch.arange(length + WIDTH, device=CUDA) + 300 * r for r, length in enumerate(LENGTHS)]
        self.scale = DIM**-0.5

    def right(self):
        """In float32, a row at a time."""
        rows = []
        for request, length in enumerate(LENGTHS):
            for place in range(WIDTH):
                seen = self.slots[request][: length + place + 1]
                k, v = (
                    pool[seen].float().repeat_interleave(HEADS // KV_HEADS, dim=1)
                    for pool in (self.keys, self.values)
                )
                weights = torch.einsum("hd,khd->hk", self.q[request * WIDTH + place].float(), k) * self.scale
                rows.append(torch.einsum("hk,khd->hd", weights.softmax(-1), v))
        return torch.stack(rows)


def verified_by_prefill():
    """Triton: SGLang's own verify of a chain"""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    chains, out = Chains(), some(2 * WIDTH, HEADS, DIM)
    new = torch.cat([slots[-WIDTH:] for slots in chains.slots])
    prefix = torch.cat([slots[:-WIDTH] for slots in chains.slots])
    masks = [
        torch.ones(WIDTH, length + WIDTH, dtype=torch.uint8, device=CUDA).tril(length) for length in LENGTHS
    ]
    sizes = [mask.numel() for mask in masks]
    extend_attention_fwd(
        chains.q, chains.keys[new].contiguous(), chains.values[new].contiguous(), out, chains.keys,
        chains.values, ints([0, WIDTH, 2 * WIDTH]), ints([0, LENGTHS[0], sum(LENGTHS)], I32), prefix,
        torch.cat([mask.flatten() for mask in masks]), True, ints([0, sizes[0], sum(sizes)]), WIDTH, 1.0, 1.0,
        chains.scale,
    )  # fmt: skip
    return out, chains.right()


def verified_by_decoding():
    """Triton: the decode kernel, a row per token, as the hook has it"""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    chains, out = Chains(), some(2 * WIDTH, HEADS, DIM)
    rows = [
        chains.slots[request][: length + place + 1]
        for request, length in enumerate(LENGTHS)
        for place in range(WIDTH)
    ]
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).to(CUDA, I32)
    decode_attention_fwd(
        chains.q, chains.keys, chains.values, out, ends, torch.cat(rows),
        torch.empty(2 * WIDTH, HEADS, 8, DIM, device=CUDA), torch.empty(2 * WIDTH, HEADS, 8, device=CUDA),
        ints([8] * 2 * WIDTH, I32), 8, chains.scale, 1.0, 1.0, use_pdl=True,
    )  # fmt: skip
    return out, chains.right()


def graph_with_marker():
    """torch: a CUDA graph that records an event which a stream outside waits for"""
    x, event = torch.ones(8, device=CUDA), torch.cuda.Event(external=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
        event.record()
    graph.replay()
    torch.cuda.current_stream().wait_event(event)
    return x, torch.full((8,), 2.0, device=CUDA)


CALLS = (
    norm, norm_of_sum, weak_reference, bitmask, activation, rope, stored, positions, greedy_chain,
    sampled_chain, verified_by_prefill, verified_by_decoding, graph_with_marker,
)  # fmt: skip


def outcome(call):
    """How far it is from right, or what it raised."""
    found = {"kernel": call.__name__, "from": call.__doc__}
    try:
        got, right = call()
        torch.cuda.synchronize()
        found["largest_error"] = (got.float() - right.float()).abs().max().item()
        found["ok"] = found["largest_error"] <= TOLERANCE * max(1.0, right.float().abs().max().item())
    except Exception:  # noqa: BLE001 - the others are worth knowing too
        found |= {"ok": False, "raised": traceback.format_exc()[-1500:]}
    return found


def main():
    torch.manual_seed(1)
    found = [outcome(call) for call in CALLS]
    Path(sys.argv[1]).write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    for one in found:
        print(
            "ok    " if one["ok"] else "FAILED", one["kernel"], "-", one["from"], one.get("largest_error", "")
        )
        print(one.get("raised", ""), end="")
    return sum(not one["ok"] for one in found)


if __name__ == "__main__":
    sys.exit(main())
