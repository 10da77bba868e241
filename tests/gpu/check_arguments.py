"""Parse the arguments of every server of every plan with the real SGLang:  check_arguments.py [PLAN ...]

Needs SGLang (a bundle's `site` on PYTHONPATH, `SG` naming the bundle, Python 3.12) and no GPU; servers are
described, not started.
Environment variables of the plans (ATTENTION=fa3 ...) apply.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import runpy
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE / "plans"),
    str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent),
]

from kit.engines import GpuEngine  # noqa: E402 - the path comes first
from kit.rehearsal import Rehearsal  # noqa: E402
from no_gpu import pretend_h200  # noqa: E402


class OnlyStarts(Rehearsal):
    """Collects what a plan starts; its other verbs do nothing, so that no time passes."""

    async def _nothing(self, *_: object, **__: object) -> None:
        return None

    alternate = load = stop_load = window = apply = acceptance = _nothing  # type: ignore[assignment]


async def commands(plan: Path) -> list[tuple[str, list[str]]]:
    """(name, command) of every server that the plan describes."""
    kit = OnlyStarts(GpuEngine(), Path(tempfile.mkdtemp()), 1e6, asyncio.get_running_loop().time)
    task = asyncio.ensure_future(runpy.run_path(str(plan))["run"](kit))
    await asyncio.wait([task], timeout=3)  # plans that loop in time have started their servers by then
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [(server.name, server.command) for server in kit.seen]


class AnyKernel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`sgl_kernel` loads CUDA libraries when imported; arguments need none of it."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only the kernels."""
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.split(".", maxsplit=1)[0] == "sgl_kernel"
            else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module that has every name."""
        module = mock.MagicMock()
        module.__path__, module.__name__, module.__spec__ = [], spec.name, spec
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def main() -> int:
    """The exit status is the number of servers whose arguments SGLang refuses."""
    pretend_h200()
    sys.meta_path.insert(0, AnyKernel())
    import sglang.srt.utils.common as common  # noqa: PLC0415 - the host, late

    common.get_nvgpu_memory_capacity = lambda: 143771
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415 - takes seconds

    wanted = sys.argv[1:] or sorted(p.stem for p in HERE.glob("plans/*.py"))
    bad = 0
    for plan in wanted:
        for name, command in asyncio.run(commands(HERE / "plans" / f"{plan}.py")):
            try:
                parsed = prepare_server_args(command[command.index("--model-path") :])
            except (Exception, SystemExit) as problem:  # noqa: BLE001 - the next one is worth a look too
                bad += 1
                print("REFUSED", plan, name, repr(problem)[:400])
            else:
                print(
                    "ok",
                    plan,
                    name,
                    parsed.attention_backend,
                    parsed.speculative_num_steps,
                    parsed.speculative_adaptive,
                )
    return bad


if __name__ == "__main__":
    sys.exit(main())
