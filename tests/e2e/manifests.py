"""Strict schema checks of rendered Kubernetes objects: unknown fields are errors."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

import kubernetes_validate
import yaml

from tests.e2e.tools import tool

KUBERNETES_VERSIONS = ("1.29", "1.36")
"""The oldest with native sidecars on by default, and a recent one."""

OPERATOR_KINDS = ("PodMonitor", "PrometheusRule")


@cache
def _operator_models() -> ModuleType:
    sys.path.append(str(tool("operator-models")))
    return importlib.import_module("cloudcoil.models.prometheus_operator.v1")


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered multi-document YAML text; Raises on an empty rendering."""
    found = [document for document in yaml.safe_load_all(text) if document]
    assert found, "nothing was rendered"
    return found


def check(manifest: dict[str, Any]) -> None:
    """Raise unless `manifest` is valid by the schema of its kind."""
    kind = manifest["kind"]
    if kind in OPERATOR_KINDS:
        _check_operator_kind(manifest)
    elif kind == "LeaderWorkerSet":
        _check_leader_worker_set(manifest)
    else:
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def _check_operator_kind(manifest: dict[str, Any]) -> None:
    model = getattr(_operator_models(), manifest["kind"]).model_validate(manifest)
    known = model.model_dump(by_alias=True, exclude_unset=True, mode="json")
    _assert_nothing_dropped(manifest, known, manifest["kind"])


def _assert_nothing_dropped(given: Any, known: Any, at: str) -> None:
    """The models ignore what they do not know: a field that is gone afterwards was misspelt."""
    if isinstance(given, dict):
        for key, value in given.items():
            assert key in known, f"{at}.{key} is not a field of this kind"
            _assert_nothing_dropped(value, known[key], f"{at}.{key}")
    elif isinstance(given, list):
        for i, (left, right) in enumerate(zip(given, known, strict=True)):
            _assert_nothing_dropped(left, right, f"{at}[{i}]")


def _check_leader_worker_set(manifest: dict[str, Any]) -> None:
    """Its own few fields by hand; both pod templates by Kubernetes' schema."""
    assert manifest["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert set(manifest["spec"]) <= {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy"}
    template = dict(manifest["spec"]["leaderWorkerTemplate"])
    assert set(template) <= {"size", "leaderTemplate", "workerTemplate", "restartPolicy"}
    for part in ("leaderTemplate", "workerTemplate"):
        labels = {"app": part, **template[part].get("metadata", {}).get("labels", {})}
        pod = {**template[part], "metadata": {"labels": labels}}
        spec = {"selector": {"matchLabels": {"app": labels["app"]}}, "template": pod}
        check({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": part}, "spec": spec})


def pod_specs(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every pod spec in a workload, by the path of its template."""
    spec = manifest["spec"]
    if manifest["kind"] == "LeaderWorkerSet":
        return {
            part: spec["leaderWorkerTemplate"][part]["spec"] for part in ("leaderTemplate", "workerTemplate")
        }
    return {"template": spec["template"]["spec"]}


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Containers or volumes by their name; duplicates are errors."""
    named = {entry["name"]: entry for entry in entries}
    assert len(named) == len(entries), f"a name appears twice in {[entry['name'] for entry in entries]}"
    return named
