"""Every plan of the GPU kit runs to its end without an engine, so that no GPU second is lost to a typo."""

from __future__ import annotations

import asyncio
import collections
import json
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


@pytest.mark.looptime
async def test_off_with_little_time_leaves_out_rounds_and_neither_sglangs_own_nor_the_timeline(
    tmp_path, monkeypatch
):
    """Of fifty rounds at C = 1 and 128 some fit into 150 s, each whole; the timeline comes after."""
    options = {
        "ROUNDS": "50",
        "LEVELS": "1,128",
        "GEARS": "off-cold",
        "PARTS": "speed,timeline",
        "TIMELINE": "128",
    }
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    loop = asyncio.get_running_loop()
    kit = Rehearsal(GpuEngine(), tmp_path, 150, loop.time)
    await runpy.run_path(str(HERE / "plans" / "plain_decode.py"))["run"](kit)
    await kit.close()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    labels = collections.defaultdict(set)
    for r in records:
        if r["kind"] == "window":
            labels[r["round"], r["C"]].add(r["label"])
    assert labels[0, 1] == labels[0, 128] == {"plain", "specgov/off-cold", "sglang/off-warm"}
    assert labels[1, 1] == labels[1, 128] == {"plain", "specgov/off-cold"}
    assert set(map(frozenset, labels.values())) == {frozenset(labels[0, 1]), frozenset(labels[1, 1])}
    assert any(r["kind"] == "left_out" and r["what"].startswith("round") for r in records)
    made = {path.name for path in (tmp_path / "trace").iterdir()}
    assert made == {"plain-C128", "specgov-off-cold-C128", "specgov-off-warm-C128"}
    assert loop.time() < 150
