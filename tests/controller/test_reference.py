"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller import reference
from controller.conditions import Condition
from controller.settings import Settings
from policies.types import Reason

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "api.md", "commands.md"])
def test_the_committed_page_is_what_the_code_makes(name):
    """Mend with: python -m controller.reference docs."""
    assert (DOCS / name).read_text(encoding="utf-8") == reference.pages()[name]


def test_the_rules_of_an_order_stand_in_the_reference():
    """Its limits are known before they are met."""
    page = reference.pages()["api.md"]
    assert "| `depth` | integer, at least 1, at most 64 |" in page
    assert "| `ttl_s` | number, above 0, at most 2592000 |" in page
    assert "at least 1 character, at most 400 characters, one line, no control characters |" in page
    assert page.count("| `reason` | string, at most 400 characters") == 1, "the parameter of DELETE"


def test_every_setting_metric_and_request_has_a_meaning():
    """No row of any table has an empty last column."""
    for name, text in reference.pages().items():
        empty = re.findall(r"^\|.*\|\s*\|$", text, re.MULTILINE)
        assert empty == [], name


def test_every_setting_reason_and_condition_is_in_the_pages():
    """Sections, reasons and conditions by name."""
    pages = reference.pages()
    for section in Settings.model_fields:
        assert f"`[{section}]`" in pages["settings.md"] or f"| `{section}` |" in pages["settings.md"]
    for word in (*Reason, *Condition):
        assert f"`{word}`" in pages["metrics.md"]
