"""The names that the hook touches, in the released sources of SGLang; nothing is imported or installed."""

import subprocess
import sys
import zipfile

import pytest

from sglang_hooks import compat
from tests.engine.environment import REMEDY, cache_folder


@pytest.fixture(scope="session")
def released_source():
    """Gives a reader of a release's sources, out of its wheel, which pip fetches once into the cache."""

    def reader(version):
        folder = cache_folder() / "wheels"
        pattern = f"sglang-{version}-*.whl"
        if not list(folder.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--dest", str(folder), f"sglang=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.fail(
                    f"the wheel of SGLang {version} could not be had; {REMEDY}\n{done.stderr}", pytrace=False
                )
        wheel = zipfile.ZipFile(next(folder.glob(pattern)))
        names = set(wheel.namelist())

        def read(module):
            base = module.replace(".", "/")
            for name in (f"{base}.py", f"{base}/__init__.py"):
                if name in names:
                    return wheel.read(name).decode()
            return None

        return read

    return reader


@pytest.mark.parametrize("version", compat.SUPPORTED)
@pytest.mark.parametrize(
    "targets", ["SCHEDULER_TARGETS", "HTTP_TARGETS", "REGISTRY_TARGETS", "PLAIN_DECODE_TARGETS"]
)
def test_a_supported_release_has_all_that_the_hook_touches(version, targets, released_source):
    """Every name with its parameters, in the source that was released."""
    assert compat.check(getattr(compat, targets), released_source(version)) == []


def test_the_check_can_fail(released_source):
    """A name that no release has is reported, so an empty answer means something."""
    gone = compat.Target("sglang.srt.managers.scheduler.Scheduler.no_such_method", ("self",))
    assert compat.check((gone,), released_source(compat.SUPPORTED[-1])) == [f"{gone.path} is missing"]
