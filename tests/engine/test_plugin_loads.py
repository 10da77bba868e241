"""The plugin in a process of the real SGLang, without a server."""

import json
import os
import subprocess

from sglang_hooks import compat
from tests.engine.environment import HERE
from tests.engine.server import ROOT, write_entry_point

GOVERNING = {
    compat.WORKER_INIT,
    compat.SET_INTERNAL_STATE,
    compat.GET_INTERNAL_STATE,
    compat.PROCESS_BATCH_RESULT,
    compat.RUN_HTTP_SERVER,
}


def test_sglang_loads_the_plugin_and_applies_its_hooks(engine, tmp_path, record_property):
    """All that governing needs is patched in SGLang's own registry."""
    write_entry_point(tmp_path, "specgov", "sglang_hooks.plugin:register")
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "stubs", tmp_path, ROOT))),
    }
    command = [engine[0], HERE / "load_plugin.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    hooked = json.loads(done.stdout.splitlines()[-1])
    record_property("hooks", len(hooked))
    assert set(hooked) >= GOVERNING
