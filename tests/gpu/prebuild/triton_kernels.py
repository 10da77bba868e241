"""Compile the Triton kernels of a Llama-8B server with EAGLE3 on SGLang 0.5.23 for Hopper, without a GPU.

    triton_kernels.py FOLDER

Fills FOLDER, which unpack.sh takes to $SG/triton there (SG=/tmp/sg, as everywhere in the kit).
Needs the bundle on PYTHONPATH, and the torch and triton of the GPU machine: Triton keys a kernel by its own
version and sources, so what is compiled here is found there.  SGLang's own functions are called with tensors
of the kit's shapes on the CPU, and Triton compiles what they would launch.  Says per kernel how many variants
there are and the most shared memory that one takes; ends with an error if one does not compile.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

sys.path.append(str(Path(__file__).resolve().parent.parent))
from no_gpu import pretend_h200

pretend_h200()

from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd  # noqa: E402 - after the stand-in
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd  # noqa: E402
from sglang.kernels.ops.attention.kv_indices import create_flashinfer_kv_indices_triton  # noqa: E402
from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton  # noqa: E402
from sglang.kernels.ops.attention.position import compute_position_triton  # noqa: E402
from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton  # noqa: E402
from sglang.kernels.ops.memory.small_copy import _small_copy_kernel  # noqa: E402
from sglang.kernels.ops.speculative import cache_locs, eagle  # noqa: E402
from sglang.kernels.ops.speculative.gather_spec_extras import gather_spec_extras  # noqa: E402
from sglang.kernels.ops.speculative.topk1 import draft_topk1_postprocess  # noqa: E402
from sglang.srt.mem_cache.allocation import assign_req_to_token_pool  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 232_448
"""Bytes that one block of an H200 may have."""
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTHS = (1, 2, 3, 5)
"""Tokens that a verify takes at depths 0, 1, 2, 4."""
HEADS, KV_HEADS, DIM, HIDDEN, DRAFT_VOCABULARY = 32, 8, 128, 4096, 32_000
SPLITS, MULTIPROCESSORS = 8, 132
POOL, CONTEXT = 257, 4104
B, I32, I64, F32 = torch.bfloat16, torch.int32, torch.int64, torch.float32
made: dict[str, dict[str, int]] = defaultdict(dict)
"""Kernel to the shared memory of each variant."""


class CompilesOnly:
    """Triton's driver for a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return HOPPER

    def get_current_device(self) -> int:
        """Any."""
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        """Any."""
        return 0

    def is_active(self) -> bool:
        """It is."""
        return True


def compile_instead_of_launching() -> None:
    """From now on a launch compiles, and is counted in `made`."""
    driver.set_active(CompilesOnly())
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        made[self.fn.__name__][kernel.hash] = kernel.metadata.shared
        return kernel

    JITFunction.run = compile_only


def new(*shape: int, dtype: torch.dtype = I64) -> torch.Tensor:
    """A tensor that nobody reads."""
    return torch.empty(shape, dtype=dtype)


def table() -> torch.Tensor:
    """SGLang's table of where requests keep their tokens."""
    return new(POOL, CONTEXT, dtype=I32)


def decode(rows: int) -> None:
    """A decode step, plain or of a chain's rows."""
    q, keys = new(rows, HEADS, DIM, dtype=B), new(999, KV_HEADS, DIM, dtype=B)
    decode_attention_fwd(
        q, keys, torch.empty_like(keys), torch.empty_like(q), new(rows + 1, dtype=I32), new(999),
        new(rows, HEADS, SPLITS, DIM, dtype=F32), new(rows, HEADS, SPLITS, dtype=F32), new(rows, dtype=I32),
        SPLITS, DIM**-0.5, 1.0, 1.0, use_pdl=True, page_size=1, uneven_batch=new(1, dtype=I32),
    )  # fmt: skip
    get_num_kv_splits_triton[(1,)](
        new(rows, dtype=I32), new(rows), rows, 1, HEADS, KV_HEADS, SPLITS, MULTIPROCESSORS,
        MAX_NUM_SEQ=max(256, triton.next_power_of_2(rows)), uneven_batch_ptr=new(1, dtype=I32),
    )  # fmt: skip
    create_flashinfer_kv_indices_triton[(rows, 1)](
        table(), new(rows), new(rows), new(rows + 1, dtype=I32), None, new(999), CONTEXT,
        ENTRY_PAGE_SIZE=1, TOKEN_BLOCK_PARALLEL=False, token_mapping=None,
    )  # fmt: skip


def extend(requests: int, width: int, *, masked: bool) -> None:
    """SGLang's own verify (masked), a prefill, the draft's extend."""
    tokens = requests * width
    q, k, keys = (
        new(n, heads, DIM, dtype=B) for n, heads in ((tokens, HEADS), (tokens, KV_HEADS), (999, KV_HEADS))
    )
    extend_attention_fwd(
        q, k, torch.empty_like(k), torch.empty_like(q), keys, torch.empty_like(keys), new(requests + 1),
        new(requests + 1, dtype=I32), new(999), new(999, dtype=torch.uint8) if masked else None, True,
        new(requests + 1) if masked else None, width, 1.0, 1.0, DIM**-0.5, page_size=1,
    )  # fmt: skip


