"""How a setup becomes a command: SGLang from a bundle on a GPU, or the real 0.5.23 on a CPU to try a plan."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kit.setups import Setup

HERE = Path(__file__).resolve().parent.parent
PRODUCT = HERE / "product"
"""Made by `stage.sh`: controller, policies, sglang_hooks and a dist-info that names the plugin."""

_RELEASE_ENV = {
    # the bundle has kernels that were built for the GPU machine's torch, not those that the release asks for,
    # and its own folder for what SGLang compiles
    "0.5.23": {"SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "SGLANG_JIT_CACHE_DIR": "{bundle}/jit"},
}
_MODEL_ARGS = {"deepseek": ("--moe-runner-backend", "triton")}
_MODEL_ENV = {
    # the router's Triton kernel; the other ones would be compiled from headers that the bundle leaves out
    "deepseek": {"SGLANG_OPT_USE_JIT_KERNEL_GROUPED_TOPK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
}
_NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
_SIDE_BY_SIDE = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
"""Servers that start at the same time fill the GPUs unevenly for a moment, which SGLang takes for a fault."""
CUSTOM_ALL_REDUCE = os.environ.get("CUSTOM_ALL_REDUCE", "0") == "1"
"""SGLang's own all-reduce over peer-to-peer memory (the older one, which knows no multicast) for NCCL's."""


def _tensor_parallel(ranks: int) -> tuple[str, ...]:
    """Flags for more than one rank: nothing that may use NVLink multicast, which not every host can bear."""
    own = () if CUSTOM_ALL_REDUCE else ("--disable-custom-all-reduce",)
    return ("--tp", str(ranks), *own, "--enforce-disable-flashinfer-allreduce-fusion")


class Engine(Protocol):
    """Where a plan runs."""

    pins_cpus: bool
    has_models: bool
    """Whether it serves models of its own, whatever a setup names."""

    def command(self, setup: Setup, port: int, out: Path) -> list[str]:
        """The server's arguments."""
        ...

    def environment(self, setup: Setup, out: Path) -> dict[str, str]:
        """The server's environment."""
        ...

    def concurrency(self, wanted: int) -> int:
        """What of a concurrency this engine can take."""
        ...


def _depths_file(setup: Setup, out: Path) -> list[str]:
    if not setup.depths:
        return []
    path = out / f"{setup.name}.depths.json"
    path.write_text(json.dumps({"1": {"candidate_steps": list(setup.depths)}}))
    return ["--speculative-adaptive-config", str(path)]


def _bench_environment(setup: Setup, out: Path) -> dict[str, str]:
    env = {"BENCH_NAME": setup.name, "BENCH_LOG_DIR": str(out / "steps"), "PYTHONUNBUFFERED": "1"}
    if setup.speculative and not setup.tokenizer and setup.acceptance >= 0:
        # the second is the gate that turns SGLang's simulation on; the plugin replaces what it does
        env |= {"BENCH_P": str(setup.acceptance), "SGLANG_SIMULATE_ACC_LEN": "2.0"}
    return env


