"""The bundle of either SGLang release: what the build takes, and what servers get that run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kit import setups  # noqa: E402 - the path comes first
from kit.engines import GpuEngine  # noqa: E402


def unpacked(folder: Path, release: str) -> GpuEngine:
    """An engine on a bundle of that release."""
    (folder / "site" / f"sglang-{release}.dist-info").mkdir(parents=True)
    return GpuEngine(bundle=folder)


def test_a_server_runs_in_the_environment_that_its_bundles_release_needs(tmp_path):
    """0.5.23's bundle has not the kernels that it pins: SGLang's check is turned off there alone."""
    new, old = unpacked(tmp_path / "new", "0.5.23"), unpacked(tmp_path / "old", "0.5.17")
    assert (new.release, old.release, GpuEngine(bundle=tmp_path).release) == ("0.5.23", "0.5.17", "0.5.17")
    switch, cache = "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "SGLANG_JIT_CACHE_DIR"
    of_new, of_old = (engine.environment(setups.plain(), tmp_path) for engine in (new, old))
    assert (of_new[switch], of_new[cache]) == ("1", str(tmp_path / "new" / "jit"))
    assert switch not in of_old
    assert cache not in of_old


def test_a_release_without_a_folder_is_refused_by_name(tmp_path):
    """Before anything is downloaded; the releases that there are are named."""
    build = [str(HERE / "build_bundle.sh"), str(tmp_path)]
    done = subprocess.run(
        build, env={"PATH": "/usr/bin:/bin", "SGLANG": "0.5.99"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "SGLANG must be one of 0.5.17 0.5.23, got 0.5.99\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_a_release_pins_every_package_that_it_takes(release):
    """A bundle is the same whenever it is built."""
    folder = HERE / "releases" / release
    lines = (folder / "requirements.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert len(packages) > 30
    assert all(line.count("==") == 1 for line in packages)
    said = (folder / "release.sh").read_text()
    assert all(f"\n{name}=" in said for name in ("KERNEL", "FLASHINFER", "LEAVE_OUT", "ANY_TOKENIZERS"))
