"""The container image: built, and run as the manifests run it.

Base and packages are stand-ins (see `containers.py`).  Run by `make image-check`, as root on Debian or
Ubuntu; no part of `make test`, since not every machine may run containers.
"""

import json
import os
import time
from contextlib import contextmanager

import httpx
import pytest

from tests.controller.test_otel import Collector
from tests.e2e.containers import BASE, MARK, build, podman, wheels
from tests.e2e.lone_engine import lone_engine
from tests.e2e.ports import free_port

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

DATA = "/var/lib/specgov"
HOOKS = "/opt/specgov-hooks"
OF_THE_BUILD = """
import importlib.util, json, os, shutil
print(json.dumps({
    "modules": [name for name in ("pip", "setuptools", "sglang", "torch", "pytest", "opentelemetry.sdk")
                if importlib.util.find_spec(name.partition(".")[0]) and importlib.util.find_spec(name)],
    "programs": [name for name in ("pip", "cc", "gcc", "make", "git") if shutil.which(name)],
    "files": [name for name in ("/src", "/etc/pip.conf", "/run/secrets")
              if os.path.exists(name)],
}))
"""
NOT_COMPILED = """
import importlib.util, pathlib
sources = list(pathlib.Path("/opt/specgov/lib").rglob("*.py"))
assert len(sources) > 500, len(sources)
for source in sources:
    compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
    flags = int.from_bytes(compiled.read_bytes()[4:8], "little") if compiled.exists() else None
    if flags != 1:  # 1: hash-based, and the source is not looked at
        print(source, flags)
"""


@pytest.fixture(scope="module")
def engine_of_containers():
    """Podman, with the base."""
    with podman() as engine:
        yield engine


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """What the build installs."""
    folder = tmp_path_factory.mktemp("build") / "wheels"
    folder.mkdir()
    wheels(folder)
    return folder


@pytest.fixture(scope="module")
def image(engine_of_containers, wheelhouse):
    """The image without extras."""
    return build(engine_of_containers, wheelhouse, "check")


@pytest.fixture(scope="module")
def described(engine_of_containers, image):
    """What the engine knows of the image."""
    return json.loads(engine_of_containers.ask("image", "inspect", image))[0]


@pytest.fixture(scope="module")
def server():
    """A simulated SGLang server on this machine."""
    with lone_engine() as engine:
        yield engine


class Sidecar:
    """One that runs in a container."""

    def __init__(self, containers, name, port):
        self.containers, self.name = containers, name
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path):
        return httpx.get(self.url + path, trust_env=False, timeout=10)

    def wait_for(self, path, condition, within_s=20.0):
        until = time.monotonic() + within_s
        while True:
            try:
                if condition(answer := self.get(path)):
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < until, self.containers.call("logs", self.name)
            time.sleep(0.1)

    def status(self, condition):
        return self.wait_for("/v1/status", lambda answer: condition(answer.json())).json()

    def command(self, *arguments):
        return self.containers.call("exec", self.name, *arguments)

    def stop(self):
        """SIGTERM; seconds until it had ended, and its exit code."""
        began = time.monotonic()
        self.containers.ask("stop", "--time", "20", self.name)
        took_s = time.monotonic() - began
        return took_s, self.containers.ask("inspect", self.name, "--format", "{{.State.ExitCode}}")


