"""The Helm chart, linted and rendered by the real helm and checked against Kubernetes' schemas."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e.manifests import by_name, check, objects, pod_specs
from tests.e2e.tools import tool

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "specgov"

EVERYTHING = {
    "image": {"repository": "registry.example/specgov", "tag": "1.2.3", "pullSecrets": ["pull"]},
    "token": {"value": "s3cret"},
    "sidecar": {"port": 9999, "settings": {"SPECGOV_POLICY__NAME": "goodput", "SPECGOV_DRY_RUN": True}},
    "fleetOverride": {"mode": "off", "reason": 'a "bad" kernel: x', "until": "2027-01-31T06:00:00Z"},
    "engine": {
        "enabled": True,
        "args": ["--model-path", "/models/m"],
        "adaptiveConfig": '{"candidate_steps": [0, 1, 3]}',
        "env": [{"name": "A", "value": "b"}],
        "volumes": [{"name": "models", "emptyDir": {}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "podLabels": {"team": "llm"},
        "podAnnotations": {"note": "x"},
    },
    "podMonitor": {"labels": {"release": "prometheus"}},
    "prometheusRule": {"labels": {"release": "prometheus"}},
    "dashboards": {"annotations": {"folder": "LLM"}},
    "networkPolicy": {"enabled": True},
}


def helm(*arguments, values=None):
    """Run helm; `values` go in as a file on standard input."""
    command = [str(tool("helm")), *arguments, *(["--values", "-"] if values is not None else [])]
    given = json.dumps(values) if values is not None else None
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def render(values):
    """Rendered objects by (kind, name)."""
    done = helm("template", "prod", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return {(each["kind"], each["metadata"]["name"]): each for each in objects(done.stdout)}


def test_the_chart_has_no_lint_finding():
    """`helm lint --strict`, with the defaults and with everything set."""
    for values in ({}, EVERYTHING):
        done = helm("lint", "--strict", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize(
    "values", [{}, {"engine": {"enabled": True}}, EVERYTHING], ids=["shared", "engine", "all"]
)
def test_every_rendered_object_is_valid(values):
    """No unknown field and no bad value, whatever is switched on."""
    for manifest in render(values).values():
        check(manifest)


def test_without_an_engine_only_what_the_fleet_shares_is_made():
    """No workload appears by surprise."""
    assert {kind for kind, _ in render({})} == {"PodMonitor", "PrometheusRule", "ConfigMap"}


def test_every_value_that_is_set_reaches_its_object():
    """Settings, token, override, engine flags and labels are where they belong."""
    found = render(EVERYTHING)
    pod = pod_specs(found["Deployment", "prod-specgov"])["template"]
    sidecar = by_name(pod["initContainers"])["specgov"]
    environment = {entry["name"]: entry.get("value") for entry in sidecar["env"]}
    assert sidecar["image"] == "registry.example/specgov:1.2.3"
    assert environment["SPECGOV_POLICY__NAME"] == "goodput"
    assert environment["SPECGOV_DRY_RUN"] == "true"
    assert environment["SPECGOV_API__PORT"] == "9999"
    assert found["Secret", "prod-specgov-token"]["stringData"] == {"token": "s3cret"}
    assert by_name(pod["volumes"])["specgov-secret"] == {
        "name": "specgov-secret",
        "secret": {"secretName": "prod-specgov-token"},
    }
    override = json.loads(found["ConfigMap", "prod-specgov-fleet"]["data"]["override.json"])
    assert override == EVERYTHING["fleetOverride"]
    engine = by_name(pod["containers"])["sglang"]
    assert engine["args"][-2:] == ["--model-path", "/models/m"]
    assert {"A", "PYTHONPATH", "SPECGOV_FALLBACK"} == set(by_name(engine["env"]))
    adaptive = found["ConfigMap", "prod-specgov-engine"]["data"]["adaptive.json"]
    assert json.loads(adaptive) == {"candidate_steps": [0, 1, 3]}
    assert found["PodMonitor", "prod-specgov"]["metadata"]["labels"]["release"] == "prometheus"
    spans = [
        (p["port"], p.get("endPort"))
        for rule in found["NetworkPolicy", "prod-specgov"]["spec"]["ingress"]
        for p in rule["ports"]
    ]
    assert spans == [(9999, None), (1, 9998), (10000, 65535)]


def test_settings_may_name_a_collector():
    """OpenTelemetry's own variables beside ours, and nobody else's."""
    settings = {"SPECGOV_OTEL__ENABLED": True, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    found = render({"engine": {"enabled": True}, "sidecar": {"settings": settings}})
    pod = pod_specs(found["Deployment", "prod-specgov"])["template"]
    environment = {
        entry["name"]: entry.get("value") for entry in by_name(pod["initContainers"])["specgov"]["env"]
    }
    assert environment["SPECGOV_OTEL__ENABLED"] == "true"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def test_the_chart_and_the_component_run_the_same_sidecar():
    """Container for container equal, image and pull policy aside: one cannot drift from the other."""
    component = yaml.safe_load((ROOT / "deploy" / "kustomize" / "sidecar" / "pod-template.yaml").read_text())
    theirs = component["spec"]["template"]["spec"]
    ours = pod_specs(render({"engine": {"enabled": True}})["Deployment", "prod-specgov"])["template"]
    for name, container in by_name(theirs["initContainers"]).items():
        rendered = dict(by_name(ours["initContainers"])[name])
        del rendered["imagePullPolicy"]
        assert {**rendered, "image": "specgov"} == container
    fleet = {"name": "specgov-fleet", "configMap": {"name": "prod-specgov-fleet", "optional": True}}
    for name, volume in by_name(theirs["volumes"]).items():
        assert by_name(ours["volumes"])[name] == (fleet if name == "specgov-fleet" else volume)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"imagee": {}}, "imagee"),
        ({"sidecar": {"port": "9470"}}, "port"),
        ({"sidecar": {"settings": {"policy": "goodput"}}}, "policy"),
        ({"fleetOverride": {"mode": "off"}}, "reason"),
        ({"fleetOverride": {"mode": "maybe", "reason": "x"}}, "mode"),
        ({"fleetOverride": {"mode": "off", "reason": "bad\nkernel"}}, "reason"),
        ({"fleetOverride": {"mode": "off", "reason": "x", "actor": "a\u202eb"}}, "actor"),
        ({"engine": {"fallback": "off"}}, "fallback"),
        ({"token": {"existingSecret": "", "value": ""}, "engine": {"enabled": True}}, "token.existingSecret"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, named):
    """The schema names the value; nothing is rendered."""
    done = helm("template", "prod", str(CHART), values=values)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_explained_and_in_the_schema():
    """The keys of values.yaml and of its schema are the same, and each top-level group has a comment."""
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load(text)
    assert set(values) == set(schema) - {"global"}
    for group, entries in values.items():
        if isinstance(entries, dict) and group != "fleetOverride":
            assert set(entries) == set(schema[group]["properties"]), group
    assert len(re.findall(r"# -- ", text)) >= 15
