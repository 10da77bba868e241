"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.guided TARGET SECONDS [FOLDER]`.

Starts from `tests/fuzz/corpus/TARGET`; inputs that reach new code go to FOLDER (default: build/fuzz/TARGET),
one that crashes is left there and ends the run with an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["controller", "sglang_hooks", "prometheus_client", "tests.fuzz.targets"]
):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    """Fuzz until the time is over."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("build/fuzz") / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        "-max_len=8192",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    places = [f"-artifact_prefix={folder}/crash-", str(folder), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *flags, *places], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
