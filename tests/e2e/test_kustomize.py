"""The Kustomize component, rendered by the real kubectl and checked against Kubernetes' schemas."""

import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from controller.cli import make_app
from tests.e2e.manifests import by_name, check, objects, pod_specs
from tests.e2e.tools import tool

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"


@pytest.fixture(scope="module")
def rendered():
    """The example, as kubectl would apply it: objects by (kind, name)."""
    command = [str(tool("kubectl")), "kustomize", str(KUSTOMIZE / "example")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(each["kind"], each["metadata"]["name"]): each for each in objects(done.stdout)}


GOVERNED = [
    ("Deployment", "llama", "template"),
    ("StatefulSet", "qwen", "template"),
    ("LeaderWorkerSet", "large", "leaderTemplate"),
]


def test_every_rendered_object_is_valid(rendered):
    """No unknown field and no bad value in any object, in Kubernetes 1.29 and 1.36."""
    for manifest in rendered.values():
        check(manifest)


def test_a_misspelt_field_is_found(rendered):
    """The check above can fail, for built-in and for custom kinds."""
    broken = copy.deepcopy(rendered["Deployment", "llama"])
    broken["spec"]["template"]["spec"]["initContainers"][0]["restartPolicyy"] = "Always"
    with pytest.raises(Exception, match="restartPolicyy"):
        check(broken)
    monitor = copy.deepcopy(rendered["PodMonitor", "specgov"])
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(AssertionError, match="intervall"):
        check(monitor)


@pytest.mark.parametrize(("kind", "name", "template"), GOVERNED)
def test_a_labelled_workload_gets_the_native_sidecar_and_keeps_its_own(rendered, kind, name, template):
    """Hook first, then the sidecar with restartPolicy Always; the engine's own settings stay."""
    pod = pod_specs(rendered[kind, name])[template]
    starts = by_name(pod["initContainers"])
    assert list(starts)[:2] == ["specgov-hooks", "specgov"]
    assert starts["specgov"]["restartPolicy"] == "Always"
    assert "restartPolicy" not in starts["specgov-hooks"]
    engine = by_name(pod["containers"])["sglang"]
    assert engine["image"] == "lmsysorg/sglang:v0.5.23"
    assert "--enable-metrics" in engine["args"]
    assert by_name(engine["env"])["PYTHONPATH"]["value"] == "/opt/specgov-hooks"


def test_lists_of_the_workload_are_merged_not_replaced(rendered):
    """Somebody's init containers, environment, ports and volumes are still there."""
    pod = pod_specs(rendered["Deployment", "llama"])["template"]
    engine = by_name(pod["containers"])["sglang"]
    assert "own-setup" in by_name(pod["initContainers"])
    assert "models" in by_name(pod["volumes"])
    assert by_name(engine["env"])["HF_HUB_OFFLINE"]["value"] == "1"
    assert {mount["mountPath"] for mount in engine["volumeMounts"]} == {
        "/models",
        "/etc/sglang",
        "/opt/specgov-hooks",
    }
    leader = pod_specs(rendered["LeaderWorkerSet", "large"])["leaderTemplate"]
    assert by_name(by_name(leader["containers"])["sglang"]["env"])["NCCL_DEBUG"]["value"] == "WARN"


def test_the_example_has_the_flags_and_the_file_that_engine_flags_makes(rendered, tmp_path):
    """What the documentation tells people to add is what the command prints today."""
    config = tmp_path / "adaptive.json"
    draft = ["--draft-model", "/models/llama-eagle3", "--config", str(config), "--json"]
    told = CliRunner().invoke(make_app(), ["engine-flags", "--depths", "0,1,2,4", *draft])
    flags = json.loads(told.stdout)["flags"]
    pod = pod_specs(rendered["Deployment", "llama"])["template"]
    given = by_name(pod["containers"])["sglang"]["args"]
    wanted = [flag.replace(" ", "=").replace(str(config), "/etc/sglang/adaptive.json") for flag in flags]
    assert [flag for flag in wanted if flag not in given] == []
    example = json.loads((KUSTOMIZE / "example" / "adaptive.json").read_text())
    assert example == json.loads(config.read_text())


def test_a_worker_node_gets_the_hook_but_no_sidecar(rendered):
    """All ranks run the hook; one process per engine decides."""
    worker = pod_specs(rendered["LeaderWorkerSet", "large"])["workerTemplate"]
    assert list(by_name(worker["initContainers"])) == ["specgov-hooks"]
    assert by_name(by_name(worker["containers"])["sglang"]["env"])["PYTHONPATH"]


def test_a_workload_without_the_label_is_left_alone(rendered):
    """No init container, no volume, no environment."""
    pod = pod_specs(rendered["Deployment", "bystander"])["template"]
    assert pod == {"containers": [{"name": "sglang", "image": "lmsysorg/sglang:v0.5.23"}]}


@pytest.mark.parametrize(("kind", "name", "template"), GOVERNED)
def test_our_containers_run_without_any_privilege(rendered, kind, name, template):
    """Non-root, read-only root, no capabilities, and every writable path is a volume of the pod."""
    pod = pod_specs(rendered[kind, name])[template]
    volumes = by_name(pod["volumes"])
    for container in by_name(pod["initContainers"]).values():
        if not container["name"].startswith("specgov"):
            continue
        security = container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "cpu" not in container["resources"].get("limits", {}), "throttling would stall the loop"
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes


def test_the_leader_gets_what_a_deployment_gets():
    """The two patch files hold the same pod, so that one cannot be mended without the other."""
    plain = yaml.safe_load((KUSTOMIZE / "sidecar" / "pod-template.yaml").read_text())
    grouped = yaml.safe_load((KUSTOMIZE / "sidecar" / "leaderworkerset.yaml").read_text())
    template = plain["spec"]["template"]
    parts = grouped["spec"]["leaderWorkerTemplate"]
    assert parts["leaderTemplate"] == template
    hook = [each for each in template["spec"]["initContainers"] if each["name"] == "specgov-hooks"]
    assert parts["workerTemplate"]["spec"]["initContainers"] == hook
    assert parts["workerTemplate"]["spec"]["containers"] == template["spec"]["containers"]


def test_the_network_policy_leaves_every_other_port_open(rendered):
    """Ports 1 to 65535 are covered without a gap; only the sidecar's is restricted."""
    guarded, rest = rendered["NetworkPolicy", "specgov"]["spec"]["ingress"]
    (port,) = [each["port"] for each in guarded["ports"]]
    spans = [(each["port"], each["endPort"]) for each in rest["ports"]]
    assert spans == [(1, port - 1), (port + 1, 65535)]
    assert "from" in guarded
    assert "from" not in rest
