"""What comes back from the GPU machine."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

LANES = Path(__file__).parent / "lanes.sh"


def collected(tmp_path: Path, *names: str, **env: str) -> tuple[str, dict[str, set[str]]]:
    """What `lanes.sh wait` says, and the files in each archive, with these among the results."""
    results, back = tmp_path / "o", tmp_path / "back"
    for name in ("DONE", "lanes.log", *names):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text("x")
    env |= {"PATH": os.environ["PATH"], "O": str(results), "OUT": str(back), "GPUS": "0"}
    said = subprocess.check_output(["bash", str(LANES), "wait", "0"], env=env, text=True, timeout=20)
    archives = {}
    for path in back.iterdir():
        with tarfile.open(path) as packed:
            archives[path.name] = {member.name for member in packed if member.isfile()}
    return said, archives


def test_waiting_packs_results_without_models_and_traces_apart(tmp_path):
    """A model that a plan leaves behind is larger than what can come back; a step may have any name."""
    said, archives = collected(
        tmp_path,
        "proof/results.json",
        "proof/m/model-1.safetensors",
        "proof/trace/C1/t.gz",
        "trace/results.json",
    )
    assert said.endswith("DONE\n")
    assert archives == {
        "o.tgz.00": {"o/DONE", "o/lanes.log", "o/proof/results.json", "o/trace/results.json"},
        "traces.tgz": {"o/proof/trace/C1/t.gz"},
    }


def test_traces_that_are_too_large_stay_behind_and_keep_nothing_else_from_coming(tmp_path):
    """An archive of one file has more than a byte."""
    said, archives = collected(tmp_path, "proof/trace/C1/t.gz", TRACES_B="1")
    assert "traces.tgz is too large" in said
    assert archives == {"o.tgz.00": {"o/DONE", "o/lanes.log"}}
