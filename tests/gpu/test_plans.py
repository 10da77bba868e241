"""Every plan of the GPU kit runs to its end without an engine, so that no GPU second is lost to a typo."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "plans")]

from kit.engines import GpuEngine  # noqa: E402 - the path comes first
from kit.rehearsal import Rehearsal  # noqa: E402

PLANS = sorted(path.stem for path in HERE.glob("plans/*.py"))


@pytest.mark.slow
@pytest.mark.looptime
@pytest.mark.parametrize("plan", PLANS)
async def test_plan_runs_to_its_end_within_its_time(plan, tmp_path):
    """A rehearsal in virtual time journals no failure and takes under 9 minutes, server starts aside."""
    loop = asyncio.get_running_loop()
    kit = Rehearsal(GpuEngine(), tmp_path, 540, loop.time)
    began_s = loop.time()
    async with kit.part(plan):
        await runpy.run_path(str(HERE / "plans" / f"{plan}.py"))["run"](kit)
    await kit.close()
    bad = [f["error"] for f in kit.failures() if "preflight" not in f.get("part", "")]
    assert bad == []
    assert loop.time() - began_s < 540
    assert kit.seen
