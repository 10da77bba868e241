"""With `SPECGOV_RECORD_RUNS=FILE`, keeps how many engine tests passed on which release, per mode.

Tests that start servers of their own are counted by their file: `plain_decode` is those of
`test_plain_decode.py`.  `tests/releases/runs.json` is such a file; docs/support.md shows it.  A session
replaces what it ran.
"""

import json
import os
import re
from pathlib import Path

from tests.engine.environment import SGLANG
from tests.engine.server import MODES

_COUNTS = {}
_PLUGIN = {}


def pytest_runtest_logreport(report):
    """Count each test once: by its call, or by a setup that failed."""
    if "tests/engine/" not in report.nodeid or not (report.when == "call" or report.failed):
        return
    counts = _COUNTS.setdefault(label(report.nodeid), {"passed": 0, "failed": 0})
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


def label(nodeid):
    """Under which name a test is counted: the mode of its server, or its file."""
    mode = re.search(r"\[(\w+)", nodeid)
    return mode[1] if mode and mode[1] in MODES else re.search(r"test_(\w+)\.py", nodeid)[1]


def merge(record, counts, plugin):
    """Take a session's counts into a release's record, but for the plugin's, which has hooks to show."""
    shown = {name: count for name, count in counts.items() if name != "plugin_loads"}
    if shown:
        record["cpu"] = record.get("cpu", {}) | shown
    if plugin:
        record["plugin"] = plugin
