"""Stands in for the GPU on a machine that has none: SGLang's questions are answered as an H200 would."""

from __future__ import annotations

import types


def pretend_h200() -> None:
    """Before SGLang is imported."""
    import torch  # noqa: PLC0415 - takes seconds

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 8
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H200"
    cuda.mem_get_info = lambda *_: (140 << 30, 141 << 30)
    properties = types.SimpleNamespace(
        total_memory=141 << 30, multi_processor_count=132, major=9, minor=0, name="NVIDIA H200"
    )
    cuda.get_device_properties = lambda *_: properties
