"""The command: which arms it chooses, what it refuses, and a whole run against a server in this process."""

import errno
import json
import threading
import time
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.bench.arms import parse_arm
from controller.bench.command import _runnable
from controller.bench.endings import BenchError
from controller.bench.inputs import parse_arms
from controller.bench.request import BenchRequest
from controller.cli import make_app
from controller.errors import BadRequestError

STATE = {"controllable": True, "built_depths": [0, 1, 4], "gears": ["warm", "cold", "frozen"]}


def labels(arms):
    """Their labels."""
    return [arm.label for arm in arms]


def test_without_arms_every_fixed_one_is_measured():
    """Frozen is left out: it differs from cold only in the draft prefill."""
    assert labels(_runnable(parse_arms([]), STATE)) == ["off-warm", "off-cold", "depth-1", "depth-4"]


def test_a_server_that_cannot_be_steered_is_measured_as_it_is():
    """No endpoint, or one that says it cannot."""
    assert labels(_runnable(parse_arms([]), None)) == ["as-is"]
    assert labels(_runnable(parse_arms([]), {"controllable": False, "reason": "no adaptive controller"})) == [
        "as-is"
    ]


def test_an_arm_that_cannot_be_had_is_refused_with_the_reason():
    """Never silently measured as something else."""
    with pytest.raises(BenchError, match="the plugin is not installed"):
        _runnable(parse_arms(["depth-1"]), None)
    with pytest.raises(BenchError, match="no adaptive controller"):
        _runnable(parse_arms(["native"]), {"controllable": False, "reason": "no adaptive controller"})
    with pytest.raises(BenchError, match=r"depth-3 must be a built depth \(1, 4\)"):
        _runnable(parse_arms(["depth-3"]), STATE)
    with pytest.raises(BadRequestError, match=r"arm must be one of .* got 'off'"):
        parse_arms(["off"])


@pytest.mark.parametrize("fallback", ["hold", 2])
def test_what_needs_sglangs_own_rule_is_refused_where_another_follows_a_lease(fallback):
    """`hold` leaves the depth of the arm before, a depth is no rule of SGLang's; as-is alone asks nothing."""
    state = {**STATE, "fallback": fallback}
    with pytest.raises(
        BenchError, match=rf"got the fallback {fallback!r}: launch .* with SPECGOV_FALLBACK=nat"
    ):
        _runnable(parse_arms(["depth-1", "native"]), state)
    with pytest.raises(BenchError, match="or measure as-is in a run of its own, before the others"):
        _runnable(parse_arms(["as-is", "depth-1"]), state)
    assert labels(_runnable(parse_arms(["as-is"]), state)) == ["as-is"]
    assert labels(_runnable(parse_arms(["as-is", "native"]), {**STATE, "fallback": "native"})) == [
        "as-is",
        "native",
    ]


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


