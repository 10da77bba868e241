"""docs/reliability.md and docs/security.md claim nothing without a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RELIABILITY = (ROOT / "docs/reliability.md").read_text()
SECURITY = (ROOT / "docs/security.md").read_text()


@cache
def names_in(file):
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")}


def rows():
    lines = [line for line in RELIABILITY.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| fault", "| ---", "| what", "| command"))]


FAULTS = [line for line in rows() if "::" in line]


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row[2:60])
def test_a_row_names_a_test_that_is_there(row):
    """The last column is `file::test`."""
    file, name = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.split("|")[-2].strip()).groups()
    assert name in names_in(file)


def test_every_fault_that_is_tested_has_a_row():
    """A test that is added to the suite is added to the table."""
    named = set(re.findall(r"::(test_\w+)", RELIABILITY))
    for file in ("test_wire.py", "test_every_await.py"):
        assert names_in(f"tests/faults/{file}") <= named
    assert len(FAULTS) >= 40


def test_every_claim_of_the_threat_model_has_its_test():
    """And every test of it is named there, but for those of single settings."""
    named = set(re.findall(r"`(test_\w+)`", SECURITY))
    assert named
    assert named <= names_in("tests/controller/test_security.py")
