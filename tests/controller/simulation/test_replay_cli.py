"""`specgov replay` from the outside: formats, bad input, JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from controller.cli import make_app
from tests.controller.simulation.test_arrivals import AZURE, BURSTGPT, MOONCAKE, OWN


@pytest.fixture(scope="module")
def app():
    return make_app()


def replay(app, tmp_path, text, *options, profile="h200_llama8b_fa3"):
    path = tmp_path / "trace"
    path.write_text(text)
    arguments = ["replay", "--profile", str(profile), "--arrivals", str(path), "--policy", "threshold"]
    return CliRunner().invoke(app, [*arguments, *options])


@pytest.mark.parametrize("text", [AZURE, BURSTGPT, MOONCAKE, OWN])
def test_every_format_is_replayed(app, tmp_path, text):
    """Two requests of 10 and 27 tokens, in each of the four formats."""
    result = replay(app, tmp_path, text, "--json")
    report = json.loads(result.stdout)
    assert report["arrivals"]["requests"] == 2
    policy = report["policies"]["threshold"]
    assert policy["requests"] == {"finished": 2, "unfinished": 0, "rejected": 0}
    assert policy["output_tokens"] == 37
    assert policy["regret"] >= 0
    assert set(report["baselines"]) == {"always_off", "depth_1", "depth_2", "depth_4"}


def test_bad_rows_are_told_and_counted(app, tmp_path):
    """On standard error by line, in the JSON by number; the rest is replayed."""
    result = replay(app, tmp_path, AZURE + "x,1,1\n", "--json", "--no-baselines")
    assert "1 bad row: line 4: TIMESTAMP is not a time, got 'x'" in result.stderr
    report = json.loads(result.stdout)
    assert report["arrivals"]["bad_rows"] == 1
    assert report["arrivals"]["first_bad_rows"] == ["line 4: TIMESTAMP is not a time, got 'x'"]
    assert report["baselines"] == {}


def test_strict_refuses_bad_rows(app, tmp_path):
    """Exit code 2, and the line."""
    result = replay(app, tmp_path, AZURE + "x,1,1\n", "--strict")
    assert result.exit_code == 2
    assert "line 4" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--acceptance", "2"), "acceptance must be probabilities 0..1"),
        (("--rate-scale", "0"), "rate_scale must be > 0"),
        (("--duration", "inf"), "--duration must be finite seconds > 0, got inf; leave it out"),
        (("--duration", "nan"), "--duration must be finite seconds > 0, got nan; leave it out"),
        (("--duration", "0"), "--duration must be finite seconds > 0, got 0; leave it out"),
        (("--duration", "-1"), "--duration must be finite seconds > 0, got -1; leave it out"),
        (
            ("--duration", "60", "--rate-scale", "1e9"),
            "are more than 2000000: lower --rate-scale or --duration",
        ),
        (("--policy", "clever"), "policy.name must be one of"),
        (("--plot", "x.doc"), "--plot must be a file .png, .svg, .pdf"),
    ],
)
def test_wrong_options_end_with_code_two_and_say_why(app, tmp_path, options, message):
    """Nothing is replayed with something else than was asked for."""
    result = replay(app, tmp_path, AZURE, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("text", ["when,what\n1,2\n", '{"when": 1}\n'])
def test_a_trace_of_no_known_format_is_told_which_there_are(app, tmp_path, text):
    """With what they are recognised by."""
    formats = "CSV with TIMESTAMP, ContextTokens, GeneratedTokens (azure) or CSV with Timestamp"
    found = replay(app, tmp_path, text)
    assert found.exit_code == 2
    assert formats in found.stderr


def test_a_trace_that_is_not_there_is_named_with_the_formats(app, tmp_path):
    """The option, the file, the system's own word for it."""
    nowhere = str(tmp_path / "none.csv")
    result = CliRunner().invoke(app, ["replay", "--profile", "h200_llama8b_fa3", "--arrivals", nowhere])
    assert result.exit_code == 2
    assert f"--arrivals must be a readable trace, got {nowhere}: No such file" in result.stderr
    assert "JSONL with timestamp, input_length, output_length (mooncake)" in result.stderr


def test_a_profile_that_is_not_there_or_not_good_is_named(app, tmp_path):
    """The shipped ones are listed; a bad one names the field."""
    assert "shipped profiles: " in replay(app, tmp_path, AZURE, profile="h100").stderr
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": 1, "step_ms": {"plain": {"1": -1}, "depth_1": {"1": 5}}}')
    result = replay(app, tmp_path, AZURE, profile=bad)
    assert result.exit_code == 2
    assert "step_ms.plain.1 must be a finite number > 0, got -1" in result.stderr


def test_a_warm_policy_has_learned_on_a_first_pass(app, tmp_path):
    """`--warm` is told in the report; a policy that does not learn is simply replayed."""
    report = json.loads(replay(app, tmp_path, AZURE, "--json", "--warm", "--no-baselines").stdout)
    assert report["warm"] is True


def test_people_get_a_table(app, tmp_path):
    """Policies above, baselines below, and what it was simulated from."""
    result = replay(app, tmp_path, AZURE)
    assert "threshold" in result.stdout
    assert "always_off" in result.stdout
    assert "Simulated from profile h200_llama8b_fa3" in " ".join(result.stdout.split())


def test_people_are_told_of_requests_that_could_not_be_served(app, tmp_path):
    """Both prompts are larger than a pool of one token: a table of dashes would say nothing."""
    told = " ".join(replay(app, tmp_path, AZURE, "--kv-tokens", "1").stdout.split())
    assert "2 of them larger than the KV pool (--kv-tokens), and never served" in told