@contextmanager
def sidecar(containers, image, server, *flags):
    """`specgov run`, drafting two tokens, until the context ends."""
    port = free_port()
    settings = {"SPECGOV_API__PORT": port, "SPECGOV_URL": f"http://127.0.0.1:{port}"}
    environment = [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    run = ("run", "--engine", server.url, "--policy", "fixed", "--set", "policies.fixed.depth=2")
    name = containers.start(image, *run, flags=(*environment, *flags))
    try:
        running = Sidecar(containers, name, port)
        running.wait_for("/healthz", lambda answer: answer.status_code == 200)
        yield running
    finally:
        containers.call("rm", "--force", "--time", "1", name)


def governs(status):
    """The first answers may come before the first turn."""
    return status.get("lease", {}).get("state") == "held"


def test_the_image_says_who_runs_what_and_where_it_may_write(described):
    """A numbered user, for runAsNonRoot; the sidecar by default; one volume, one port; a licence."""
    config = described["Config"]
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == (["specgov"], ["run"])
    assert list(config["Volumes"]) == [DATA]
    assert list(config["ExposedPorts"]) == ["9470/tcp"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_nothing_of_the_build_is_left(engine_of_containers, image, described):
    """No installer, compiler, SGLang or extra; of the index that the build was given, no trace."""
    done = engine_of_containers.run(image, "-c", OF_THE_BUILD, flags=("--entrypoint", "python"))
    assert json.loads(done.stdout) == {"modules": [], "programs": [], "files": []}
    history = engine_of_containers.ask("history", "--no-trunc", "--format", "json", image)
    for text in (history, json.dumps(described)):
        assert "/opt/specgov" in text
        assert MARK not in text
        assert "wheels" not in text


def test_the_image_adds_little_to_its_base(engine_of_containers, described):
    """Measured: 110 MB, of which numpy is 74; at 140 something is in it that does not belong."""
    base = json.loads(engine_of_containers.ask("image", "inspect", BASE))[0]["Size"]
    added_mb = (described["Size"] - base) / 1e6
    print(f"base {base / 1e6:.0f} MB, added {added_mb:.0f} MB")
    assert 60 < added_mb < 140


def test_no_start_compiles_anything(engine_of_containers, image):
    """Every module has its bytecode, and is not compared with a source whose time a builder has set."""
    done = engine_of_containers.run(image, "-c", NOT_COMPILED, flags=("--entrypoint", "python"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_confined_sidecar_governs_hands_back_and_remembers(engine_of_containers, image, described, server):
    """Without root, capabilities or a writable file system; SIGTERM ends it; its volume outlives it."""
    volume = ("--volume", f"specgov-data:{DATA}")
    check = described["Healthcheck"]["Test"][1:]
    with sidecar(engine_of_containers, image, server, *volume) as running:
        server.generate(50)
        status = running.status(lambda status: governs(status) and status["effect"]["state"] == "applied")
        assert status["depth"]["in_use"] == {"depth": 2, "gear": "on"}
        assert status["conditions"] == []
        assert running.get("/readyz").status_code == 200
        assert 'specgov_lease_state{state="held"} 1.0' in running.get("/metrics").text
        assert running.command(*check).returncode == 0
        assert running.command("touch", "/opt/specgov/x", "/tmp/x").returncode == 1
        assert "CapEff:\t0000000000000000" in running.command("cat", "/proc/1/status").stdout
        order = running.command("specgov", "override", "off", "--ttl", "10m", "--reason", "incident 4711")
        assert order.returncode == 0, order.stdout + order.stderr
        assert server.state() == "governed"
        took_s, code = running.stop()
        assert (code, server.state()) == ("0", "fallback")
        assert took_s < 5
    with sidecar(engine_of_containers, image, server, *volume) as running:
        assert running.status(governs)["override"]["reason"] == "incident 4711"
        log = running.command("specgov", "decisions", "--kind", "override").stdout
        assert "incident 4711" in log.replace("\n", " ")


def test_the_health_check_fails_where_no_sidecar_answers(engine_of_containers, image, described):
    """Exit code 1 and the reason, which the container engine keeps."""
    program, *arguments = described["Healthcheck"]["Test"][1:]
    flags = ("--entrypoint", program, "--env", f"SPECGOV_API__PORT={free_port()}")
    done = engine_of_containers.run(image, *arguments, flags=flags)
    assert done.returncode == 1
    assert "/healthz: ConnectionRefusedError" in done.stderr


def test_without_a_volume_the_sidecar_governs_and_says_what_it_cannot_keep(
    engine_of_containers, image, server
):
    """A read-only file system all over: a condition with its path, no crash."""
    with sidecar(engine_of_containers, image, server, "--image-volume", "ignore") as running:
        status = running.status(lambda status: governs(status) and status["conditions"])
        (condition,) = status["conditions"]
        assert condition["condition"] == "store_degraded"
        assert f"Read-only file system: '{DATA}" in condition["message"]
        assert running.stop()[1] == "0"


@pytest.mark.parametrize(
    ("mode", "group", "flags"),
    [(0o777, 0, ()), (0o2770, 2000, ("--group-add", "2000"))],
    ids=["an emptyDir", "an emptyDir with fsGroup 2000"],
)
def test_the_hook_is_exported_into_a_volume_of_another_owner(
    engine_of_containers, image, tmp_path, mode, group, flags
):
    """As the init container does, and again after the pod's restart; then Python finds SGLang's plugin."""
    os.chown(tmp_path, 0, group)
    tmp_path.chmod(mode)
    flags = (*flags, "--volume", f"{tmp_path}:{HOOKS}")
    for _ in range(2):
        done = engine_of_containers.run(image, "export-hooks", HOOKS, flags=flags)
        assert done.returncode == 0, done.stderr
    found = (
        "from importlib.metadata import entry_points;"
        "(entry,) = entry_points(group='sglang.srt.plugins');"
        "print(entry.load().__module__, __import__('sglang_hooks').__file__)"
    )
    other = ("--entrypoint", "python", "--user", "1000:1000", *flags, "--env", f"PYTHONPATH={HOOKS}")
    seen = engine_of_containers.run(BASE, "-c", found, flags=other)
    assert seen.stdout.split() == ["sglang_hooks.plugin", f"{HOOKS}/sglang_hooks/__init__.py"], seen.stderr


def test_a_volume_that_cannot_be_written_is_said(engine_of_containers, image, tmp_path):
    """Root's alone: the folder, who tried, and code 2, so that the pod does not start half."""
    os.chown(tmp_path, 0, 0)
    tmp_path.chmod(0o755)
    flags = ("--volume", f"{tmp_path}:{HOOKS}")
    done = engine_of_containers.run(image, "export-hooks", HOOKS, flags=flags)
    assert done.returncode == 2
    assert f"FOLDER must be one that uid 65532 can write, got {HOOKS}: Permission denied" in done.stderr


def test_the_image_with_opentelemetry_sends_traces(engine_of_containers, wheelhouse, image, server):
    """EXTRAS=[otel]; the image without it says what is missing and ends with code 2."""
    wanted = ("--env", "SPECGOV_OTEL__ENABLED=true")
    refused = engine_of_containers.run(image, "run", flags=wanted)
    assert refused.returncode == 2
    assert "EXTRAS=[otel]" in refused.stderr
    otel = build(engine_of_containers, wheelhouse, "otel", "[otel]")
    collector = Collector()
    try:
        endpoint = ("--env", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.url}")
        with sidecar(engine_of_containers, otel, server, *wanted, *endpoint) as running:
            running.status(governs)
            assert running.stop()[1] == "0"
        assert collector.named("specgov.tick")
    finally:
        collector.close()
