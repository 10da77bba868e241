"""The image, built by a real container engine (podman), without reaching any registry of images.

Two things stand in for what a registry and an index give.  The base is Debian's Python 3.11 on nothing but
a shell, coreutils and libstdc++, made by mmdebstrap, in place of `python:3.12-slim-bookworm`.  The packages
come from a folder of wheels, as they would behind an air gap, so the build itself needs no network.

Whatever this machine cannot give raises `CannotError`: that is no fault of the image.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.tools import ToolMissingError, cache_folder, tool

ROOT = Path(__file__).parents[2]
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = "base-files,coreutils,dash,libc-bin,libstdc++6,python-is-python3,python3-venv"
BASE = "localhost/stand-in:bookworm"
MARK = "only-the-builder-may-see-this"
"""In the pip.conf of the build."""

LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""Podman asks for more than a sandbox may give."""
CONFINED = (
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all"),
    *("--security-opt=no-new-privileges", "--network=host", "--no-healthcheck"),
)
"""What the manifests' securityContext asks for; the network of a pod, shared with the engine."""


class CannotError(RuntimeError):
    """No container can be built or run on this machine, or what goes into one cannot be fetched."""


@dataclass(frozen=True, slots=True)
class Podman:
    """One container store in a folder of its own."""

    command: tuple[str, ...]

    def call(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run podman; its exit code is the caller's business."""
        command = [*self.command, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def ask(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """What podman prints; fails when it does."""
        done = self.call(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, (
            f"podman {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout.strip()

    def run(self, image: str, *command: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run `command` in a confined container of `image`, to its end."""
        return self.call("run", "--rm", *LIMITS, *CONFINED, *flags, image, *command)

    def start(self, image: str, *command: str, flags: tuple[str, ...] = ()) -> str:
        """Start a confined container; its id."""
        return self.ask("run", "--detach", *LIMITS, *CONFINED, *flags, image, *command)


@contextmanager
def podman() -> Iterator[Podman]:
    """A podman that holds the base and has run a container of it.  Raises `CannotError`."""
    folder = Path(tempfile.mkdtemp(prefix="specgov-image-"))
    engine = None
    try:
        base = _base()
        engine = _first_that_works(folder, base)
        yield engine
    except (ToolMissingError, subprocess.TimeoutExpired) as error:
        raise CannotError(str(error)) from error
    finally:
        if engine is not None:
            engine.call("rm", "--all", "--force", "--time", "1")
        shutil.rmtree(folder, ignore_errors=True)


def _first_that_works(folder: Path, base: Path) -> Podman:
    """By overlay, or, where that cannot be mounted, by copies."""
    reasons = []
    for driver in ("overlay", "vfs"):
        engine = Podman(_command(folder / driver, driver))
        engine.call("import", str(base), BASE, timeout_s=120)
        done = engine.run(BASE, "python", "--version")
        if done.returncode == 0:
            return engine
        reasons.append(f"{driver}: {done.stderr.strip()[-400:]}")
    raise CannotError(f"podman cannot run a container here: {'; '.join(reasons)}")


def _command(folder: Path, driver: str) -> tuple[str, ...]:
    """Runc: crun refuses the cgroups of hybrid hosts."""
    places = {"--root": "storage", "--runroot": "run", "--tmpdir": "tmp"}
    store = [part for flag, name in places.items() for part in (flag, str(folder / name))]
    return (str(tool("podman")), *store, "--storage-driver", driver, "--runtime", str(tool("runc")))


def _base() -> Path:
    """The root file system of the stand-in, made once.  Raises `CannotError`."""
    target = cache_folder() / f"stand-in-{SUITE}.tar"
    if not target.exists():
        part = target.with_suffix(".part.tar")
        merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
        make = [
            str(tool("mmdebstrap")),
            "--variant=extract",
            merged,
            f"--include={PACKAGES}",
            SUITE,
            str(part),
        ]
        _fetch(make)
        part.replace(target)
    return target


def wheels(folder: Path) -> None:
    """Everything that `pip install .[otel]` would fetch in the stand-in.  Raises `CannotError`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["otel"],
    ]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    _fetch([*pip, "--only-binary", ":all:", "--python-version", PYTHON, "--dest", str(folder), *wanted])


def _fetch(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise CannotError(f"{command[0]} failed with {done.returncode}: {done.stderr[-800:]}")


def build(engine: Podman, wheelhouse: Path, tag: str, extras: str = "") -> str:
    """The image of the Dockerfile, built without network; its name."""
    conf = wheelhouse.parent / "pip.conf"
    conf.write_text(f"# {MARK}\n[global]\nno-index = true\nfind-links = /wheels\n")
    name = f"localhost/specgov:{tag}"
    engine.ask(
        *(
            "build",
            "--pull-never",
            "--layers=false",
            "--network=none",
            "--format=docker",
            "--tag",
            name,
            *LIMITS,
        ),
        *("--build-arg", f"BASE={BASE}", "--build-arg", f"EXTRAS={extras}"),
        *("--secret", f"id=pip.conf,src={conf}", "--volume", f"{wheelhouse}:/wheels:ro", str(ROOT)),
        timeout_s=300,
    )
    return name
