"""Every alert fires when it should, and only then: proven by the real promtool and amtool."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from controller.conditions import Condition
from deploy.generate.__main__ import changed
from deploy.generate.alerts import ALERTS, CONDITION_ALERTS, WITHOUT_ALERT, Alert
from tests.e2e.tools import tool

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text):
    """`5m` in seconds."""
    return int(text[:-1]) * UNITS_S[text[-1]]


def series(name, values, **labels):
    """One input series of promtool."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {"instance": "a", **labels}.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def balances(against, compared, reference, error):
    """Counters that grow by so many tokens a minute."""
    grows = {"compared": compared, "reference": reference, "reference_error": error}
    return [
        series(f"specgov_{name}_tokens_total", f"0+{rate}x180", against=against)
        for name, rate in grows.items()
    ]


# name -> (series that fire, when; series that do not, when; labels of the firing alert). Minutes.
CASES = {
    "SpecgovDown": (
        [series("up", "1 0x30", job="ns/specgov")],
        8,
        [series("up", "1 0 0 1x30", job="ns/specgov")],
        8,
        {"job": "ns/specgov"},
    ),
    # the last turn was at 0 s; at 3 min it is 180 s old. In the second, turns go on.
    "SpecgovLoopStalled": (
        [series("specgov_last_tick_timestamp_seconds", "0x30")],
        3,
        [series("specgov_last_tick_timestamp_seconds", "0+60x30")],
        3,
        {},
    ),
    "SpecgovEngineRestarts": (
        [series("specgov_engine_restarts_total", "0 0 1 2 3x30")],
        12,
        [series("specgov_engine_restarts_total", "0 0 1 2 2x30")],
        12,
        {},
    ),
    # ends at 1200 s: nine minutes before at 11 min; fifteen minutes before at 5 min
    "SpecgovOverrideEnding": (
        [
            series("specgov_override_active", "1x30"),
            series("specgov_override_expiry_timestamp_seconds", "1200x30"),
        ],
        11,
        [
            series("specgov_override_active", "1x30"),
            series("specgov_override_expiry_timestamp_seconds", "1200x30"),
        ],
        5,
        {},
    ),
    "SpecgovOverrideForgotten": (
        [series("specgov_override_active", "1x1500")],
        1441,
        [series("specgov_override_active", "1x1400 0 1x100")],
        1441,
        {},
    ),
    # 1000 tokens a minute against 1200, error 10: (1200 - 1000 - 20) / 1200 = 15 %; with error 60: 6.7 %
    "SpecgovRegretHigh": (
        balances("best_measured", 1000, 1200, 10),
        120,
        balances("best_measured", 1000, 1200, 60),
        120,
        {"against": "best_measured"},
    ),
    # (1100 - 1000 - 20) / 1100 = 7.3 %; always off would have been slower
    "SpecgovWorseThanOff": (
        balances("always_off", 1000, 1100, 10),
        120,
        balances("always_off", 1000, 900, 10),
        120,
        {"against": "always_off"},
    ),
}


def condition_case(alert, condition):
    """Fires once the condition has held for `for`, not before, and not while it is off."""
    hold = seconds(alert.hold) // 60
    on = series("specgov_condition", "1x200", condition=condition)
    off = series("specgov_condition", "0x200", condition=condition)
    brief = series("specgov_condition", f"0 1x{max(0, hold - 1)} 0x100", condition=condition)
    return on, hold + 1, [off, brief] if hold else [off], hold + 2


def rendered(alert, labels):
    """Annotations as Prometheus fills them in."""
    return {
        key: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found.group(1)], text)
        for key, text in alert.to_rule()["annotations"].items()
    }


def expectation(alert: Alert, at_min, labels=None):
    """What promtool compares with; no labels: nothing fires."""
    fires = []
    if labels is not None:
        seen = {"instance": "a", **labels}
        fires = [
            {"exp_labels": {"severity": alert.severity, **seen}, "exp_annotations": rendered(alert, seen)}
        ]
    return [{"eval_time": f"{at_min}m", "alertname": alert.name, "exp_alerts": fires}]


