"""How the target's attention can answer a verify, kernel by kernel:  verify_kernels.py OUT.jsonl [SECONDS]

For every batch, context and width (depth + 1): milliseconds a layer of SGLang's prefill kernel with a mask
(what its Triton backend does), of its decode kernel with a row per token (what `chain_verify` does), and of
its split-KV verify kernel, which SGLang uses on one AMD chip only; and how far their outputs are apart.
Heads as in an 8B model (32 query, 8 KV heads of 128) and as in an MLA model (16 query heads on one latent of
576, of which 512 are values).  bf16, unit normal queries, keys and values; `reference` is float32 arithmetic.
CUDA events around a CUDA graph that goes through several layers' buffers, so that the L2 cache holds no more
than it would; the median of seven.  Ends by itself after SECONDS, the shapes in order of interest.
"""

import json
import math
import statistics
import sys
import time

import torch
from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton
from sglang.kernels.ops.attention.verify_splitkv import verify_splitkv_fwd

HEADS = {"gqa": (32, 8, 128, 128), "mla": (16, 1, 576, 512)}
BATCHES, CONTEXTS, WIDTHS = (1, 8, 32, 64, 128, 256), (320, 2048, 8192, 32768), (2, 3, 5, 8)
MAX_POOL_BYTES = 30 << 30
MAX_SPLITS = 8
CORES = torch.cuda.get_device_properties(0).multi_processor_count


