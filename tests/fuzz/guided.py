"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.guided TARGET SECONDS [FOLDER]`.

Starts from the corpus of the target; inputs that reach new code go to FOLDER (default: build/fuzz/TARGET),
one that crashes is left there and ends the run with an error.  `TARGET --keep` puts them into the corpus.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["controller", "sglang_hooks", "prometheus_client", "tests.fuzz.targets"]
):
    from tests.fuzz.targets import CORPUS, FOUND, TARGETS, corpus, files

MAX_KEPT, MAX_KEPT_BYTES = 100, 2048
"""Of the inputs that were found, the shortest: they are replayed with every test run."""


def keep(name: str, folder: Path) -> None:
    """Put what was found into the corpus."""
    found = {file.read_bytes() for file in folder.iterdir()} - set(files(name).values())
    kept = sorted((data for data in found if len(data) <= MAX_KEPT_BYTES), key=lambda d: (len(d), d))[
        :MAX_KEPT
    ]
    lines = [base64.b64encode(data).decode() for data in kept]
    (CORPUS / name / FOUND).write_text("\n".join(lines) + "\n", encoding="ascii")


def main() -> None:
    """Fuzz until the time is over, or keep what was found."""
    name, folder = sys.argv[1], Path("build/fuzz") / sys.argv[1]
    if sys.argv[2] == "--keep":
        keep(name, folder)
        return
    seconds, folder = int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else folder
    folder.mkdir(parents=True, exist_ok=True)
    for data in corpus(name).values():
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    flags = [
        f"-max_total_time={seconds}",
        "-max_len=8192",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    places = [f"-artifact_prefix={folder}/crash-", str(folder)]
    atheris.Setup([sys.argv[0], *flags, *places], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
