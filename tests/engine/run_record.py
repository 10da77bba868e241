"""With `SPECGOV_RECORD_RUNS=FILE`, keeps how many engine tests passed on which release, per mode.

`tests/releases/runs.json` is such a file; docs/support.md shows it.  A session replaces the modes it ran.
"""

import json
import os
import re
from pathlib import Path

from tests.engine.environment import SGLANG

_COUNTS = {}
_PLUGIN = {}


def pytest_runtest_logreport(report):
    """Count each test once: by its call, or by a setup that failed."""
    if "tests/engine/" not in report.nodeid or not (report.when == "call" or report.failed):
        return
    mode = re.search(r"\[(\w+)", report.nodeid)
    counts = _COUNTS.setdefault(mode[1] if mode else "own servers", {"passed": 0, "failed": 0})
    if report.outcome in counts:
        counts[report.outcome] += 1
    _PLUGIN.update(dict(report.user_properties))


def pytest_sessionfinish():
    """Write what was counted."""
    path = os.environ.get("SPECGOV_RECORD_RUNS")
    if path and _COUNTS:
        file = Path(path)
        runs = json.loads(file.read_text()) if file.exists() else {}
        record = runs.get(SGLANG, {})
        merge(record, _COUNTS, _PLUGIN)
        runs |= {SGLANG: record} if record else {}
        file.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def merge(record, counts, plugin):
    """Take a session's counts into a release's record."""
    modes = {mode: count for mode, count in counts.items() if mode != "own servers"}
    if modes:
        record["cpu"] = record.get("cpu", {}) | modes
    if plugin:
        record["plugin"] = plugin
