"""Pages that name tests as their proof."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("support.md", "field-reports.md")


def names_of_tests():
    """Names of all test functions."""
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in sources for name in re.findall(r"def (test_\w+)", text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page):
    """A proof that was renamed or deleted is no proof."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    assert named
    assert named - names_of_tests() == set()
