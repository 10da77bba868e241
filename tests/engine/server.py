"""Starts and stops a real SGLang server on CPU."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_TIMEOUT_S = 600

COMMON = [
    "--device", "cpu", "--host", "127.0.0.1", "--dtype", "bfloat16", "--enable-metrics",
    "--mem-fraction-static", "0.5", "--max-total-tokens", "8192", "--max-running-requests", "8",
    "--disable-cuda-graph", "--attention-backend", "torch_native", "--sleep-on-idle",
    "--constrained-json-disable-any-whitespace",  # else this model writes line ends for ever
]  # fmt: skip
SPECULATION = [
    "--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx",
    "--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "1",
    "--speculative-num-steps", "2", "--speculative-num-draft-tokens", "3",
    "--speculative-adaptive", "--speculative-adaptive-config", str(HERE / "depths_0_to_3.json"),
]  # fmt: skip

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""SGLang binds a rank's OpenMP threads to its cores by a kernel that the stand-in lacks, so every rank would
start one for each core of the machine.  This model gives them nothing to do: they spin at OpenMP's barriers,
nine tenths of the CPU time of two ranks on two cores, and keep the other rank from its core."""

STOCK, LAUNCH = ["-m", "sglang.launch_server"], [str(HERE / "launch.py")]
OVERLAP = {"TRITON_INTERPRET": "1"}
ONE_CORE_A_RANK = {**OVERLAP, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}

STATIC = [flag for flag in SPECULATION[:-2] if flag != "--speculative-adaptive"]
TREE = [
    *STATIC, "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "4", "--speculative-adaptive",
    "--skip-server-warmup",  # it would draft, and the stand-in for the kernels builds chains only
]  # fmt: skip


def as_other(algorithm):
    """`SPECULATION` by another algorithm; a later flag outdoes an earlier one."""
    return [*SPECULATION, "--speculative-algorithm", algorithm]


NGRAM = [
    *as_other("NGRAM"), "--speculative-num-draft-tokens", "4", "--speculative-ngram-max-bfs-breadth", "1",
]  # fmt: skip

MODES = {
    # mode: (entry, flags, environment); base, bare and sync are SGLang as it is
    "base": (STOCK, ["--api-key", "read", "--admin-api-key", "steer"], {}),
    "bare": (STOCK, [], {}),
    "static": (STOCK, STATIC, {}),
    "tree": (STOCK, TREE, {}),
    "sync": (STOCK, SPECULATION, {}),
    "overlap": (LAUNCH, SPECULATION, OVERLAP),
    "eagle": (LAUNCH, as_other("EAGLE"), OVERLAP),
    "nextn": (LAUNCH, as_other("NEXTN"), OVERLAP),
    "standalone": (LAUNCH, as_other("STANDALONE"), OVERLAP),
    "ngram": (LAUNCH, NGRAM, OVERLAP),
    "tp2": (LAUNCH, [*SPECULATION, "--tp", "2"], ONE_CORE_A_RANK),
    "dp2": (LAUNCH, [*SPECULATION, "--dp", "2"], ONE_CORE_A_RANK),
    "tp4": (LAUNCH, [*SPECULATION, "--tp", "4"], {**OVERLAP, "SGLANG_CPU_OMP_THREADS_BIND": "0|0|1|1"}),
}
"""`base`: no speculation, an API key and an admin key; `bare`: no speculation, no plugin; `static`:
speculation at one depth; `tree`: with two candidates per position; `sync`: speculation without the overlap
scheduler; `overlap`: with it; `eagle`, `nextn`, `standalone`, `ngram`: with it, by other algorithms than
EAGLE3; `tp2`, `dp2`, `tp4`: with it, on several ranks."""

ON_REQUEST = dict.fromkeys(("eagle", "standalone", "ngram"), "SPECGOV_ALGORITHMS") | {"tp4": "SPECGOV_TP4"}
"""Modes that cost more than every run of CI should pay, and the variable that, set to 1, runs them."""

MODELS = {
    # mode: (target, draft), where they are not "target" and "draft"
    "tp4": ("target-kv4", "draft-kv4"),
    "eagle": ("target", "draft-eagle"),
    "nextn": ("target-mtp", "target-mtp"),
    "standalone": ("target", "target"),
    "ngram": ("target", None),
}


class ServerFailedError(Exception):
    """The server did not come up; the message has the end of its log."""


class Server:
    """One server process group.  `folder` gets its log and what its test plugins write.

    `plugin` is the module whose `register` SGLang calls; another one than the product's has to load that.
    """

    def __init__(
        self, mode, python, models, folder, *, flags=(), environment=None, plugin="sglang_hooks.plugin"
    ):
        entry, mode_flags, mode_environment = MODES[mode]
        self.mode = mode
        self._plugin = plugin
        self.folder = folder
        self.log_file = folder / "server.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        flags = [*COMMON, *mode_flags, *model_flags(mode, models), "--port", str(self.port), *flags]
        self._command = [str(python), *entry, *flags]
        self._environment = {
            **os.environ,
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            **ONE_THREAD,
            "PYTHONPATH": os.pathsep.join(map(str, self._paths())),
            "STEP_LOG_FOLDER": str(folder),
            **mode_environment,
            **(environment or {}),
        }
        self._process = None

    def start(self):
        """Start and wait for health; raises `ServerFailedError`."""
        with self.log_file.open("w") as log:
            # Its own folder: `python -m` looks into the current one first, and a checkout that was installed
            # in place has the plugin's entry point there.
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_for_health()
        except BaseException:  # an interrupted start must leave no server behind either
            self.stop()
            raise
        return self

    def _wait_for_health(self):
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                tail = "\n".join(self.log().splitlines()[-30:])
                raise ServerFailedError(f"the {self.mode} server did not come up:\n{tail}")
            time.sleep(0.25)

    def stop(self):
        """End the whole process group."""
        if self._process is None:
            return
        for signal_, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._process = None

    def alive(self):
        """Whether the main process runs."""
        return self._process is not None and self._process.poll() is None

    def log(self):
        """All that the server has logged so far."""
        return self.log_file.read_text(errors="replace")

    def _healthy(self):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def _paths(self):
        """The stand-ins for GPU packages, and the plugins with the metadata by which SGLang finds them."""
        paths = [HERE / "stubs"]
        if self.mode != "bare":
            plugins = self.folder / "plugins"
            write_entry_point(plugins, "specgov", f"{self._plugin}:register")
            write_entry_point(plugins, "step_log", "tests.engine.step_log:register")
            paths += [plugins, ROOT]
        return paths


def model_flags(mode, models):
    """Which target a server of a mode serves and, if it speculates by a model, which draft."""
    speculates = "--speculative-algorithm" in MODES[mode][1]
    target, draft = MODELS.get(mode, ("target", "draft" if speculates else None))
    drafting = ["--speculative-draft-model-path", str(models / draft)] if draft else []
    return ["--model-path", str(models / target), *drafting]


def write_entry_point(folder, name, target):
    """What `pip install` would leave behind for a plugin."""
    info = folder / f"{name}-0.0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {target}\n")


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
