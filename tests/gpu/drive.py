"""Run a plan on the GPU machine (or on the CPU engine, to try it).

    drive.py PLAN.py OUT [--engine gpu|cpu] [--seconds 540]

OUT gets records.jsonl (everything found, as it was found), NAME.log and NAME.requests.jsonl per server,
steps/NAME.r<rank>.<n>.json, and DONE at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE / "plans"),
    str(HERE / "product" if (HERE / "product").is_dir() else HERE.parent.parent),
]

from kit.engines import ENGINES  # noqa: E402 - the path comes first
from kit.session import Kit  # noqa: E402


async def drive(plan: Path, out: Path, engine: str, seconds: float) -> None:
    """Run one plan to its end; a failure is journalled like any other finding."""
    kit = Kit(ENGINES[engine](), out, seconds)
    kit.record("plan", plan=plan.stem, engine=engine)
    try:
        async with kit.part(plan.stem):
            await runpy.run_path(str(plan))["run"](kit)
    finally:
        kit.say("ALL DONE")
        await kit.close()
        out.joinpath("DONE").write_text("1")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="gpu")
    parser.add_argument("--seconds", type=float, default=540.0)
    a = parser.parse_args()
    asyncio.run(drive(a.plan, a.out.resolve(), a.engine, a.seconds))


if __name__ == "__main__":
    main()
