"""Stand-ins, in plain PyTorch, for the CPU kernels of `sgl_kernel` that a tiny Llama with EAGLE calls.

There is no wheel of `sgl_kernel` for CPU.  Each function does what SGLang's kernel of that name does
(Apache-2.0), for a chain of drafts (topk 1); any other name can be imported and raises when called.
Slow and simple: it is there to run SGLang's scheduler and worker, not to measure anything.
"""

import ctypes

import torch

__version__ = "0.0.0+specgov.tests"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in in tests/engine/stubs")

    return missing


def _rows(*tensors):
    return zip(*(tensor.tolist() for tensor in tensors), strict=True)


# Where requests keep their tokens


def assign_req_to_token_pool_cpu(requests, table, starts, ends, locations, _pool_length):
    at = 0
    for request, start, end in _rows(requests, starts, ends):
        table[request, start:end] = locations[at : at + end - start].to(table.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(requests, table, starts, ends, out, _pool_length):
    at = 0
    for request, start, end in _rows(requests, starts, ends):
        out[at : at + end - start] = table[request, start:end].to(out.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(requests, table, lengths, out, _pool_length, topk, steps):
    width = topk * steps
    for i, (request, length) in enumerate(_rows(requests, lengths)):
        out[i * width : (i + 1) * width] = table[request, length : length + width].to(out.dtype)


def copy_all_layer_kv_cache_cpu(pointers, row_bytes, targets, sources):
    for pointer, size in _rows(pointers, row_bytes):
        rows = [ctypes.string_at(pointer + source * size, size) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * size, row, size)


def build_draft_decode_metadata_cpu(table, requests, lengths, topk, steps, pool_length):
    out = torch.zeros((requests.numel() * topk, pool_length), dtype=table.dtype)
    for i, (request, length) in enumerate(_rows(requests, lengths)):
        for k in range(topk):
            out[i * topk + k, :length] = table[request, :length]
            end = min(steps, pool_length - length)
            first = length + k * steps
            out[i * topk + k, length : length + end] = table[request, first : first + end]
    return out


# Drafting and verifying


def rotate_input_ids_cpu(ids, starts, lengths, next_ids, select=None):
    last = next_ids.flatten().tolist()
    for i, (start, length) in enumerate(_rows(starts, lengths)):
        if length > 1:
            ids[start : start + length - 1] = ids[start + 1 : start + length].clone()
        ids[start + length - 1 if select is None else int(select[i])] = last[i]


def build_tree_kernel_efficient_cpu(
    _parents, _selected, lengths, mask, positions, index, next_token, _next_sibling, topk, _depth, nodes, mode
):
    if topk != 1:
        raise NotImplementedError(f"tests/engine/stubs builds chains only, got topk {topk}")
    mask, positions, index, next_token = (t.view(-1) for t in (mask, positions, index, next_token))
    seen = torch.ones(nodes, nodes, dtype=torch.bool).tril()
    at = 0
    for i, length in enumerate(lengths.tolist()):
        mine = slice(i * nodes, (i + 1) * nodes)
        positions[mine] = torch.arange(length, length + nodes)
        index[mine] = torch.arange(i * nodes, (i + 1) * nodes)
        next_token[i * nodes : (i + 1) * nodes - 1] = torch.arange(1, nodes)
        width = length + nodes if int(mode) == 0 else nodes  # 0: the mask covers the prefix too
        mask[at : at + nodes * width].view(nodes, width)[:, width - nodes :] = seen
        at += nodes * width


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    batch_size, nodes = candidates.shape
    said = target_predict.reshape(batch_size, nodes).flatten().tolist()
    rows = _rows(candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    for i, (tokens, indices, nexts, siblings) in enumerate(rows):
        last, node, count = indices[0], 0, 0
        accept_index[i, 0] = last
        while count + 1 < accept_index.shape[1]:
            node = nexts[node]
            while node != -1 and tokens[node] != said[last]:
                node = siblings[node]
            if node == -1:
                break
            predicts[last] = said[last]
            count, last = count + 1, indices[node]
            accept_index[i, count] = last
        accept_token_num[i] = count
        predicts[last] = said[last]


def fill_bonus_tokens_cpu(accept_tokens, accept_lengths, bonus, stride):
    count = accept_lengths.numel()
    at = torch.arange(count) * stride + accept_lengths.long() - 1
    bonus[:count] = accept_tokens.flatten()[at].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(accept_index, locations, out):
    at = accept_index.flatten()
    at = at[at > -1].long()
    out[: at.numel()] = locations[at].to(out.dtype)


# Attention


def _attend(queries, keys, values, slots, mask, scaling, cap):
    group = queries.shape[1] // keys.shape[1]
    keys = keys[slots].float().repeat_interleave(group, 1)
    values = values[slots].float().repeat_interleave(group, 1)
    weights = torch.einsum("qhd,khd->hqk", queries.float() * scaling, keys)
    if cap and cap > 0:
        weights = cap * torch.tanh(weights / cap)
    if mask is not None:
        weights = weights.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", weights.softmax(-1), values)


def decode_attention_cpu(
    q, keys, values, _k_scale, _v_scale, out, k, v, location, _logits, table, requests, lengths, scaling, cap,
    *_unused,
):  # fmt: skip
    if k is not None:
        keys[location] = k.reshape(-1, *keys.shape[1:]).to(keys.dtype)
        values[location] = v.reshape(-1, *values.shape[1:]).to(values.dtype)
    for i, (request, length) in enumerate(_rows(requests, lengths)):
        slots = table[request, :length].long()
        out[i : i + 1] = _attend(q[i : i + 1], keys, values, slots, None, scaling, cap).to(out.dtype)


def extend_attention_cpu(
    q, _k, _v, out, keys, values, _k_scale, _v_scale, table, requests, lengths, extends, starts, _longest,
    scaling, cap, _is_cross=False, _window=0, _encoder_lengths=None, _sinks=None, tree_mask=None,
    is_causal=True,
):  # fmt: skip
    out.zero_()
    at = 0
    for request, length, extend, start in _rows(requests, lengths, extends, starts):
        if extend == 0:
            continue
        mask = torch.ones(extend, length, dtype=torch.bool)
        if tree_mask is not None:
            tree = tree_mask.view(-1)[at : at + extend * extend].view(extend, extend)
            mask[:, length - extend :] = tree.bool()
            at += extend * extend
        elif is_causal:
            mask = mask.tril(length - extend)
        rows = slice(start, start + extend)
        slots = table[request, :length].long()
        out[rows] = _attend(q[rows], keys, values, slots, mask, scaling, cap).to(out.dtype)


def _with_scales(kernel, at):
    """`kernel` for SGLang before 0.5.20 too, which has no scales of keys and values to pass at `at`."""

    def called(*args):
        scales = (1.0, 1.0) if isinstance(args[at], torch.Tensor) else ()
        return kernel(*args[:at], *scales, *args[at:])

    return called


torch.ops.sgl_kernel.decode_attention_cpu = _with_scales(decode_attention_cpu, 3)
torch.ops.sgl_kernel.extend_attention_cpu = _with_scales(extend_attention_cpu, 6)