@dataclass(frozen=True)
class GpuEngine:
    """SGLang from the unpacked bundle."""

    bundle: Path = Path(os.environ.get("SG", "/tmp/sg"))
    pins_cpus: bool = True
    has_models: bool = False

    @property
    def release(self) -> str:
        """That of the bundle; where none is unpacked, the one that `build_bundle.sh` takes by default."""
        found = next(self.bundle.glob("site/sglang-*.dist-info"), None)
        return "0.5.17" if found is None else found.name.removeprefix("sglang-").removesuffix(".dist-info")

    def command(self, setup: Setup, port: int, out: Path) -> list[str]:
        """`sglang.launch_server` with dummy weights."""
        graph = [str(b) for b in setup.graph_batch_sizes]
        args = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(HERE / "models" / setup.model),
        ]
        args += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--load-format",
            setup.load_format,
            "--context-length",
            "4096",
        ]
        args += ["--attention-backend", setup.attention, "--sampling-backend", "pytorch", "--enable-metrics"]
        # the pool in tokens, so that servers starting side by side do not size it from each other's memory
        args += ["--max-total-tokens", str(setup.kv_tokens), "--mem-fraction-static", "0.95"]
        args += ["--max-running-requests", "256", "--decode-log-interval", "40", "--log-level", "info"]
        args += [
            "--mm-feature-transport",
            "cpu",
            "--cuda-graph-bs-prefill",
            "128",
            "256",
            "512",
            "1024",
            "2048",
        ]
        args += ["--cuda-graph-max-bs-decode", graph[-1], "--cuda-graph-bs-decode", *graph]
        if setup.tokenizer:
            args += ["--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"]
        else:
            args += ["--skip-tokenizer-init", "--grammar-backend", "none"]
        if setup.speculative:
            args += ["--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "1"]
            args += ["--speculative-draft-model-path", str(HERE / "models" / setup.draft)]
        args += [*_MODEL_ARGS.get(setup.model, ()), *(_tensor_parallel(setup.tp) if setup.tp > 1 else ())]
        return [*args, *_depths_file(setup, out), *setup.args]

    def environment(self, setup: Setup, out: Path) -> dict[str, str]:
        """The bundle before the machine's own packages, and the plugins."""
        path = [
            self.bundle / "boot",
            *([PRODUCT] if setup.hook else []),
            self.bundle / "site",
            HERE / "plugin",
        ]
        env = dict(os.environ, CUDA_VISIBLE_DEVICES=setup.gpus, PYTHONPATH=":".join(map(str, path)))
        env |= {"TVM_FFI_CACHE_DIR": f"{self.bundle}/tvm", "TRITON_CACHE_DIR": f"{self.bundle}/triton"}
        env |= {k: v.format(bundle=self.bundle) for k, v in _RELEASE_ENV.get(self.release, {}).items()}
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if setup.attention == "flashinfer":
            # several depths at batch 256 overflow FlashInfer's own workspace
            env |= {"SGLANG_FLASHINFER_USE_PAGED": "1", "SGLANG_FLASHINFER_WORKSPACE_SIZE": str(2 << 30)}
        if setup.tp > 1:
            env |= _NO_MULTICAST | _SIDE_BY_SIDE | {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"}
        env |= _MODEL_ENV.get(setup.model, {})
        return env | _bench_environment(setup, out) | dict(setup.env)

    def concurrency(self, wanted: int) -> int:
        """All of it."""
        return wanted


@dataclass(frozen=True)
class CpuEngine:
    """SGLang 0.5.23 on a CPU (tests/engine) with a tiny model: proves a plan, says nothing about speed.

    `SPECGOV_CPU_VENV`, `SPECGOV_CPU_MODELS` and `SPECGOV_CPU_ENGINE` name its venv, models and the folder of
    launch.py and stubs.  Speculation is real there, not simulated: the first draft is right 7 times of 8.
    """

    pins_cpus: bool = False
    has_models: bool = True

    def command(self, setup: Setup, port: int, out: Path) -> list[str]:
        """launch.py lifts SGLang's own refusal of the overlap scheduler on a CPU."""
        venv, models, engine = (os.environ[f"SPECGOV_CPU_{k}"] for k in ("VENV", "MODELS", "ENGINE"))
        start = [f"{engine}/launch.py"] if setup.speculative else ["-m", "sglang.launch_server"]
        args = [f"{venv}/bin/python", *start, "--model-path", f"{models}/target", "--device", "cpu"]
        args += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enable-metrics"]
        args += ["--mem-fraction-static", "0.5", "--max-total-tokens", "8192", "--max-running-requests", "8"]
        args += ["--disable-cuda-graph", "--attention-backend", "torch_native"]
        if setup.speculative:
            args += ["--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"]
            args += ["--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "1"]
            args += ["--speculative-draft-model-path", f"{models}/draft"]
        if setup.tp > 1:
            args += ["--tp", str(setup.tp)]
        return [*args, *_depths_file(setup, out), *setup.args]

    def environment(self, setup: Setup, out: Path) -> dict[str, str]:
        """The stand-ins for CPU kernels, and the plugins."""
        path = [
            Path(os.environ["SPECGOV_CPU_ENGINE"]) / "stubs",
            *([PRODUCT] if setup.hook else []),
            HERE / "plugin",
        ]
        env = dict(
            os.environ, PYTHONPATH=":".join(map(str, path)), SGLANG_USE_CPU_ENGINE="1", TRITON_INTERPRET="1"
        )
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if setup.tp > 1:
            cpus = sorted(os.sched_getaffinity(0))
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[i % len(cpus)]) for i in range(setup.tp))
        env |= {
            k: v
            for k, v in _bench_environment(setup, out).items()
            if k not in ("BENCH_P", "SGLANG_SIMULATE_ACC_LEN")
        }
        return env | dict(setup.env)

    def concurrency(self, wanted: int) -> int:
        """Four at most: two cores."""
        return min(wanted, 4)


ENGINES = {"gpu": GpuEngine, "cpu": CpuEngine}
