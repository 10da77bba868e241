"""The compose file and what it mounts."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"


@pytest.fixture(scope="module")
def services():
    """Services by name."""
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


@pytest.mark.e2e
def test_the_compose_file_follows_the_specification():
    """Checked by check-jsonschema against the compose specification's own schema."""
    checker = Path(sys.executable).parent / "check-jsonschema"
    assert checker.exists(), "check-jsonschema is missing: pip install check-jsonschema"
    command = [str(checker), "--builtin-schema", "vendor.compose-spec", str(COMPOSE / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_is_mounted_is_there(services):
    """A missing file would be mounted as an empty folder."""
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    local = [mount for mount in mounts if mount.startswith(".")]
    assert len(local) >= 4
    for mount in local:
        assert (COMPOSE / mount).resolve().exists(), mount


def test_nothing_is_reachable_from_other_machines(services):
    """Every published port is bound to the loopback address."""
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)


def test_prometheus_scrapes_the_sidecar_on_its_port(services):
    """The target is the service and the port that it publishes."""
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    targets = {each["job_name"]: each["static_configs"][0]["targets"] for each in config["scrape_configs"]}
    port = services["specgov"]["ports"][0].rpartition(":")[2]
    assert targets["specgov"] == [f"specgov:{port}"]