def draft(requests: int, steps: int) -> None:
    """What the draft model's steps read, write and choose."""
    cache_locs.generate_draft_decode_kv_indices[(steps, requests, 1)](
        new(requests), table(), new(requests), new(steps, 9999), new(steps, POOL, dtype=I32), new(requests),
        CONTEXT, 9999, POOL, *(triton.next_power_of_2(n) for n in (requests, steps, requests)), 1,
    )  # fmt: skip
    for positions in (None, new(requests)):
        cache_locs.assign_draft_cache_locs_contiguous_func(
            new(requests), table(), new(requests), new(requests * steps), 1, steps, positions=positions
        )
    eagle.build_chain_tree(new(requests), new(requests, steps), new(requests))
    eagle.build_chain_tree(new(requests), new(requests, steps), new(requests), None, new(requests), table())
    for dtype in (B, F32):
        draft_topk1_postprocess(new(requests, DRAFT_VOCABULARY, dtype=dtype), new(requests))


def verified(requests: int, width: int) -> None:
    """What follows a verify."""
    predicted, accepted = new(requests * width, dtype=I32), new(requests, dtype=I32)
    for tokens in (0, width):
        eagle.prepare_verify_commit_outputs(
            predicted, new(requests, width, dtype=I32), accepted, new(requests), tokens
        )
    eagle.prepare_draft_extend_inputs(accepted, predicted, width)
    eagle.prepare_draft_extend_lengths(new(requests), width, 0)
    eagle.prepare_draft_extend_layout(new(requests), width, False)
    eagle.fill_bonus_tokens_func(predicted, accepted, new(requests, dtype=I32), width, requests)
    for positions in (None, new(requests, width)):
        cache_locs.assign_extend_cache_locs_uniform_func(
            new(requests), table(), new(requests), requests, width, "cpu", positions_out=positions
        )


def scheduled(requests: int) -> None:
    """What the scheduler does for a batch."""
    write_req_to_token_pool_triton[(requests,)](
        table(), new(requests), new(requests, dtype=torch.uint64), *(new(requests) for _ in range(3)),
        new(999), CONTEXT,
    )  # fmt: skip
    assign_req_to_token_pool[(requests,)](
        new(requests), table(), new(requests), new(requests), new(999), CONTEXT,
        triton.next_power_of_2(requests),
    )  # fmt: skip
    compute_position_triton(new(requests, dtype=I32), new(requests, dtype=I32), 999)
    gather_spec_extras(
        new(requests), new(POOL, 1, dtype=F32), new(POOL, 1), new(POOL), new(POOL, HIDDEN, dtype=B)
    )


def copied(buffers: int) -> None:
    """Inputs of a step into a graph's buffers, in one launch."""
    of_all = [(value,) * buffers for value in (32, 32, (0, 1), (0, 1), 64)]
    tensors = [tuple(new(32) for _ in range(buffers)) for _ in range(2)]
    _small_copy_kernel[(buffers, 1)](*tensors, *of_all, BLOCK=256)


def calls() -> list[tuple[Callable[..., None], dict[str, Any]]]:
    """Every function with its arguments."""
    drafting = [width for width in WIDTHS if width > 1]
    found: list[tuple[Callable[..., None], dict[str, Any]]] = [
        (extend, {"requests": 3, "width": 700, "masked": False})
    ]
    found += [(copied, {"buffers": n}) for n in (2, 3, 4, 5)]
    for n in BATCHES:
        found += [(decode, {"rows": n * width}) for width in WIDTHS]
        found += [(verified, {"requests": n, "width": width}) for width in WIDTHS]
        found += [(draft, {"requests": n, "steps": width - 1}) for width in drafting]
        found += [
            (extend, {"requests": n, "width": width, "masked": masked})
            for width in drafting
            for masked in (True, False)
        ]
        found.append((scheduled, {"requests": n}))
    return found


def slim(folder: Path, there: Path) -> None:
    """Keep of each kernel what a launch needs, under the paths that it will have as `there`."""
    for index in folder.glob("*/__grp__*.json"):
        children = json.loads(index.read_text())["child_paths"]
        for name in [name for name in children if not name.endswith((".cubin", ".json"))]:
            del children[name]
            (index.parent / name).unlink(missing_ok=True)
        paths = {name: str(there / index.parent.name / name) for name in children}
        index.write_text(json.dumps({"child_paths": paths}))


def main() -> int:
    """The exit status is the number of calls that failed."""
    folder = Path(sys.argv[1])
    triton.knobs.cache.dir = str(folder)
    compile_instead_of_launching()
    bad = 0
    for function, arguments in calls():
        try:
            function(**arguments)
        except Exception:  # noqa: BLE001 - the others are worth knowing too
            bad += 1
            print("FAILED", function.__name__, arguments, traceback.format_exc()[-1500:], flush=True)
    for name, variants in made.items():
        most = max(variants.values())
        bad += most > SHARED_MEMORY
        print(f"{name}: {len(variants)} variants, at most {most} bytes of shared memory")
    slim(folder, Path(os.environ.get("SG", "/tmp/sg")) / "triton")
    return bad


if __name__ == "__main__":
    sys.exit(main())
