"""Settings: sources, rules, and messages that name field, rule, value."""

from __future__ import annotations

import os

import pytest

from controller import settings as settings_module
from controller.errors import SettingsError


def load(flags=None, file=None, environ=None):
    return settings_module.load(file, settings_module.nested(flags or {}), environ or {})


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No SPECGOV_ variable of this shell."""
    for name in list(os.environ):
        if name.startswith("SPECGOV_"):
            monkeypatch.delenv(name)


def test_flags_beat_the_environment_which_beats_the_file(tmp_path, monkeypatch):
    """Three sources, three fields, each from the strongest that has it."""
    file = tmp_path / "specgov.toml"
    file.write_text('[engine]\nurl = "http://file:1"\n[lease]\nlease_s = 33\n[loop]\nperiod_s = 0.5\n')
    monkeypatch.setenv("SPECGOV_ENGINE__URL", "http://environment:2")
    monkeypatch.setenv("SPECGOV_LOOP__PERIOD_S", "0.25")
    settings = load({"engine.url": "http://flag:3"}, file)
    assert settings.engine.url == "http://flag:3"
    assert settings.loop.period_s == 0.25
    assert settings.lease.lease_s == 33


def test_policy_parameters_come_from_every_source(tmp_path, monkeypatch):
    """Tables in the file, JSON in the environment and in flags."""
    file = tmp_path / "specgov.toml"
    file.write_text("[policies.threshold]\nhysteresis_reqs = 2\nrows = [{ min_batch_size = 1, depth = 2 }]\n")
    monkeypatch.setenv("SPECGOV_POLICIES__FIXED__DEPTH", "1")
    rows = '[{"min_batch_size": 1, "depth": 3}, {"min_batch_size": 9, "depth": 0}]'
    settings = load({"policies.threshold.rows": rows}, file)
    assert settings.params_of("fixed").depth == 1
    params = settings.params_of("threshold")
    assert (params.hysteresis_reqs, [row.depth for row in params.rows]) == (2, [3, 0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policies.goodput.probe.bursts", "[4, 8]"),
        ("policies.goodput.probe", '{"bursts": [4, 8]}'),
        ("policies.goodput", '{"probe": {"bursts": [4, 8]}}'),
        ("policies", '{"goodput": {"probe": {"bursts": [4, 8]}}}'),
    ],
)
def test_a_flag_takes_json_at_every_depth_as_the_environment_does(monkeypatch, key, value):
    """A list inside of a policy's table of parameters is no exception."""
    assert load({key: value}).params_of("goodput").probe.bursts == (4, 8)
    monkeypatch.setenv("SPECGOV_" + key.upper().replace(".", "__"), value)
    assert load().params_of("goodput").probe.bursts == (4, 8)


