"""The command: which arms it chooses, what it refuses, and a whole run against a server in this process."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from controller.bench.arms import parse_arm
from controller.bench.command import BenchError, _parse, _runnable
from controller.cli import make_app
from controller.errors import BadRequestError

STATE = {"controllable": True, "built_depths": [0, 1, 4], "gears": ["warm", "cold", "frozen"]}


def labels(arms):
    """Their labels."""
    return [arm.label for arm in arms]


def test_without_arms_every_fixed_one_is_measured():
    """Frozen is left out: it differs from cold only in the draft prefill."""
    assert labels(_runnable(_parse([]), STATE)) == ["off-warm", "off-cold", "depth-1", "depth-4"]


def test_a_server_that_cannot_be_steered_is_measured_as_it_is():
    """No endpoint, or one that says it cannot."""
    assert labels(_runnable(_parse([]), None)) == ["as-is"]
    assert labels(_runnable(_parse([]), {"controllable": False, "reason": "no adaptive controller"})) == [
        "as-is"
    ]


def test_an_arm_that_cannot_be_had_is_refused_with_the_reason():
    """Never silently measured as something else."""
    with pytest.raises(BenchError, match="the plugin is not installed"):
        _runnable(_parse(["depth-1"]), None)
    with pytest.raises(BenchError, match="no adaptive controller"):
        _runnable(_parse(["native"]), {"controllable": False, "reason": "no adaptive controller"})
    with pytest.raises(BenchError, match=r"depth-3 must be a built depth \(1, 4\)"):
        _runnable(_parse(["depth-3"]), STATE)
    with pytest.raises(BadRequestError, match=r"arm must be one of .* got 'off'"):
        _parse(["off"])


def test_labels_of_arms():
    """`depth-0` is SGLang's own off."""
    assert str(parse_arm("depth-0").fixed) == "0 warm"
    assert parse_arm("policy:goodput").policy == "goodput"


class Handler(BaseHTTPRequestHandler):
    """Answers completions of any length after 10 ms; no /speculation."""

    def log_message(self, *args):
        """Quiet."""

    def do_GET(self):
        """Nothing here."""
        self._answer(404, {})

    def do_POST(self):
        """A whole answer, streamed as one event."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.01)
        answer = {
            "meta_info": {"completion_tokens": body.get("sampling_params", {}).get("max_new_tokens", 0)}
        }
        self._answer(200, answer, stream=body.get("stream", False))

    def _answer(self, status, body, *, stream=False):
        payload = json.dumps(body).encode()
        payload = b"data: " + payload + b"\n\ndata: [DONE]\n\n" if stream else payload
        self.send_response(status)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@pytest.mark.slow
def test_a_whole_run_over_http_writes_json_and_plots(tmp_path):
    """Against a server without the plugin: one column, results.json, no profile, exit code 0."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    options = ["--concurrency", "1,2", "--rounds", "1", "--window", "0.3", "--settle", "0", "--warm-up", "0"]
    try:
        result = CliRunner().invoke(
            make_app(), ["bench", "--engine", url, *options, "--prompts", "tokens", "--output", str(tmp_path)]
        )
    finally:
        server.shutdown()
        server.server_close()
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(w["label"], w["concurrency"]) for w in found["windows"]] == [("engine", 1), ("engine", 2)]
    assert all(w["stats"]["output_tok_s"] > 0 for w in found["windows"])
    assert (tmp_path / "throughput.png").exists()
    assert not (tmp_path / "profile.json").exists()
    assert result.stderr.startswith("2 windows, about 0.0 min\n")
    said = [line.rpartition(":")[0] for line in result.stderr.splitlines() if " of 2 " in line]
    assert said == ["1 of 2  engine C=1", "2 of 2  engine C=2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "0"], "--concurrency must be whole numbers 1..4096 with commas, got '0'"),
        (["--concurrency", "8,100000"], "must be whole numbers 1..4096 with commas, got '8,100000'"),
        (["--plain", "http://x"], "must be NAME=URL"),
        (["--scenario", "a", "--arrivals", "b"], "only one of --scenario and --arrivals"),
    ],
)
def test_wrong_usage_ends_with_2(options, message):
    """Before anything is measured."""
    result = CliRunner().invoke(make_app(), ["bench", *options])
    assert result.exit_code == 2
    assert message in result.output


def test_prompts_that_cannot_be_read_are_refused(tmp_path):
    """The known kinds are listed."""
    result = CliRunner().invoke(
        make_app(), ["bench", "--prompts", str(tmp_path / "none"), "--output", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert "encyclopedic, coding, tokens" in result.output
