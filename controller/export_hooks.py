"""Writes just the hook and its entry point into a folder, for a stock SGLang image to pick up.

SGLang finds plugins through installed entry points, and Python finds those in any folder on
`PYTHONPATH` that holds a `*.dist-info`.  So a shared volume and one environment variable are enough:
nothing is installed into the SGLang image, and none of its own packages can move.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import sglang_hooks

PACKAGE = "sglang_hooks"
ENTRY_POINTS = "[sglang.srt.plugins]\nspecgov = sglang_hooks.plugin:register\n"


def export_hooks(target: Path) -> list[Path]:
    """Write the hook into `target` (made when missing) and return the files written, sorted.

    What an earlier export left there is replaced; anything else in the folder is left alone.
    Raises `OSError` when the folder cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    _remove_earlier(target)
    source = Path(sglang_hooks.__file__).parent
    package = target / PACKAGE
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    info = _write_entry_point(target)
    return sorted(path for folder in (package, info) for path in folder.rglob("*") if path.is_file())


def _remove_earlier(target: Path) -> None:
    """An init container runs again when its pod restarts, maybe with another version."""
    for old in (target / PACKAGE, *target.glob("specgov-*.dist-info")):
        if old.exists():
            shutil.rmtree(old)


def _write_entry_point(target: Path) -> Path:
    version = sglang_hooks.__version__
    info = target / f"specgov-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: specgov\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return info