def unit_tests(only=None):
    """promtool's test file: for every alert (or only one) at least one firing and one silent case."""
    chosen = [alert for alert in ALERTS if only in (None, alert.name)]
    tests = []
    for alert in chosen:
        if alert.name not in CASES:
            continue
        fires, fires_at, silent, silent_at, labels = CASES[alert.name]
        tests.append(
            {"interval": "1m", "input_series": fires, "alert_rule_test": expectation(alert, fires_at, labels)}
        )
        tests.append(
            {"interval": "1m", "input_series": silent, "alert_rule_test": expectation(alert, silent_at)}
        )
    pairs = [(each, alert) for conditions, alert in CONDITION_ALERTS.items() for each in conditions]
    for condition, alert in pairs:
        if alert in chosen:
            on, on_at, silent, silent_at = condition_case(alert, str(condition))
            fires = expectation(alert, on_at, {"condition": str(condition)})
            tests.append({"interval": "1m", "input_series": [on], "alert_rule_test": fires})
            tests += [
                {"interval": "1m", "input_series": [each], "alert_rule_test": expectation(alert, silent_at)}
                for each in silent
            ]
    return {"rule_files": [str(MONITORING / "rules.yaml")], "evaluation_interval": "1m", "tests": tests}


def promtool(*arguments):
    """Run promtool."""
    return subprocess.run([str(tool("promtool")), *arguments], capture_output=True, text=True, check=False)


def test_the_generated_files_are_what_the_code_makes():
    """Regenerate = no difference."""
    assert changed() == [], "run: python -m deploy.generate"


@pytest.mark.e2e
def test_promtool_accepts_the_rules():
    """Syntax and expressions."""
    done = promtool("check", "rules", str(MONITORING / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout


def test_every_alert_has_a_case():
    """No alert without a unit test."""
    covered = set(CASES) | {alert.name for alert in CONDITION_ALERTS.values()}
    assert covered == {alert.name for alert in ALERTS}


def test_every_condition_has_an_alert_or_a_reason_to_have_none():
    """The closed list of conditions is covered."""
    alerted = {condition for conditions in CONDITION_ALERTS for condition in conditions}
    assert alerted | set(WITHOUT_ALERT) == set(Condition)
    assert not alerted & set(WITHOUT_ALERT)


@pytest.mark.e2e
def test_every_alert_fires_when_it_should_and_only_then(tmp_path):
    """promtool's own unit tests, a firing and a silent case for each."""
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(unit_tests(), sort_keys=False))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.e2e
def test_the_unit_tests_can_fail(tmp_path):
    """A rule with another threshold is found."""
    rules = (MONITORING / "rules.yaml").read_text()
    assert "> 2.5" in rules
    (tmp_path / "rules.yaml").write_text(rules.replace("> 2.5", "> 3.5"))
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({**unit_tests("SpecgovEngineRestarts"), "rule_files": [str(tmp_path / "rules.yaml")]})
    )
    done = promtool("test", "rules", str(file))
    assert done.returncode != 0
    assert "SpecgovEngineRestarts" in done.stdout + done.stderr


@pytest.mark.e2e
def test_alertmanager_accepts_the_example_and_routes_by_severity():
    """amtool checks the file and says who gets what."""
    config = str(MONITORING / "alertmanager-example.yaml")
    amtool = str(tool("amtool"))
    done = subprocess.run([amtool, "check-config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for severity, receiver in (("critical", "pager"), ("warning", "chat"), ("info", "nobody")):
        labels = ["alertname=SpecgovInert", f"severity={severity}"]
        route = [amtool, "config", "routes", "test", f"--config.file={config}", *labels]
        routed = subprocess.run(route, capture_output=True, text=True, check=False)
        assert routed.stdout.strip() == receiver, routed.stderr


def test_what_wakes_somebody_stands_first_in_the_runbook():
    """The alerts of severity critical, and their number in the page's introduction."""
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    now = runbook.partition("\n## Look now\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (\w+)$", now, re.MULTILINE)
    assert sorted(headings) == sorted(alert.name for alert in ALERTS if alert.severity == "critical")
    assert len(headings) == 5
    assert "The five under *Look now*" in runbook


def test_every_alert_has_a_runbook_entry_and_every_entry_an_alert():
    """The anchor in the annotation leads somewhere, and nothing in the runbook is stale."""
    headings = re.findall(r"^### (Specgov\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(alert.name for alert in ALERTS)
