"""A real Prometheus for a test: scrapes given targets, answers queries, ends with the test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.ports import free_port
from tests.e2e.tools import tool

START_S = 20.0


class Prometheus:
    """Its query API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=10.0, trust_env=False)

    def query(self, expression: str, at_unix_s: float | None = None) -> list[dict[str, Any]]:
        """The instant vector of `expression`; fails on a query that Prometheus refuses."""
        parameters = {"query": expression, **({"time": at_unix_s} if at_unix_s is not None else {})}
        answer = self._http.get("/api/v1/query", params=parameters).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result = answer["data"]["result"]
        return list(result) if isinstance(result, list) and answer["data"]["resultType"] == "vector" else []

    def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        """The series of `expression` over a window of wall time."""
        parameters = {"query": expression, "start": start_s, "end": end_s, "step": step_s}
        answer = self._http.get("/api/v1/query_range", params=parameters).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        return list(answer["data"]["result"])

    def targets_up(self) -> dict[str, bool]:
        """Whether each job's last scrape succeeded."""
        return {each["metric"]["job"]: each["value"][1] == "1" for each in self.query("up")}

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str], rules: Path | None = None) -> Iterator[Prometheus]:
    """Scrape `targets` (job name to host:port) every second; evaluate `rules`."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        str(tool("prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = Prometheus(f"http://127.0.0.1:{port}")
        try:
            _wait(server, process, folder / "prometheus.log")
            yield server
        finally:
            server.close()
            process.terminate()
            process.wait(timeout=10)


def _wait(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"prometheus ended: {log.read_text()[-2000:]}"
        if server.ready():
            return
        time.sleep(0.1)
    raise AssertionError(f"prometheus is not ready after {START_S} s: {log.read_text()[-2000:]}")