def test_flags_for_one_table_add_up():
    """JSON for the table and single keys of it; a section may come as JSON too."""
    flags = {"policies.goodput.probe": '{"bursts": [4, 8]}', "policies.goodput.probe.share": "0.002"}
    probe = load(flags).params_of("goodput").probe
    assert (probe.bursts, probe.share) == ((4, 8), 0.002)
    assert load({"api.allowed_hosts": '["a.example"]'}).api.allowed_hosts == ("a.example",)
    assert load({"engine": '{"url": "http://flag:3"}'}).engine.url == "http://flag:3"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            {"policies.goodput.probe.bursts": "4"},
            r"^policies.goodput.probe.bursts: must be a list, such as \[1, 2\], got '4'$",
        ),
        ({"policies.goodput.probe.bursts": "[4, 8"}, r"must be a list, such as \[1, 2\], got '\[4, 8'$"),
        (
            {"api.allowed_hosts": "a.example"},
            r"^api.allowed_hosts: must be a list, such as .* got 'a.example'$",
        ),
        ({"policies.threshold.rows": "[4]"}, r"^policies.threshold.rows.0: must be a table: .*, got 4$"),
        (
            {"policies.goodput": "x"},
            "^policies.goodput: must be a table: give its keys one by one, or as JSON",
        ),
        ({"engine": "x"}, "^engine: must be a table: .*, got 'x'$"),
        ({"guards": "x"}, "^guards: must be a table: .*, got 'x'$"),
        (
            {"guards": "x", "guards.max_age_s": "1"},
            "^guards must be a table for guards.max_age_s to be set, got 'x'",
        ),
        ({"engine.ulr": "x"}, "engine.ulr is not a setting"),
        ({"engien.url": "x"}, "engien is not a setting"),
        ({"engine.url": "ftp://x"}, r"engine: url must be http://HOST\[:PORT\] or .*, got 'ftp://x'"),
        ({"engine.url": "http://user:pw@x"}, "url must have no user"),
        ({"engine.url": "http://x/v1"}, "url must have no user, path"),
        ({"engine.api_key": "a", "engine.api_key_file": "b"}, "only one of api_key, api_key_file may be set"),
        ({"policies.fixed.depth": -1}, "policies.fixed: depth must be >= 0 or left out, got -1"),
        ({"policies.fixed.deep": 1}, "policies.fixed.deep is not a setting"),
        ({"policies.clever.x": 1}, "policies.clever must be one of .*fixed, threshold, native"),
        ({"policy.name": "clever"}, "policy.name must be one of"),
        ({"policy.shadow": "clever"}, "policy.shadow must be one of"),
        ({"lease.lease_s": 5}, r"lease.lease_s must be above renew_deadline_s \(10\), got 5.0"),
        ({"lease.renew_deadline_s": 4}, r"lease.renew_deadline_s must be above .* \(4.1\), got 4.0"),
        ({"loop.inert_after_s": 5}, r"inert_after_s must be above confirm_within_s \(5.0\), got 5.0"),
        ({"guards.max_age_s": -1}, "guards: max_age_s must be > 0, got -1.0"),
        ({"guards.maximum": 1}, "guards.maximum is not a setting"),
        ({"api.port": "x"}, "api.port: .*got 'x'"),
        ({"api.protect_reads": True}, "protect_reads must be false without token"),
        ({"loop.period_s": float("nan")}, "loop.period_s"),
    ],
)
def test_what_breaks_a_rule_is_named(flags, says):
    """Field, rule and value in the message."""
    with pytest.raises(SettingsError, match=says):
        load(flags)


def test_secrets_are_not_in_messages():
    """Not even when they are wrong."""
    with pytest.raises(SettingsError) as caught:
        load({"api.token": ["hunter2"]})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(load({"api.token": "hunter2"}))


def test_an_environment_name_without_a_section_is_refused():
    """A typing error must not be ignored."""
    with pytest.raises(
        SettingsError, match="SPECGOV_ENGIN__URL must name one of the sections DRY_RUN, ENGINE"
    ):
        load(environ={"SPECGOV_ENGIN__URL": "x", "SPECGOV_FALLBACK": "native"})


@pytest.mark.parametrize("content", ["[engine", "\udcff"])
def test_a_file_that_is_not_toml_is_named(tmp_path, content):
    """And so is one that is not there."""
    file = tmp_path / "specgov.toml"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match=r"specgov\.toml must be TOML"):
        load(file=file)
    with pytest.raises(SettingsError, match=r"none\.toml must be a readable settings file"):
        load(file=tmp_path / "none.toml")


def test_the_database_is_named_after_the_engine(monkeypatch):
    """Two sidecars on one host for two engines do not meet."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert str(load({"engine.url": "http://h:30001"}).store_path) == "/state/specgov/h_30001.db"


def test_host_names_come_from_the_environment_as_a_json_list(monkeypatch):
    """Anything else is refused with the way to write it."""
    monkeypatch.setenv("SPECGOV_API__ALLOWED_HOSTS", '["a.example", "b.example"]')
    assert load().api.allowed_hosts == ("a.example", "b.example")
    monkeypatch.setenv("SPECGOV_API__ALLOWED_HOSTS", "a.example")
    with pytest.raises(SettingsError, match="must hold JSON, as SPECGOV_API__ALLOWED_HOSTS="):
        load()
