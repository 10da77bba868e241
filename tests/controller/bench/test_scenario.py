"""Scenario files, and what is wrong with them."""

import pytest

from controller.bench.scenario import InvalidScenarioError, Phase, parse_scenario


def test_a_phase_has_load_prompts_and_instruments():
    """Everything that a phase can say."""
    text = '[[phase]]\nname = "day"\nseconds = 60\nconcurrency = 8\n'
    text += 'prompts = "coding"\nstate = {"bench.p" = 0.4}\n'
    assert parse_scenario(text) == (Phase("day", 60.0, 8, "coding", {"bench.p": 0.4}),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"at least one \[\[phase\]\]"),
        ("phase = 3", r"at least one \[\[phase\]\]"),
        ("[[phase]", "must be TOML"),
        ("phase = [1, 2]", r"phase\[0\] must be a table, written as \[\[phase\]\], got 1"),
        ("foo = 1\n[[phase]]\nseconds = 1\nconcurrency = 1", r"hold nothing but \[\[phase\]\], got 'foo'"),
        ("[[phase]]\nseconds = 1e-9\nconcurrency = 1", r"seconds must be a number 0\.1 to 86400, got 1e-09"),
        ("[[phase]]\nseconds = nan\nconcurrency = 1", r"seconds must be a number 0\.1 to 86400, got nan"),
        ("[[phase]]\nseconds = true\nconcurrency = 1", r"seconds must be a number 0\.1 to 86400, got True"),
        ("[[phase]]\nseconds = 1\nconcurrency = 1.5", r"concurrency must be a whole number .* got 1\.5"),
        ('[[phase]]\nname = ""\nseconds = 1\nconcurrency = 1', r"name must be printable text, .* got ''"),
        ("[[phase]]\nname = 4\nseconds = 1\nconcurrency = 1", r"name must be printable text, .* got 4"),
        (
            '[[phase]]\nname = "a\\u001b[31m"\nseconds = 1\nconcurrency = 1',
            r"phase\[0\]\.name must be printable text, or left out, got 'a\\x1b\[31m'",
        ),
        (
            '[[phase]]\nname = "a"\nseconds = 1\nconcurrency = 1\n' * 2,
            r"phase\[1\]\.name must be its own: .* got 'a'",
        ),
        (
            "[[phase]]\nseconds = 1\nconcurrency = 1\nstate = {a = nan}",
            r"phase\[0\]\.state must map keys to finite numbers",
        ),
        ("[[phase]]\nseconds = 1\nconcurrency = 1\nprompts = 3", r"prompts must be a text, got 3"),
        (
            "[[phase]]\nseconds = 0\nconcurrency = 1",
            r"phase\[0\]\.seconds must be a number 0.1 to 86400, got 0",
        ),
        (
            "[[phase]]\nseconds = 1\nconcurrency = 0",
            r"phase\[0\]\.concurrency must be a whole number .* got 0",
        ),
        (
            "[[phase]]\nseconds = 1\nconcurrency = 5000",
            r"concurrency must be a whole number 1\.\.4096, got 5000",
        ),
        ("[[phase]]\nseconds = 1\nconcurrency = 1\nrate = 2", r"phase\[0\]\.rate must be one of"),
        (
            '[[phase]]\nseconds = 1\nconcurrency = 1\nstate = {a = "b"}',
            r"phase\[0\]\.state must map keys to finite numbers",
        ),
    ],
)
def test_faults_name_field_rule_and_value(text, message):
    """A fault can be mended from its message."""
    with pytest.raises(InvalidScenarioError, match=message):
        parse_scenario(text)


def test_a_phase_without_a_name_is_called_by_its_place():
    """So that it cannot be taken for a concurrency."""
    phase = "[[phase]]\nseconds = 1\nconcurrency = 1\n"
    assert [found.name for found in parse_scenario(phase * 2)] == ["phase 1", "phase 2"]