def bench(handler, folder, *options):
    """A run of two short windows against a server of this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    short = ["--concurrency", "1,2", "--rounds", "1", "--window", "0.3", "--settle", "0", "--warm-up", "0"]
    where = ["--engine", f"http://127.0.0.1:{server.server_port}", "--output", str(folder)]
    try:
        return CliRunner().invoke(make_app(), ["bench", *where, *short, "--prompts", "tokens", *options])
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_whole_run_over_http_writes_json_and_plots(tmp_path):
    """Against a server without the plugin: one column, results.json, no profile, exit code 0."""
    result = bench(Handler, tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(w["label"], w["concurrency"]) for w in found["windows"]] == [("engine", 1), ("engine", 2)]
    assert all(w["stats"]["output_tok_s"] > 0 for w in found["windows"])
    assert (tmp_path / "throughput.png").exists()
    assert not (tmp_path / "profile.json").exists()
    wait = "and 2 times a wait until the clients are answered, at most 30 s"
    assert result.stderr.startswith(f"2 windows, about 0.0 min, {wait}\n")
    said = [line.rpartition(":")[0] for line in result.stderr.splitlines() if " of 2 " in line]
    assert said == ["1 of 2  engine C=1", "2 of 2  engine C=2"]


@pytest.mark.slow
def test_a_server_beside_that_is_not_there_is_named_before_any_load(tmp_path):
    """Its URL, not that of the engine, which answers."""
    result = bench(Handler, tmp_path, "--beside", "other=http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "no server answers at http://127.0.0.1:9: " in result.output
    assert not (tmp_path / "results.json").exists()


class Refusing(Handler):
    """Answers every request with 503."""

    def do_POST(self):
        """Never a token."""
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(503, {"message": "no KV cache left"})


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--stream-every", "0"]])
def test_a_server_that_only_fails_ends_with_1_and_its_own_words(tmp_path, extra):
    """No request finished: the first error is in the sentence and in results.json; no wait for tokens."""
    began_s = time.monotonic()
    result = bench(Refusing, tmp_path, *extra)
    assert time.monotonic() - began_s < 15
    assert result.exit_code == 1
    (sentence,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert sentence.startswith("error: no request finished in 2 windows, ")
    assert "(the first: BadAnswerError: HTTP 503: " in sentence
    assert "no KV cache left" in sentence
    assert "lengthen --window" not in result.output
    assert "of its 2 windows hold no token for that" in result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert "no KV cache left" in found["errors"][0]["text"]
    counts = [sum(error["count"] for error in w["errors"]) for w in found["windows"]]
    assert counts == [w["stats"]["errors"] for w in found["windows"]]
    assert all(counts)


@pytest.mark.slow
def test_what_a_failing_server_measured_is_printed_as_json_too(tmp_path):
    """Exit code 1, and the windows on standard output."""
    result = bench(Refusing, tmp_path, "--json")
    assert result.exit_code == 1
    assert "no KV cache left" in json.loads(result.stdout)["errors"][0]["text"]


@pytest.mark.slow
def test_a_server_that_only_fails_is_left_after_the_warm_up(tmp_path):
    """No window is tried, and no folder is left."""
    result = bench(Refusing, tmp_path / "out", "--warm-up", "0.5")
    assert result.exit_code == 1
    assert "error: every request of the warm-up failed, " in result.output
    assert "/generate (the first: BadAnswerError: HTTP 503: " in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_asked_for_is_in_the_results(tmp_path):
    """Every option of the load, so that a file alone says how it came about."""
    assert bench(Handler, tmp_path, "--stream-every", "2", "--seed", "7").exit_code == 0
    about = json.loads((tmp_path / "results.json").read_text())["about"]
    asked = {
        "arms": [],
        "concurrency": [1, 2],
        "rounds": 1,
        "window_s": 0.3,
        "settle_s": 0.0,
        "warm_up_s": 0.0,
        "prompts": "tokens",
        "rate_scale": None,
        "dialect": "sglang",
        "model": None,
        "stream_every": 2,
        "seed": 7,
        "output": str(tmp_path),
        "overwrite": False,
        "arrivals": None,
        "scenario": None,
        "config": None,
        "api_key_file": None,
        "admin_api_key_file": None,
    }
    assert {key: about[key] for key in asked} == asked
    told = {field.name for field in fields(BenchRequest)} - {"timing", "concurrencies", "as_json", "run_id"}
    assert told - {"plain"} <= set(about)


@pytest.mark.slow
@pytest.mark.parametrize(("full", "saved"), [("results.json", "nothing"), ("throughput.png", "results.json")])
def test_a_full_disk_at_the_end_costs_no_figure(tmp_path, monkeypatch, full, saved):
    """The table is printed, the file named, and a repeat finds nothing in its way."""
    replace = Path.replace

    def no_space(path, target):
        if target.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", no_space)
    result = bench(Handler, tmp_path / "out")
    assert result.exit_code == 1
    assert "Output tokens / s" in result.output
    assert f"/{full} could not be written: No space left on device; saved: {saved}" in result.output
    left = {path.name for path in (tmp_path / "out").iterdir()} if (tmp_path / "out").exists() else set()
    assert left == {saved} - {"nothing"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "0"], "--concurrency must be whole numbers 1..4096 with commas, got '0'"),
        (["--concurrency", "8,100000"], "must be whole numbers 1..4096 with commas, got '8,100000'"),
        (["--concurrency", ""], "--concurrency must be whole numbers 1..4096 with commas, got ''"),
        (["--output", ""], "--output must name a folder, got ''"),
        (
            ["--dialect", "openai-chat", "--prompts", "tokens"],
            "--prompts must be texts with --dialect openai-ch",
        ),
        (["--plain", "http://x"], "must be NAME=URL"),
        (["--plain", "a=x:1"], "must be an http:// or https:// URL, such as"),
        (["--engine", "127.0.0.1:30000"], "--engine must be an http:// or https:// URL, such as"),
        (["--scenario", "a", "--arrivals", "b"], "may be given, got --scenario and --arrivals"),
        (["--scenario", "a", "--concurrency", "4"], "may be given, got --scenario and --concurrency"),
        (["--arrivals", "a", "--concurrency", "4"], "may be given, got --arrivals and --concurrency"),
        (["--concurrency", "4,8,4"], "--concurrency must hold each number once, got '4,8,4'"),
        (["--window", "inf"], "--window must be a number 0.1 to 86400, got inf"),
        (["--window", "nan"], "--window must be a number 0.1 to 86400, got nan"),
        (["--window", "0"], "--window must be a number 0.1 to 86400, got 0"),
        (["--settle", "-1"], "--settle must be a number 0 to 3600, got -1"),
        (["--warm-up", "inf"], "--warm-up must be a number 0 to 3600, got inf"),
        (["--arrivals", "a", "--rate-scale", "nan"], "--rate-scale must be a number 1e-06 to 1e+06, got nan"),
        (["--arms", "depth-2,off-cold,depth-2"], "must hold each arm once, got 'depth-2' 2 times"),
        (["--arms", "off-warm,depth-0"], "--arms must hold each arm once, got 'off-warm' 2 times"),
        (["--rate-scale", "2"], "--rate-scale must come with --arrivals, whose times it divides, got none"),
        (["--arrivals", "/no"], "--arrivals must be a readable file, got /no: No such file or directory"),
        (["--scenario", "/no"], "--scenario must be a readable file, got /no: No such file or directory"),
        (["--api-key-file", "/no"], "--api-key-file must be a readable file, got /no: No such file or direc"),
        (
            ["--admin-api-key-file", "/no"],
            "--admin-api-key-file must be a readable file, got /no: No such fi",
        ),
        (
            ["--model", "x"],
            "--model must come with --dialect openai or openai-chat, got it with sglang, which",
        ),
        (
            ["--arrivals", "a", "--window", "5"],
            "--window must come with a closed loop (--concurrency), got it wi",
        ),
        (
            ["--scenario", "a", "--settle", "0"],
            "closed loop (--concurrency), got it with --scenario: leave it out",
        ),
        (
            ["--scenario", "a", "--warm-up", "0"],
            "--warm-up must come with a closed loop (--concurrency), got",
        ),
        (
            ["--arrivals", "a", "--stream-every", "2"],
            "--stream-every must come without --arrivals, whose req",
        ),
        (["--config", "a"], "--config must come with an arm policy:NAME in --arms, whose settings it holds"),
        (["--seed", "-5"], "greater than or equal to 0"),
        (["--arms", ","], "--arms must be labels with one comma between two, got ','"),
        (["--arms", ""], "--arms must be labels with one comma between two, got ''"),
        (["--arms", "depth-2,"], "--arms must be labels with one comma between two, got 'depth-2,'"),
        (["--arms", "policy:foo"], "--arms: policy.name must be one of "),
        (["--plain", "a=http://x", "--beside", "a=http://y"], "names of their own, got 'a' 2 times"),
        (["--arms", "policy:goodput", "--config", "/none"], "/none must be a readable settings file"),
        (
            ["--engine", "http://localhost:9/", "--beside", "same=http://127.0.0.1:9"],
            (
                "must be servers of their own, got same=http://127.0.0.1:9, which is that of --engine "
                "http://localhost:9: leave it out; as-is in --arms measures --engine as it is"
            ),
        ),
        (
            ["--plain", "a=http://X:80", "--beside", "b=http://x"],
            "got b=http://x, which is that of a=http://X:80",
        ),
        (["--plain", "depth-2=http://x"], "names of their own, got 'depth-2', which is an arm"),
    ],
)
def test_wrong_usage_ends_with_2(options, message, tmp_path):
    """Before any server is asked (none runs here), and the message says field, rule and value."""
    result = CliRunner().invoke(make_app(), ["bench", "--output", str(tmp_path), *options])
    assert result.exit_code == 2
    assert message in result.output


def test_a_trace_of_more_than_a_day_is_refused_with_the_remedy(tmp_path):
    """A time of 1e12 is rather one in nanoseconds than one to wait for."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": at_s, "prompt_tokens": 4, "output_tokens": 4} for at_s in (0, 1e12)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    result = CliRunner().invoke(
        make_app(), ["bench", "--arrivals", str(trace), "--output", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    assert "--arrivals must last at most 86400 s (a day)" in result.output
    assert "of 1e+12 s: raise --rate-scale, cut the trace, or mend the unit of its times" in result.output


def test_prompts_that_cannot_be_read_are_refused(tmp_path):
    """The known kinds are listed."""
    result = CliRunner().invoke(
        make_app(), ["bench", "--prompts", str(tmp_path / "none"), "--output", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert "encyclopedic, coding, tokens" in result.output
