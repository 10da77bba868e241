"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller import reference
from controller.conditions import Condition
from controller.errors import SettingsError
from controller.settings import Settings, load, nested
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
    assert "| `ttl_s` | number, at least 1, at most 2592000 |" in page
    assert "at least 1 character, at most 400 characters, one line, no control characters |" in page
    assert page.count("| `reason` | string, at most 400 characters") == 1, "the parameter of DELETE"


def settings_rows():
    """(dotted name, default, value, meaning) of every row of the page of settings."""
    section, rows = "", []
    for line in reference.settings_page().splitlines():
        if line.startswith("## "):
            section = found.group(1) + "." if (found := re.match(r"## `\[(.+)\]`", line)) else ""
        elif found := re.match(r"\| `(.+?)` \| `(.*?)` \| (.+?) \| (.+) \|$", line):
            rows.append((section + found.group(1), *found.groups()[1:]))
    return rows


LIMIT = re.compile(r"(above|at least|at most) ([\d.]+)\b(?! character)")


def beyond(value):
    """Numbers just outside of the range that the page gives."""
    for words, text in LIMIT.findall(value):
        limit, step = float(text), 1 if text.isdigit() else 0.001
        outside = {"above": limit, "at least": limit - step, "at most": limit + step}[words]
        yield int(outside) if outside == int(outside) else outside


@pytest.mark.parametrize("row", settings_rows(), ids=lambda row: row[0])
def test_the_range_that_the_page_gives_is_the_one_that_is_kept(row):
    """What lies just outside is refused by the setting's name; no number is without a range."""
    name, default, value, _ = row
    refused = list(beyond(value))
    assert refused or not re.match(r"[\d.]+$", default), f"{name} has no range"
    for number in refused:
        given = [number] if value.startswith("list") else number
        with pytest.raises(SettingsError, match=name.rpartition(".")[2]):
            load(None, nested({name: given}), {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine.put_timeout_s", "seconds, above 0, at most 86400"),
        ("engine.max_body_bytes", "bytes, at least 1024, at most 1073741824"),
        ("api.max_requests_per_s", "requests per second, above 0, at most 10000"),
        ("lease.holder", "text, at least 1 character, at most 128 characters, printable ASCII"),
        ("api.token", "text, kept secret"),
        ("api.token_file", "path"),
        ("log.level", "one of `debug`, `info`, `warning`, `error`"),
        ("dry_run", "`true` or `false`"),
        ("guards.dwell_up_s", "seconds, at least 0"),
        ("guards.verification.tolerance", "number, at least 0, at most 1"),
        ("policies.goodput.tpot_objective_s", "seconds, above 0"),
        ("policies.goodput.probe.bursts", "list of integers, each at least 4"),
        ("policies.fixed.gear", "one of `warm`, `cold`, `frozen`"),
        ("policies.threshold.off_at_queue_reqs", "requests, at least 1"),
    ],
)
def test_every_setting_says_unit_and_range(name, value):
    """One of each kind: seconds, bytes, rates, texts, secrets, choices, lists, shares."""
    assert {row[0]: row[2] for row in settings_rows()}[name] == value


@pytest.mark.parametrize("name", ["runbook.md", "faq.md"])
def test_settings_metrics_and_conditions_that_operators_are_sent_to_exist(name):
    """At three in the morning a name that is not there costs the night."""
    text, pages = (DOCS / name).read_text(encoding="utf-8"), reference.pages()
    sections = "|".join(Settings.model_fields)
    settings = re.findall(rf"`((?:{sections})\.[a-z_.]*[a-z])(?: =[^`]*)?`", text)
    assert [each for each in settings if each not in {row[0] for row in settings_rows()}] == []
    metrics = re.findall(r"specgov_[a-z_]+", text)
    assert [each for each in metrics if f"`{each}`" not in pages["metrics.md"]] == []
    conditions = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE) + re.findall(r"`! ([a-z_]+)`", text)
    assert [each for each in conditions if each not in set(Condition)] == []
    assert settings
    assert name == "faq.md" or (metrics and conditions)


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
