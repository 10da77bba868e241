"""A stock SGLang server is governed with nothing but an exported folder on its PYTHONPATH."""

import os
import time

import httpx
import pytest

from controller.export_hooks import export_hooks
from tests.engine.server import HERE, Server


@pytest.fixture(scope="module")
def exported_server(engine, tmp_path_factory):
    """SGLang as it is; on its path are only the stand-ins for GPU packages and the exported folder."""
    folder = tmp_path_factory.mktemp("exported")
    export_hooks(folder / "hooks")
    paths = os.pathsep.join(map(str, (HERE / "stubs", folder / "hooks")))
    server = Server("sync", *engine, folder, environment={"PYTHONPATH": paths}).start()
    yield server
    server.stop()


def test_the_exported_hook_governs_a_stock_server(exported_server):
    """It answers, is in control, takes a plan, and the depth in use follows."""
    with httpx.Client(base_url=exported_server.url, timeout=30, trust_env=False) as http:
        state = http.get("/speculation").raise_for_status().json()
        assert state["controllable"], state["reason"]
        assert state["built_depths"] == [0, 1, 2, 3]
        plan = {
            "schedule": [{"min_batch_size": 1, "depth": 1}],
            "lease_s": 60,
            "sequence": 1,
            "holder": "test",
        }
        answer = http.put("/speculation", json=plan)
        assert answer.status_code == 200, answer.text
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 24, "temperature": 0}}
        assert http.post("/generate", json=body).status_code == 200
        time.sleep(0.5)
        (rank,) = http.get("/speculation").json()["telemetry"]
        assert rank["depth"] == 1
        assert http.delete("/speculation").json()["state"] == "fallback"


def test_the_log_shows_no_error_of_ours(exported_server):
    """The plugin came from the exported folder and was not complained about."""
    log = exported_server.log()
    assert "sglang_hooks" in log or "specgov" in log
    assert "Traceback" not in log
