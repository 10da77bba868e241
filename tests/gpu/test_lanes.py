"""What comes back from the GPU machine."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

LANES = Path(__file__).parent / "lanes.sh"


def test_waiting_packs_results_and_neither_models_nor_traces(tmp_path):
    """A model that a plan leaves behind is larger than what can come back; a step may have any name."""
    results, back = tmp_path / "o", tmp_path / "back"
    for name in (
        "DONE",
        "lanes.log",
        "proof/results.json",
        "proof/m/model-1.safetensors",
        "proof/trace/t.json",
        "trace/results.json",
    ):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text("x")
    env = {"PATH": os.environ["PATH"], "O": str(results), "OUT": str(back), "GPUS": "0"}
    said = subprocess.check_output(["bash", str(LANES), "wait", "0"], env=env, text=True, timeout=20)
    assert said.endswith("DONE\n")
    with tarfile.open(back / "o.tgz.00") as packed:
        files = {member.name for member in packed if member.isfile()}
    assert files == {"o/DONE", "o/lanes.log", "o/proof/results.json", "o/trace/results.json"}
