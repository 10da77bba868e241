"""Runs inside the engine's own environment: loads the plugins as SGLang does, and prints what they hooked.

In one process what the HTTP process and the scheduler's would each do.
"""

import json

if __name__ == "__main__":
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler  # noqa: F401  the process that schedules has it loaded
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    load_plugins()
    print(json.dumps(sorted(HookRegistry._patched)))
