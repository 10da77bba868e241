"""The exported folder is all that a stock SGLang image needs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import sglang_hooks
from controller.export_hooks import ENTRY_POINTS, export_hooks

ROOT = Path(__file__).parents[2]

FIND_PLUGIN = """
import importlib.metadata, importlib.util
(found,) = importlib.metadata.entry_points(group="sglang.srt.plugins", name="specgov")
print(found.value, importlib.util.find_spec("sglang_hooks").origin, found.dist.version)
"""


def run_with_pythonpath(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python that sees the standard library and `folder` only."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)


def test_a_python_with_the_folder_on_its_path_finds_the_plugin(tmp_path):
    """Entry point, module and version are seen through PYTHONPATH alone."""
    export_hooks(tmp_path / "hooks")
    done = run_with_pythonpath(tmp_path / "hooks", FIND_PLUGIN)
    assert done.returncode == 0, done.stderr
    origin = tmp_path / "hooks" / "sglang_hooks" / "__init__.py"
    assert done.stdout.split() == ["sglang_hooks.plugin:register", str(origin), sglang_hooks.__version__]


def test_the_exported_modules_need_neither_the_sidecar_nor_the_policies(tmp_path):
    """Only the hook is written: no module of the sidecar, no compiled cache."""
    written = export_hooks(tmp_path)
    folders = {path.relative_to(tmp_path).parts[0] for path in written}
    assert folders == {"sglang_hooks", f"specgov-{sglang_hooks.__version__}.dist-info"}
    assert not list(tmp_path.rglob("__pycache__"))
    done = run_with_pythonpath(tmp_path, "import sglang_hooks.schedule")
    assert done.returncode == 0, done.stderr


def test_exporting_again_replaces_an_older_version_and_nothing_else(tmp_path):
    """A restarted pod ends with exactly one version of the hook; foreign files stay."""
    for stale in ("specgov-0.0.1.dist-info", "sglang_hooks"):
        (tmp_path / stale).mkdir()
        (tmp_path / stale / "stale").write_text("old")
    (tmp_path / "other.txt").write_text("not ours")
    export_hooks(tmp_path)
    export_hooks(tmp_path)
    assert [p.name for p in tmp_path.glob("specgov-*")] == [f"specgov-{sglang_hooks.__version__}.dist-info"]
    assert not list(tmp_path.rglob("stale"))
    assert (tmp_path / "other.txt").read_text() == "not ours"


def test_the_entry_point_is_the_one_that_pip_would_install():
    """The exported entry point and the one in pyproject.toml are the same."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    ((group, (entry,)),) = [(g, list(e.items())) for g, e in declared.items()]
    assert f"[{group}]\n{entry[0]} = {entry[1]}\n" == ENTRY_POINTS
