"""The engine's own Python environment: the real SGLang on CPU, installed once into a cache folder."""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

INSTALLED = "0.5.23"
"""The release for which `requirements.txt` is written."""
SGLANG = os.environ.get("SPECGOV_ENGINE_SGLANG") or INSTALLED
"""The release to test."""
OLDER = ("transformers==5.12.1", "tokenizers==0.22.2")
"""What releases before 0.5.22 pin, and cannot be imported without."""
MAKERS = ("make_models.py", "make_other_drafts.py")
"""Scripts that write the models into a folder, in their order."""
HERE = Path(__file__).parent
REMEDY = "every test that needs no real SGLang runs with `make test-fast`"


class EngineUnavailableError(Exception):
    """The real SGLang cannot be had here; the message says why and what runs without it."""


def cache_folder():
    """Where the environment and the models are kept between runs: `SPECGOV_CACHE`, or `~/.cache/specgov`."""
    return Path(os.environ.get("SPECGOV_CACHE") or Path.home() / ".cache" / "specgov")


def engine_python(say=print):
    """The interpreter that has SGLang, installing it if need be (about two minutes, 3 GB).

    `SPECGOV_ENGINE_PYTHON` names one that has it already, `SPECGOV_ENGINE_SGLANG` another release than
    that of `requirements.txt`, which then replaces SGLang alone.  Raises `EngineUnavailableError`.
    """
    given = os.environ.get("SPECGOV_ENGINE_PYTHON")
    python = _checked(Path(given)) if given else _installed(say)
    return python if _release_of(python) == SGLANG else _overlaid(python, say)


def _installed(say):
    folder = cache_folder() / f"engine-{INSTALLED}-{_fingerprint('requirements.txt')}"
    with _Locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / ".complete").exists():
            _install(folder, say)
            (folder / ".complete").touch()
    return _checked(folder / "bin" / "python")


def _overlaid(python, say):
    """An environment with SGLang of the release to test, and with all else that `python` has."""
    beneath = _run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], "no site-packages"
    )
    folder = cache_folder() / f"release-{SGLANG}-{hashlib.sha256(beneath.encode()).hexdigest()[:10]}"
    with _Locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / ".complete").exists():
            say(f"installing SGLang {SGLANG} into {folder}, over {beneath}")
            _run([python, "-m", "venv", "--without-pip", "--clear", folder], "no environment")
            (own,) = folder.glob("lib/python*/site-packages")
            (own / "beneath.pth").write_text(beneath)
            pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", own]
            beside = OLDER if tuple(map(int, SGLANG.split(".")[:3])) < (0, 5, 22) else ()
            wheels = cache_folder() / "wheels"
            _run([*pip, "--find-links", wheels, f"sglang=={SGLANG}", *beside], f"no SGLang {SGLANG}")
            (folder / ".complete").touch()
    return _checked(folder / "bin" / "python")


def _release_of(python):
    ask = "import importlib.metadata as m; print(m.version('sglang'))"
    return _run([python, "-c", ask], f"{python} has no SGLang")


def models_folder(python):
    """The tiny models, made by the scripts `MAKERS` if need be."""
    folder = cache_folder() / f"models-{_fingerprint(*MAKERS)}"
    with _Locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / ".complete").exists():
            for maker in MAKERS:
                _run([python, HERE / maker, folder], "the models could not be made")
            (folder / ".complete").touch()
    return folder


def _install(folder, say):
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = (
        ("PyTorch and what SGLang needs on CPU", [*pip, "-r", HERE / "requirements.txt"]),
        (f"SGLang {INSTALLED}", [*pip, "--no-deps", f"sglang=={INSTALLED}"]),
    )
    say(f"installing the real SGLang into {folder} (once; about two minutes, 3 GB)")
    venv.create(folder, with_pip=True, clear=True)
    for what, command in steps:
        say(f"  {what} ...")
        _run(command, f"{what} could not be installed")


def _checked(python):
    _run([python, "-c", "import torch, sglang"], f"{python} has no SGLang")
    return python


def _run(command, failure):
    words, environment = [str(word) for word in command], {**os.environ, "PYTHONPATH": str(HERE / "stubs")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise EngineUnavailableError(f"{failure}; {REMEDY}\n{tail}")
    return done.stdout.strip()


def _fingerprint(*names):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    content = b"".join((HERE / name).read_bytes() for name in names)
    return hashlib.sha256(content + version.encode()).hexdigest()[:10]


class _Locked:
    """One installer at a time, also between processes."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def __enter__(self):
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self._file.close()
