"""An audit that asked nobody is no clean one."""

from __future__ import annotations

import sys

import pytest

from tests.releases.advisories import ask, judge

CLEAN = {"name": "httpx", "version": "0.28.1", "vulns": []}
BAD = {"name": "h11", "version": "0.14.0", "vulns": [{"id": "GHSA-vqfr", "fix_versions": ["0.16.0"]}]}
UNKNOWN = {"name": "rich", "skip_reason": "Dependency not found on PyPI and could not be audited: rich (1)"}
OWN = {"name": "specgov", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize("may_skip", [True, False])
@pytest.mark.parametrize(
    ("packages", "lines", "status"),
    [
        ([CLEAN, OWN], ["advisories: asked about 1 of 1 packages, 0 found"], 0),
        (
            [CLEAN, BAD, OWN],
            [
                "advisories: asked about 2 of 2 packages, 1 found",
                "  h11 0.14.0: GHSA-vqfr, mended in 0.16.0",
            ],
            1,
        ),
        (
            [CLEAN, UNKNOWN],
            ["advisories: asked about 1 of 2 packages, 0 found", "  not asked: rich"],
            0,
        ),
    ],
)
def test_a_finding_is_an_error_whether_or_not_it_may_skip(packages, lines, status, may_skip):
    """And what could not be asked is named."""
    assert judge({"dependencies": packages}, "", may_skip=may_skip) == (lines, status)


@pytest.mark.parametrize(("may_skip", "status"), [(True, 0), (False, 1)])
@pytest.mark.parametrize(
    ("report", "said", "why"),
    [
        ({"dependencies": [UNKNOWN, OWN]}, "", UNKNOWN["skip_reason"]),
        ({"dependencies": []}, "", "it was given no package"),
        (None, "Traceback\nConnectionError: no route\n", "ConnectionError: no route"),
        (None, "", "no answer"),
    ],
)
def test_an_audit_that_asked_nobody_says_so_and_passes_only_where_it_may(report, said, why, may_skip, status):
    """pip-audit itself ends with 0 when an index knows none of the packages."""
    line = f"advisories: not reachable, skipped ({why})"
    assert judge(report, said, may_skip=may_skip) == ([line], status)


@pytest.mark.parametrize(
    ("script", "report"),
    [("print('{\"dependencies\": []}'); raise SystemExit(1)", {"dependencies": []}), ("raise OSError", None)],
)
def test_the_report_counts_and_not_the_exit_status(tmp_path, script, report):
    """1 is a finding, and a network that is not there."""
    program = tmp_path / "pip-audit"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    assert ask(str(program), str(tmp_path))[0] == report