class Problem:
    """Chains of `width` tokens behind `context` tokens each, in `layers` layers' buffers."""

    def __init__(self, kind, batch, context, width):
        heads, kv_heads, self.head_dim, self.value_dim = HEADS[kind]
        self.kind, self.batch, self.context, self.width = kind, batch, context, width
        self.heads, self.kv_heads = heads, kv_heads
        tokens = batch * (context + width)
        bytes_a_layer = tokens * kv_heads * (self.head_dim + (0 if kind == "mla" else self.value_dim)) * 2
        self.layers = max(1, min(8, MAX_POOL_BYTES // bytes_a_layer))
        rand = {"device": "cuda", "dtype": torch.bfloat16}
        self.keys = [torch.randn(tokens, kv_heads, self.head_dim, **rand) for _ in range(self.layers)]
        self.values = [
            k[..., : self.value_dim]
            if kind == "mla"
            else torch.randn(tokens, kv_heads, self.value_dim, **rand)
            for k in self.keys
        ]
        self.q = torch.randn(batch * width, heads, self.head_dim, **rand)
        self.out = torch.empty(batch * width, heads, self.value_dim, **rand)
        self.scale = 1 / math.sqrt(self.head_dim)
        slots = torch.randperm(tokens, device="cuda").view(batch, context + width)
        self.slots = slots
        ints = {"device": "cuda", "dtype": torch.int32}
        # as the prefill kernel takes it: the prefix from the pool, the chain's keys and values apart
        self.prefix_indptr = torch.arange(0, batch * context + 1, context, **ints)
        self.prefix = slots[:, :context].reshape(-1).contiguous()
        self.qo_indptr = torch.arange(0, batch * width + 1, width, device="cuda", dtype=torch.int64)
        self.chain = slots[:, context:].reshape(-1)
        per_request = width * (context + width)
        self.mask_indptr = torch.arange(0, batch * per_request + 1, per_request, device="cuda")
        causal = torch.ones(width, width, device="cuda", dtype=torch.bool).tril()
        seen = torch.cat([torch.ones(width, context, device="cuda", dtype=torch.bool), causal], dim=1)
        self.mask = seen.to(torch.uint8).repeat(batch, 1, 1).view(-1)
        # as the decode kernel takes it: a row per token
        lengths = (context + torch.arange(1, width + 1, device="cuda")).repeat(batch)
        self.row_indptr = torch.zeros(batch * width + 1, **ints)
        self.row_indptr[1:] = lengths.cumsum(0)
        self.rows = torch.cat([slots[:, : context + i + 1] for i in range(width)], dim=1)
        self.rows = self.rows.reshape(-1).contiguous()
        self.splits = torch.empty(batch * width, **ints)
        get_num_kv_splits_triton[(1,)](
            self.splits, lengths.to(torch.int64), batch * width, 1, heads, kv_heads, MAX_SPLITS, CORES,
            MAX_NUM_SEQ=max(256, 1 << (batch * width - 1).bit_length()),
        )  # fmt: skip
        self.logits = torch.empty(batch * width, heads, MAX_SPLITS, self.value_dim, device="cuda")
        self.lse = torch.empty(batch * width, heads, MAX_SPLITS, device="cuda")
        self.extends = [
            (k[self.chain].contiguous(), v[self.chain].contiguous())
            for k, v in zip(self.keys, self.values, strict=True)
        ]

    def prefill_kernel(self, layer):
        k, v = self.extends[layer]
        extend_attention_fwd(
            self.q, k, v, self.out, self.keys[layer], self.values[layer], self.qo_indptr, self.prefix_indptr,
            self.prefix, self.mask, True, self.mask_indptr, self.width, 1.0, 1.0, self.scale,
        )  # fmt: skip

    def decode_kernel(self, layer):
        decode_attention_fwd(
            self.q, self.keys[layer], self.values[layer], self.out, self.row_indptr, self.rows, self.logits,
            self.lse, self.splits, MAX_SPLITS, self.scale, 1.0, 1.0, has_mla=self.kind == "mla",
        )  # fmt: skip

    def split_kernel(self, layer):
        k, v = self.extends[layer]
        ran = verify_splitkv_fwd(
            self.q, k, v, self.out, self.keys[layer], self.values[layer], self.qo_indptr, self.prefix_indptr,
            self.prefix, self.mask, True, self.mask_indptr, self.width, 1.0, 1.0, self.scale,
            max_bs=self.batch,
        )  # fmt: skip
        if not ran:
            raise RuntimeError("it does not serve this shape")

    def reference(self, requests=2):
        """The first requests of layer 0 in float32."""
        group, out = self.heads // self.kv_heads, []
        for r in range(min(requests, self.batch)):
            k = self.keys[0][self.slots[r]].float().repeat_interleave(group, dim=1)
            v = self.values[0][self.slots[r]].float().repeat_interleave(group, dim=1)
            q = self.q[r * self.width : (r + 1) * self.width].float()
            scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
            hidden = torch.ones(self.width, self.context + self.width, device="cuda", dtype=torch.bool)
            scores.masked_fill_(hidden.triu(self.context + 1), float("-inf"))
            out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        return torch.cat(out)


def milliseconds_a_layer(call, layers):
    """The median of seven replays of a graph of all layers."""
    for layer in range(layers):
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            call(layer)
    graph.replay()
    taken = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / layers)
    return statistics.median(taken)


def measure(kind, batch, context, width):
    problem = Problem(kind, batch, context, width)
    found = {"heads": kind, "batch": batch, "context": context, "width": width, "layers": problem.layers}
    right = problem.reference()
    for name in ("prefill_kernel", "decode_kernel", "split_kernel"):
        call = getattr(problem, name)
        try:
            problem.out.zero_()
            call(0)
            error = (problem.out[: right.shape[0]].float() - right).abs().max().item()
            found[name] = {"ms": milliseconds_a_layer(call, problem.layers), "largest_error": error}
        except Exception as error:  # noqa: BLE001 - one kernel that cannot must not end the table
            found[name] = {"failed": repr(error)[:300]}
    return found


def shapes():
    """In order of interest: depth 4 first, then the other widths, then MLA."""
    for kind in HEADS:
        for width in sorted(WIDTHS, key=lambda w: w != 5):
            for context in CONTEXTS:
                for batch in BATCHES:
                    if batch * context * HEADS[kind][1] * HEADS[kind][2] * 4 <= MAX_POOL_BYTES:
                        yield kind, batch, context, width


if __name__ == "__main__":
    end = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 120)
    with open(sys.argv[1], "w", encoding="utf-8") as file:  # noqa: PTH123
        for shape in shapes():
            if time.monotonic() > end:
                break
            torch.cuda.empty_cache()
            file.write(json.dumps(measure(*shape)) + "\n")
            file.flush()
