"""SGLang as it was released: its wheel, fetched once into the cache, and read without being installed."""

import subprocess
import sys
import zipfile

from tests.engine.environment import cache_folder


class NoWheelError(Exception):
    """The wheel of a release cannot be had; the message is pip's."""


class Wheel:
    """The sources in one release's wheel."""

    def __init__(self, version):
        """Fetch it if need be (15 to 25 MB).  Raises `NoWheelError`."""
        self.version = version
        self._zip = zipfile.ZipFile(_path(version))
        self._names = set(self._zip.namelist())

    def source(self, module):
        """The text of a dotted module; `None`: the release has no such module."""
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in self._names:
                return self._zip.read(name).decode()
        return None


def newest():
    """The newest release on the index.  Raises `NoWheelError`."""
    output = _pip("index", "versions", "sglang")
    return output.split("(", 1)[1].split(")", 1)[0]


def _path(version):
    folder, pattern = cache_folder() / "wheels", f"sglang-{version}-*.whl"
    if not list(folder.glob(pattern)):
        flags = ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        _pip("download", "--quiet", *flags, f"sglang=={version}")
    return next(folder.glob(pattern))


def _pip(*words):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoWheelError(done.stderr.strip())
    return done.stdout
