"""The table of releases in docs/support.md, made from what was recorded; pure but for reading the records.

`source.json` is what the released sources say (`python -m tests.releases` writes it), `runs.json` what ran:
`tests/engine/run_record.py` adds to it.  The table has no other source, so it claims no more than these.
"""

import dataclasses
import json
from pathlib import Path

from sglang_hooks.releases import PLAIN_DECODE, SUPPORTED, faults_of
from tests.engine.environment import INSTALLED

HERE = Path(__file__).parent
SOURCE, RUNS = HERE / "source.json", HERE / "runs.json"
PAGE = HERE.parents[1] / "docs" / "support.md"
BEGIN, END = "<!-- releases: begin, made by `python -m tests.releases` -->", "<!-- releases: end -->"
HEAD = (
    "release",
    "names: governing",
    "names: plain decoding",
    "plugin loads",
    "CPU engine",
    "GPU",
    "known faults",
)


def to_json(check):
    """A `SourceCheck` as it is kept."""
    return {name: list(mismatches) for name, mismatches in dataclasses.asdict(check).items()}


def page(text, source, runs):
    """`text` with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(source, runs)}\n{END}{after}"


def table(source, runs):
    """The markdown table: one row per supported release."""
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [_row(version, source[version], runs.get(version, {})) for version in SUPPORTED]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def current():
    """The page as it should be now."""
    return page(PAGE.read_text(), json.loads(SOURCE.read_text()), json.loads(RUNS.read_text()))


def _row(version, source, runs):
    return (
        version,
        _names(source["governing"]),
        _plain_decode(version, source["plain_decode"]),
        _loaded(runs.get("plugin")),
        _engine(version, runs.get("cpu", {})),
        _gpu(runs.get("gpu")),
        str(len(faults_of(version)) or "none"),
    )


def _names(mismatches):
    return f"{len(mismatches)} differ" if mismatches else "all there"


def _plain_decode(version, mismatches):
    used = "used" if version in PLAIN_DECODE else "not used"
    return f"{_names(mismatches)}; {used}"


def _loaded(run):
    if run is None:
        return "not run"
    return f"{run['hooks']} hooks applied" if run["hooks"] else f"no: {run['why']}"


def _engine(version, modes):
    said = ["all of `make test-engine`, at every run of CI"] if version == INSTALLED else []
    for mode, counts in sorted(modes.items()):
        failed = f", **{counts['failed']} failed**" if counts["failed"] else ""
        said.append(f"{mode}: {counts['passed']} passed{failed}")
    return "; ".join(said) or "not run"


def _gpu(run):
    return f"{run['hardware']}: [{run['what']}]({run['page']})" if run else "not run"
