"""The hook's switches in SGLang's environment."""

from __future__ import annotations

import pytest

from sglang_hooks.environment import switch


@pytest.mark.parametrize(
    ("text", "said"),
    [("1", True), ("on", True), (" Yes ", True), ("0", False), ("OFF", False), ("false", False), ("", None)],
)
def test_a_switch_is_understood_as_people_write_it(monkeypatch, text, said):
    """SPECGOV_PLAIN_DECODE=off turns it off as 0 does; empty is not set."""
    monkeypatch.setenv("SPECGOV_PLAIN_DECODE", text)
    assert switch("SPECGOV_PLAIN_DECODE") is said


def test_a_switch_that_is_not_there_says_nothing(monkeypatch):
    """Whoever asks has a default."""
    monkeypatch.delenv("SPECGOV_PLAIN_DECODE", raising=False)
    assert switch("SPECGOV_PLAIN_DECODE") is None


@pytest.mark.parametrize(("name", "in_doubt"), [("SPECGOV_PLAIN_DECODE", False), ("SPECGOV_DISABLE", True)])
def test_what_cannot_be_understood_is_said_and_taken_for_less(monkeypatch, caplog, name, in_doubt):
    """A typing error turns a part off, or the whole hook where the variable is the one that does."""
    monkeypatch.setenv(name, "0ff")
    assert switch(name, in_doubt=in_doubt) is in_doubt
    assert f"{name} must be 0 or 1, got '0ff'; taken as {int(in_doubt)}" in caplog.text
