"""`sglang.launch_server`, with SGLang's veto on the overlap scheduler lifted: on CPU it turns that off.

Runs inside the engine's own environment, and is imported again by every process that the server spawns.
"""

import os
import sys

import torch

# PyTorch refuses it for CPU tensors, which no stream uses; SGLang before 0.5.22 calls it for them.
torch.Tensor.record_stream = lambda _tensor, _stream: None

if __name__ == "__main__":
    import sglang.srt.arg_groups.speculative_hook as arguments

    arguments._disable_overlap_schedule_for_cpu = lambda server_args: None
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
