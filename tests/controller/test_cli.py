"""The commands, with their exit codes."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from controller import cli
from controller.cli import _common, engine_setup, operate, run
from controller.cli._exit import Exit
from controller.control_state import parse_control_state
from controller.errors import BadRequestError, EngineNotFoundError, SettingsError, SidecarError
from controller.exposition import parse_loads, parse_server_info
from controller.launch_flags import parse_depths
from controller.preflight import Facts, Verdict, check, passed
from controller.settings import LeaseSettings
from policies.types import Mode
from tests.controller.test_exposition import load


class Pageless(BaseHTTPRequestHandler):
    """Has no page at all."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_args):
        pass


@pytest.fixture
def invoke():
    """Runs a command."""
    return lambda *args: CliRunner().invoke(cli.make_app(), args)


def test_engine_flags_start_at_the_largest_candidate_and_write_the_config(invoke, tmp_path):
    """Releases up to 0.5.18 fail to start otherwise."""
    config = tmp_path / "adaptive.json"
    result = invoke("engine-flags", "--depths", "0,1,2,4", "--config", str(config), "--json")
    flags = json.loads(result.stdout)["flags"]
    assert "--speculative-num-steps 4" in flags
    assert "--speculative-num-draft-tokens 5" in flags
    assert f"--speculative-adaptive-config {config}" in flags
    assert json.loads(config.read_text()) == {"1": {"candidate_steps": [0, 1, 2, 4]}}


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1", "99", "1.5", "1,1,4"])
def test_depths_that_make_no_sense_are_refused(text):
    """With the rule and the value."""
    with pytest.raises(SettingsError, match="--depths must"):
        parse_depths(text)


def test_depths_are_sorted():
    """As the config file wants them."""
    assert parse_depths("4, 0,1") == [0, 1, 4]


def test_a_depth_that_is_named_twice_is_refused_with_what_would_do():
    """A slip of the finger is not guessed at."""
    with pytest.raises(SettingsError, match=r"got '1,1,4' \(1 twice\): try 1,4"):
        parse_depths("1,1,4")


def test_engine_flags_replace_a_file_that_is_another_only_by_force(invoke, tmp_path):
    """The same content is no change; somebody's own file is left alone."""
    config = tmp_path / "adaptive.json"
    command = ("engine-flags", "--config", str(config), "--depths")
    assert invoke(*command, "0,4").exit_code == 0
    written = config.read_text()
    assert invoke(*command, "4,0").exit_code == 0
    refused = invoke(*command, "0,2")
    assert (refused.exit_code, config.read_text()) == (Exit.USAGE, written)
    assert "--config must be a new file" in refused.stderr
    assert "--force" in refused.stderr
    assert invoke(*command, "0,2", "--force").exit_code == 0
    assert json.loads(config.read_text()) == {"1": {"candidate_steps": [0, 2]}}


def test_engine_flags_say_that_without_depth_0_nothing_can_be_off(invoke, tmp_path):
    """It is allowed, and rarely meant."""
    assert (
        "never turned off"
        in invoke("engine-flags", "--depths", "1,4", "--config", str(tmp_path / "a")).stderr
    )


def facts(info="server_info_overlap", control=None, control_error=None, **changes):
    sample = parse_loads(load("loads_busy"))
    body = load(info) | changes
    return Facts(parse_server_info(body), None, control, control_error, sample, None, sample, None)


def verdicts(checks):
    return {c.name: c.verdict for c in checks}


def test_preflight_passes_a_server_that_runs_as_it_must(fake_state):
    """Depth 0 at SGLang's own cost is a warning, not a failure."""
    checks = check(facts(control=parse_control_state(fake_state)))
    assert passed(checks)
    assert [c.name for c in checks if c.verdict is not Verdict.PASS] == ["plain decode"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            {"in_force": True, "backend": "TritonAttnBackend", "reason": None},
            "the target verifies drafts by its decode path (TritonAttnBackend)",
        ),
        (
            {"in_force": False, "backend": "FlashInferAttnBackend", "reason": "not known to be right"},
            "no: not known to be right (FlashInferAttnBackend)",
        ),
        ({"in_force": False, "backend": None, "reason": "turned off"}, "no: turned off"),
        ({"in_force": False}, "no: no reason given"),
    ],
)
def test_preflight_says_how_drafts_are_verified_and_if_not_by_decoding_why(fake_state, said, found):
    """Without alarm: SGLang's own verify is no fault."""
    checks = check(facts(control=parse_control_state(fake_state | {"chain_verify": said})))
    row = next(each for each in checks if each.name == "chain verify")
    assert (row.verdict, row.found, row.mend) == (Verdict.PASS, found, "")


def test_preflight_has_no_row_for_a_verify_that_the_hook_says_nothing_of(fake_state):
    """Unknown is not no."""
    checks = check(facts(control=parse_control_state(fake_state | {"chain_verify": None})))
    assert "chain verify" not in [each.name for each in checks]


def test_preflight_names_nothing_that_mends_what_passed(fake_state):
    """A program that reads `--json` takes every `mend` for something to do."""
    passing = [
        each for each in check(facts(control=parse_control_state(fake_state))) if each.verdict is Verdict.PASS
    ]
    assert "version" in [each.name for each in passing]
    assert {each.mend for each in passing} == {""}


@pytest.mark.parametrize(
    ("changes", "name", "mend"),
    [
        ({"speculative_algorithm": None}, "algorithm", "--speculative-algorithm EAGLE3"),
        ({"speculative_algorithm": "NGRAM"}, "algorithm", "--speculative-algorithm EAGLE3"),
        ({"speculative_eagle_topk": 4}, "topk", "--speculative-eagle-topk 1"),
        ({"speculative_num_draft_tokens": 8}, "draft tokens", "--speculative-num-draft-tokens 3"),
        ({"disable_overlap_schedule": True}, "overlap", "leave out --disable-overlap-schedule"),
        ({"speculative_adaptive": False}, "adaptive", "--speculative-adaptive"),
        ({"enable_dp_attention": True}, "attention", "leave out --enable-dp-attention"),
    ],
)
def test_preflight_names_the_flag_that_mends_each_failure(fake_state, changes, name, mend):
    """One thing wrong: one failure, with its flag."""
    checks = check(facts(control=parse_control_state(fake_state), **changes))
    (failed,) = [c for c in checks if c.verdict is Verdict.FAIL]
    assert failed.name == name
    assert mend in failed.mend
    assert not passed(checks)


@pytest.mark.parametrize(
    ("changes", "name", "found"),
    [
        ({"pp_size": 2}, "pipeline", "pipeline parallelism"),
        ({"disaggregation_mode": "prefill"}, "role", "govern its decode servers"),
        ({"tokenizer_worker_num": 4}, "front end", "4 tokenizer workers"),
        ({"frontend": "rust"}, "front end", "the Rust front end serves HTTP"),
        ({"attn_dp_size": 2}, "attention", "data-parallel (DP) attention"),
    ],
)
def test_preflight_names_what_rules_a_server_out(fake_state, changes, name, found):
    """In the hook's own words; what a release does not state is not guessed."""
    checks = check(facts(control=parse_control_state(fake_state), **changes))
    (failed,) = [c for c in checks if c.verdict is Verdict.FAIL]
    assert failed.name == name
    assert found in failed.found
    harmless = {"pp_size": 1, "disaggregation_mode": "null", "tokenizer_worker_num": 1, "frontend": "python"}
    assert passed(check(facts(control=parse_control_state(fake_state), **harmless)))


@pytest.mark.parametrize(
    ("version", "num_steps", "warned"),
    [("0.5.23", 2, 0), ("0.5.18", 2, 1), ("0.5.18", 3, 0), ("0.5.17", 2, 2), ("0.5.17", 3, 1)],
)
def test_preflight_warns_of_faults_of_the_release(fake_state, version, num_steps, warned):
    """One that starting at the deepest candidate (3 here) avoids is not shown there."""
    changes = {"version": version, "speculative_num_steps": num_steps}
    checks = check(facts(control=parse_control_state(fake_state), **changes))
    faults = [c for c in checks if c.name == "known fault"]
    assert [c.verdict for c in faults] == [Verdict.WARN] * warned
    assert all(c.mend for c in faults)


def test_a_release_that_was_never_read_is_a_warning(fake_state):
    """The plugin decides; preflight says what is known."""
    checks = check(facts(control=parse_control_state(fake_state), version="0.9.0"))
    (version,) = [c for c in checks if c.name == "version"]
    assert version.verdict is Verdict.WARN
    assert "0.5.16 to 0.5.23" in version.found


def test_engine_flags_tell_the_faults_of_a_release_that_may_not_start(invoke, tmp_path):
    """Preflight can only ask a server that runs."""
    config = str(tmp_path / "adaptive.json")
    said = json.loads(invoke("engine-flags", "--config", config, "--sglang", "0.5.17", "--json").stdout)
    assert [fault["way_round"] for fault in said["faults"]] == ["SGLang 0.5.16, or 0.5.18 or newer"]
    assert json.loads(invoke("engine-flags", "--config", config, "--json").stdout)["faults"] == []


def test_engine_flags_without_a_release_say_which_does_not_start_so(invoke, tmp_path):
    """Where nobody asks, nobody is told; a release that is named is spared the sentence."""
    config = str(tmp_path / "adaptive.json")
    said = "For SGLang 0.5.16 to 0.5.23, but 0.5.17 does not start with them as it was released"
    assert said in invoke("engine-flags", "--config", config).stderr
    assert invoke("engine-flags", "--config", config, "--sglang", "v0.5.23.post1").stderr == ""


def test_engine_flags_are_quoted_for_a_shell(invoke, tmp_path):
    """Every value, so that what is pasted is what was meant."""
    config = tmp_path / "my flags.json"
    given = ["--draft-model", "a b;rm -rf /", "--config", str(config), "--algorithm", "eagle3", "--json"]
    flags = shlex.split(" ".join(json.loads(invoke("engine-flags", *given).stdout)["flags"]))
    value = dict(itertools.pairwise(flags))
    assert value["--speculative-draft-model-path"] == "a b;rm -rf /"
    assert value["--speculative-adaptive-config"] == str(config)
    assert value["--speculative-algorithm"] == "EAGLE3"


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--algorithm", "NGRAM", "--algorithm must be EAGLE or EAGLE3"),
        ("--sglang", "bla", "--sglang must be a release that the hook knows, 0.5.16 to 0.5.23"),
        ("--sglang", "0.4.0", "--sglang must be a release that the hook knows, 0.5.16 to 0.5.23"),
    ],
)
def test_engine_flags_for_what_cannot_be_governed_are_refused(invoke, tmp_path, option, value, rule):
    """And no file is left behind."""
    config = tmp_path / "adaptive.json"
    result = invoke("engine-flags", "--config", str(config), option, value)
    assert result.exit_code == Exit.USAGE
    assert rule in result.stderr
    assert not config.exists()


def test_preflight_takes_what_is_not_stated_for_a_failure(fake_state):
    """Unknown is not fine."""
    body = load("server_info_overlap")
    del body["speculative_adaptive"]
    sample = parse_loads(load("loads_busy"))
    state = parse_control_state(fake_state)
    checks = check(Facts(parse_server_info(body), None, state, None, sample, None, sample, None))
    assert verdicts(checks)["adaptive"] is Verdict.UNKNOWN
    assert not passed(checks)


def test_preflight_tells_a_server_without_the_plugin():
    """404 at /speculation."""
    missing = EngineNotFoundError(404, "GET /speculation: HTTP 404")
    checks = check(facts("server_info_h200", control_error=missing))
    (plugin,) = [c for c in checks if c.name == "plugin"]
    assert plugin.verdict is Verdict.FAIL
    assert plugin.mend.startswith("specgov export-hooks DIR")


def test_preflight_tells_another_server_from_sglang_without_the_plugin(invoke):
    """A plain file server: `not_sglang`, and its pages are not quoted as raw bytes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Pageless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = invoke("preflight", "--engine", f"http://127.0.0.1:{server.server_port}", "--json")
        server.shutdown()
    found = {c["name"]: c["found"] for c in json.loads(result.stdout)["checks"]}
    assert found["plugin"] == "not_sglang: neither /speculation nor /v1/loads is there"
    assert found["server"].startswith("GET /server_info: HTTP 404: it begins")
    assert "b'" not in result.stdout
    assert "\\n" not in result.stdout


def test_preflight_of_nothing_ends_with_3(invoke):
    """No server at that port: one failure, and no advice on the flags of a server that was not seen."""
    result = invoke("preflight", "--engine", "http://127.0.0.1:9", "--json")
    assert result.exit_code == Exit.ATTENTION
    said = json.loads(result.stdout)
    assert said["engine"] == "http://127.0.0.1:9"
    assert said["passed"] is False
    assert said["checks"][0]["verdict"] == "fail"
    assert [(c["name"], c["verdict"], c["found"], c["mend"]) for c in said["checks"][1:]] == [
        (name, "unknown", "not checked: the server does not answer", "")
        for name in ("speculation", "plugin", "loads", "metrics")
    ]


def test_preflight_says_which_server_it_asked(invoke):
    """The default need not be the one that is meant."""
    assert invoke("preflight", "--engine", "http://127.0.0.1:9/").stdout.startswith(
        "asked: http://127.0.0.1:9\n"
    )


def test_run_refuses_bad_settings_with_2(invoke, capsys):
    """The message names the field; nothing is started."""
    with pytest.raises(SettingsError, match="--listen must be HOST:PORT"):
        run._flags(engine=None, policy=None, listen="9470", store=None, dry_run=None, assign=[])


def test_status_without_a_sidecar_says_where_it_looked(invoke):
    """And what to look at."""
    said = invoke("status", "--url", "http://127.0.0.1:9").stderr
    assert "no sidecar answers at http://127.0.0.1:9" in said
    assert "is --url right?" in said
    assert "the engine is back on its fallback within 15 s" in said
    assert LeaseSettings().lease_s == 15
    assert "curl ENGINE/speculation tells" in said


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("8h", 28_800), ("2d", 172_800), ("1.5h", 5400)],
)
def test_durations(text, seconds):
    """Seconds, minutes, hours, days."""
    assert _common.duration_s("--ttl", text) == seconds


@pytest.mark.parametrize("text", ["10", "10x", "", "-5m", "m", "1h30m"])
def test_a_duration_without_its_unit_is_refused(text):
    """10 of what?"""
    with pytest.raises(BadRequestError, match="--since must be a number with its unit"):
        _common.duration_s("--since", text)


class Stranger(BaseHTTPRequestHandler):
    """Answers every path with the class's `code` and `body`."""

    code, body = 404, "{}"

    def do_GET(self):
        self.send_response(self.code)
        self.end_headers()
        self.wfile.write(self.body.encode())

    def log_message(self, *_args):
        pass


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (404, '{"detail": "Not Found"}', "does not answer like a specgov sidecar (HTTP 404)"),
        (404, '{"error": {"field": null, "message": "Not Found"}}', "is --url right?"),
        (200, '{"model_path": "x"}', "does not answer like a specgov sidecar (other JSON)"),
        (200, "[]", "does not answer like a specgov sidecar (other JSON)"),
        (
            500,
            '{"error": {"message": "m", "type": "t"}}',
            "does not answer like a specgov sidecar (HTTP 500)",
        ),
        (401, '{"error": {"field": null, "message": "m"}}', "--token-file or SPECGOV_TOKEN_FILE"),
    ],
)
def test_what_is_no_sidecar_and_what_lacks_the_token_are_told_apart(invoke, monkeypatch, code, body, said):
    """An engine, a wrong path, a proxy: one line with what to do, and never a traceback."""
    monkeypatch.setattr(Stranger, "code", code)
    monkeypatch.setattr(Stranger, "body", body)
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = invoke("status", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert result.exit_code == Exit.FAILED
    assert said in result.stderr


async def test_a_dry_run_needs_no_attention_and_suggests_no_order(make, invoke, answers):
    """It is as somebody set it, and would refuse the order."""
    bench = await make(dry_run=True)
    await bench.run(2, batch_size=4)
    status = (await bench.api.get("/v1/status")).json()
    answers({**status, "against": {}})
    result = invoke("status")
    assert result.exit_code == Exit.DONE
    assert "dry_run" in result.stdout
    assert "specgov override" not in result.stdout
    assert "specgov explain" in result.stdout


@pytest.fixture
def answers(monkeypatch):
    """Replaces the call to a sidecar; notes what was asked."""
    asked = []

    def fake(answer):
        def call(method, url, path, token_file, **request):
            asked.append((method, path, request))
            return answer

        monkeypatch.setattr("controller.cli.operate.call", call)
        return asked

    return fake


def test_override_sends_the_order(invoke, answers):
    """`specgov override off --ttl 30m --reason ...`."""
    asked = answers(
        {"mode": "off", "expires_unix_s": None, "durable": True, "obstacle": None, "replaced": None}
    )
    result = invoke("override", "off", "--ttl", "30m", "--reason", "incident 7", "--actor", "jo")
    assert result.exit_code == 0
    body = {"mode": "off", "depth": None, "ttl_s": 1800.0, "reason": "incident 7", "actor": "jo"}
    assert asked == [("PUT", "/v1/override", {"json": body})]


SUSPENDED = {
    "mode": "auto",
    "scope": "pod",
    "expires_unix_s": None,
    "durable": True,
    "obstacle": None,
    "suspends": "off by ann: bad kernel",
}
UNTIL = "until the fleet's order changes or ends"
SAID_SUSPENDED = [
    f"auto, on this pod alone: the fleet's off by ann: bad kernel is suspended here {UNTIL}",
    "to follow the fleet's order again: specgov override fleet",
]
OF_THE_FLEET = {
    "mode": "off",
    "scope": "fleet",
    "detail": "the fleet's off by ann: bad kernel",
    "expires_unix_s": None,
    "durable": True,
    "obstacle": None,
}
FOLLOWED = [
    "the fleet's off by ann: bad kernel, until it is ended",
    "to suspend it on this pod alone: specgov override auto",
]


def test_auto_over_an_own_order_says_that_the_fleets_is_obeyed_now(invoke, answers):
    """What was ended is the pod's; what is in force, the fleet's."""
    answers(OF_THE_FLEET | {"replaced": {"scope": "pod", "detail": "on by bob: x"}})
    said = invoke("override", "auto").stdout.splitlines()
    assert said == [*FOLLOWED, "ended: on by bob: x"]


async def test_status_says_when_an_order_was_given_that_outlived_a_restart(make, invoke, answers):
    """40 s without a sidecar, 41 s until it is in force: of these nothing is claimed."""
    first = await make()
    await first.api.put("/v1/override", json={"mode": "off", "reason": "incident 7", "actor": "jo"})
    await first.assembly.aclose()
    first.clock.now_s += 40
    bench = await make(engine=first.engine)
    await bench.tick()
    answers({**bench.assembly.sidecar.status(), "against": {}})
    printed = invoke("status").stdout
    given, again = (operate._clock(1_800_000_000.0 + at) for at in (1000, 1041))
    said = f"{given} {operate._zone()}; in force since {again}, whether before that is not known here"
    assert said in " ".join(printed.split())


async def test_status_says_which_order_of_the_fleet_is_suspended(make, invoke, answers, tmp_path):
    """And until when, and what ends it."""
    file = tmp_path / "override.json"
    file.write_text('{"mode": "off", "reason": "bad kernel", "actor": "ann"}')
    bench = await make(fleet__file=str(file))
    await bench.tick()
    await bench.api.put("/v1/override", json={"mode": "auto", "reason": "try here", "actor": "jo"})
    await bench.tick()
    answers({**bench.assembly.sidecar.status(), "against": {}})
    printed = " ".join(invoke("status").stdout.split())
    ends = "until the fleet's order changes or ends; suspends the fleet's off by ann: bad kernel"
    assert f"auto by jo: try here, {ends}" in printed
    assert printed.endswith("specgov override fleet")


def test_override_fleet_gives_up_what_the_pod_has_for_itself(invoke, answers):
    """`DELETE`; without an order of the fleet the policy decides."""
    asked = answers(OF_THE_FLEET)
    assert invoke("override", "fleet", "--actor", "jo").stdout.splitlines() == FOLLOWED
    assert asked == [("DELETE", "/v1/override", {"params": {"reason": "back to the fleet's", "actor": "jo"}})]
    answers({"mode": "auto", "durable": True, "obstacle": None})
    said = invoke("override", "fleet").stdout.splitlines()
    assert said == ["fleet: the fleet has no order: the policy decides"]
    refused = invoke("override", "fleet", "--ttl", "30m")
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"mode": "auto", "durable": True, "obstacle": None, "replaced": None},
            ["auto: there was no order to end"],
        ),
        (
            {
                "mode": "auto",
                "durable": True,
                "obstacle": None,
                "replaced": {"detail": "off by jo: incident 7"},
            },
            ["auto: the policy decides", "ended: off by jo: incident 7"],
        ),
        (
            {
                "mode": "native",
                "durable": True,
                "obstacle": None,
                "replaced": {"detail": "off by jo: incident 7"},
            },
            ["native, until it is ended: specgov override auto", "replaced: off by jo: incident 7"],
        ),
        (
            {
                "mode": "no_deeper",
                "durable": True,
                "obstacle": None,
                "replaced": None,
                "limit": "no deeper than depth 1",
            },
            ["no_deeper, until it is ended: specgov override auto", "no deeper than depth 1"],
        ),
        (
            {"mode": "auto", "durable": True, "obstacle": None, "replaced": None, "pin_ended": True},
            [
                "auto: the policy decides",
                "ended: the pin to off after the engine's crash loop; restarts are counted from nothing",
            ],
        ),
        (
            SUSPENDED | {"replaced": {"scope": "fleet", "detail": "the fleet's off by ann: bad kernel"}},
            [
                *SAID_SUSPENDED,
            ],
        ),
        (
            SUSPENDED | {"replaced": {"scope": "pod", "detail": "auto by jo: x"}},
            [
                *SAID_SUSPENDED,
                "replaced: auto by jo: x",
            ],
        ),
        (
            {
                "mode": "auto",
                "durable": False,
                "obstacle": None,
                "replaced": {"detail": "off by jo: x", "was_in_force": True},
                "after_restart": {"detail": "off by jo: x"},
            },
            [
                "auto: the policy decides",
                "ended: off by jo: x",
                "not on disk: if the sidecar restarts now, in force is: off by jo: x",
                (
                    "a disk that cannot be written is named by specgov status;"
                    " once it has restarted: specgov override auto --reason ..."
                ),
            ],
        ),
        (
            {
                "mode": "on",
                "depth": 2,
                "durable": False,
                "obstacle": None,
                "replaced": {"detail": "off by root: before", "was_in_force": False},
                "after_restart": {"detail": "off by root: before"},
            },
            [
                "on at depth 2, until it is ended: specgov override auto",
                "replaced: off by root: before, which was never seen in force",
                "not on disk: if the sidecar restarts now, in force is: off by root: before",
                (
                    "a disk that cannot be written is named by specgov status;"
                    " once it has restarted: specgov override on --depth 2 --reason ..."
                ),
            ],
        ),
    ],
)
def test_override_says_what_it_ended_and_whose(invoke, answers, answer, said):
    """Nothing about a disk where nothing has to be on it."""
    answers(answer)
    assert invoke("override", answer["mode"], "--reason", "x").stdout.splitlines() == said


async def test_status_and_explain_use_words_for_what_is_not_known(make, invoke, answers):
    """No engine at all: no question marks, no `None`."""
    bench = await make()
    for path in ("/speculation", "/v1/loads", "/metrics", "/server_info"):
        bench.engine.fail[path] = httpx.ConnectError("refused")
    await bench.run(2)
    answers((await bench.api.get("/v1/status")).json())
    said = invoke("status").stdout
    assert "?" not in said
    assert re.search(r"load +not known", said)
    assert re.search(r"in force +not known", said)
    answers((await bench.api.get("/v1/explain")).json())
    said = invoke("explain").stdout
    assert (
        "load: requests running: not known, waiting: not known; batch size: not known (age not known)" in said
    )
    assert "None" not in said


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("wrong\n", "is another")])
async def test_a_token_that_is_refused_is_named_by_its_file(invoke, monkeypatch, tmp_path, text, said):
    """An empty file sends no token, which looks like a wrong one."""
    file = tmp_path / "token"
    file.write_text(text)
    refusal = {"error": {"field": None, "message": "a valid bearer token is needed"}}
    transport = httpx.MockTransport(lambda _request: httpx.Response(401, json=refusal))
    whole = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: whole(**given, transport=transport))
    ended = invoke("status", "--token-file", str(file))
    assert said in ended.stderr
    assert str(file) in ended.stderr.replace("\n", "")


@pytest.mark.parametrize(("mode", "said"), [("no_deeper", "no deeper"), ("no_shallower", "no shallower")])
async def test_status_and_explain_say_than_what_nothing_may_go_deeper(make, invoke, answers, mode, said):
    """The table in force when the order came: depth 2 at every batch size."""
    bench = await make()
    await bench.run(2)
    await bench.api.put("/v1/override", json={"mode": mode, "reason": "x"})
    await bench.run(1)
    answers((await bench.api.get("/v1/status")).json())
    assert f"until it is ended; {said} than depth 2" in " ".join(invoke("status").stdout.split())
    answers((await bench.api.get("/v1/explain")).json())
    assert f"order: {said} than depth 2\n" in invoke("explain").stdout


async def test_status_says_that_the_last_turn_is_old(make, invoke, answers):
    """What an engine that hangs did 8 s ago is not what it does now."""
    bench = await make()
    await bench.tick()
    bench.clock.now_s += 8
    answers((await bench.api.get("/v1/status")).json())
    said = invoke("status").stdout
    assert (
        "the last turn is 8 s old: the engine is slow or hangs, or turns fail: see the sidecar's log" in said
    )
    assert "  specgov preflight --engine http://127.0.0.1:30000\n" in said


def test_explain_prints_what_it_is_told_in_three_parts(invoke, answers):
    """Why, the numbers, what would change it; a part without lines has no title."""
    answers({"because": ["a"], "numbers": ["1 tok/s"], "would_change": ["b"], "decision": None})
    assert invoke("explain").stdout.splitlines() == [
        "a",
        "the numbers:",
        "  1 tok/s",
        "what would change it:",
        "  b",
    ]
    answers({"because": ["a"], "numbers": [], "would_change": [], "decision": None})
    assert invoke("explain").stdout.splitlines() == ["a"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "SGLang's own choice"),
        ([(1, 4, "on")], "depth 4 at every batch size"),
        ([(1, 0, "cold")], "depth 0 (cold) at every batch size"),
        (
            [(1, 4, "on"), (24, 1, "on"), (64, 0, "warm")],
            "batch size 1 to 23: depth 4, 24 to 63: depth 1, from 64 on: depth 0 (warm)",
        ),
        ([(1, 4, "on"), (2, 0, "warm")], "batch size 1: depth 4, from 2 on: depth 0 (warm)"),
    ],
)
def test_a_table_is_said_in_bands_of_batch_sizes(rows, said):
    """`from 44: 0` could be read as 44 tokens."""
    table = rows and [{"min_batch_size": size, "depth": depth, "gear": gear} for size, depth, gear in rows]
    assert operate._schedule(table) == said


def test_what_is_in_use_is_of_before_once_the_engine_is_silent():
    """`in use depth 4` of an engine that has been dead for a minute is not true."""
    depth = {"in_use": {"depth": 4, "gear": "on"}, "probing": True, "in_use_before": False, "decoded": True}
    assert operate._in_use(depth, away=False) == "depth 4, a short probe"
    assert operate._in_use(depth, away=True) == "not known; when it last answered: depth 4"
    assert operate._in_use({"in_use": None, "probing": False}, away=True) == "not known"
    before = "depth 4 at the latest step that was seen; none since what is wanted now"
    assert operate._in_use(depth | {"in_use_before": True}, away=False) == before


def test_a_url_without_a_scheme_is_refused_with_what_to_write(invoke):
    """It is no sidecar that does not run."""
    result = invoke("status", "--url", "127.0.0.1:9471")
    assert result.exit_code == Exit.USAGE
    assert "--url must begin with http:// or https://, got '127.0.0.1:9471'" in result.stderr


def test_decisions_say_how_to_go_on_to_older_rows(invoke, answers):
    """Twenty rows are not the whole night."""
    row = {"id": 7, "at_unix_s": 0.0, "kind": "decision", "reason": "fixed", "body": {"detail": "x"}}
    answers({"decisions": [row], "next_before": 7})
    assert invoke("decisions").stdout.splitlines()[-1] == "older rows: --before 7, or a larger --limit"
    answers({"decisions": [row], "next_before": None})
    assert "older rows" not in invoke("decisions").stdout


@pytest.mark.parametrize(
    ("load_age_s", "telemetry_age_s", "said"),
    [(0.42, 3.1, "0.4 s old; telemetry: 3.1 s old"), (None, None, "age not known; telemetry: age not known")],
)
def test_status_shows_the_age_of_the_load_and_of_the_telemetry(load_age_s, telemetry_age_s, said):
    """Which of the two is old tells where to look: the runbook goes by it."""
    load = {"running_reqs": 3, "queue_reqs": None, "age_s": load_age_s, "telemetry_age_s": telemetry_age_s}
    assert operate._load(load) == f"running: 3, waiting: not known, {said}"


def test_decisions_say_so_when_no_row_is_like_that(invoke, answers):
    """A bare heading could be read as: nothing was ever decided."""
    answers({"decisions": []})
    assert invoke("decisions", "--reason", "nope").stdout == "no row of the decision log is like that\n"


async def test_status_says_why_a_plan_is_not_applied(make, invoke, answers):
    """`none` alone could be read as: it has no effect."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "native", "reason": "x"})
    await bench.run(2)
    answers((await bench.api.get("/v1/status")).json())
    assert re.search(r"effect +none, for \d+ s: no plan is wanted", invoke("status").stdout)


@pytest.mark.parametrize(
    ("against", "said"),
    [
        (
            {
                "always_on": {"gain": -0.0104, "se_gain": 0.0113, "share": 0.16},
                "always_off": {"gain": 0.064, "se_gain": 0.003, "share": 1.0},
            },
            (
                "-1.0 % (± 1.1) against always on where that ran too, 16 % of the tokens,"
                " +6.4 % (± 0.3) against always off"
            ),
        ),
        (
            {
                "always_on": {"gain": None, "se_gain": None, "share": 0.0},
                "always_off": {"gain": 0.0, "se_gain": 0.001, "share": 0.996},
            },
            "not known against always on, +0.0 % (± 0.1) against always off",
        ),
        (
            {
                "always_on": {"gain": 0.0, "se_gain": 0.05, "share": 0.0099},
                "always_off": {"gain": 0.0, "se_gain": 0.05, "share": 0.01},
            },
            (
                "not known yet against always on,"
                " +0.0 % (± 5.0) against always off where that ran too, 1 % of the tokens"
            ),
        ),
    ],
)
def test_status_says_what_it_brought(against, said):
    """What was never measured is not 0 %, and what was measured of a part is not said of the whole."""
    assert operate._brought({"against": against, "since_unix_s": None}) == said


def test_status_says_since_when_it_counts(monkeypatch):
    """A restart begins anew: +15 % of two minutes is another thing than of a week."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    against = {"always_off": {"gain": -0.0001, "se_gain": 0.001, "share": 1.0}}
    assert operate._brought({"against": against, "since_unix_s": 400.0}) == (
        "not known against always on, +0.0 % (± 0.1) against always off; counted for 10 min"
    )


def test_an_order_that_is_kept_and_not_in_force_says_why_and_ends_with_3(invoke, answers):
    """`off`, and nothing else, would send somebody back to bed."""
    away = "the engine does not answer: connection refused"
    answers({"mode": "off", "expires_unix_s": None, "durable": True, "obstacle": away, "replaced": None})
    for options in ((), ("--json",)):
        result = invoke("override", "off", "--reason", "x", *options)
        assert result.exit_code == Exit.ATTENTION
        assert away in result.stdout
    assert f"kept, but not in force: {away}" in invoke("override", "off", "--reason", "x").stdout


def test_an_order_that_is_taken_is_asked_after_until_it_is_in_force(invoke, monkeypatch):
    """HTTP 200 is not applied: two looks later it is, and that ends with 0."""
    taken = {
        "mode": "off",
        "set_unix_s": 5.0,
        "durable": True,
        "obstacle": None,
        "unconfirmed": "not looked at",
    }
    looks = iter([taken, taken | {"unconfirmed": None}])
    asked = []

    def call(method, *_args, **_request):
        asked.append(method)
        return taken | {"replaced": {"detail": "on by jo: x"}} if method == "PUT" else next(looks)

    monkeypatch.setattr(operate, "call", call)
    monkeypatch.setattr("time.sleep", lambda _s: None)
    result = invoke("override", "off", "--reason", "x")
    assert (result.exit_code, asked) == (Exit.DONE, ["PUT", "GET", "GET"])
    said = ["off, until it is ended: specgov override auto", "replaced: on by jo: x"]
    assert result.stdout.splitlines() == said


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({}, "kept, not confirmed: the last turn is 5 s old"),
        ({"obstacle": "the engine does not answer"}, "kept, but not in force: the engine does not answer"),
        (
            {"mode": "native", "set_unix_s": 9.0, "detail": "native by ann: y"},
            "kept, not confirmed: by now something else stands: native by ann: y",
        ),
        (SidecarError("too many requests"), "the last turn is 5 s old; then: too many requests"),
    ],
)
def test_an_order_that_is_not_seen_in_force_in_time_ends_with_3(invoke, monkeypatch, later, said):
    """After 5 s at most; an obstacle, another's order and a sidecar that is gone are said at once."""
    waits = {"unconfirmed": "the last turn is 5 s old"}
    taken = {"mode": "off", "set_unix_s": 5.0, "durable": True, "obstacle": None, "replaced": None, **waits}
    clock = itertools.count(0.0, 1.0)

    def call(method, *_args, **_request):
        if method == "GET" and isinstance(later, SidecarError):
            raise later
        return taken if method == "PUT" else taken | later

    monkeypatch.setattr(operate, "call", call)
    monkeypatch.setattr("time.sleep", lambda _s: None)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    result = invoke("override", "off", "--reason", "x")
    assert result.exit_code == Exit.ATTENTION
    assert said in result.stdout


def test_a_foreign_lease_comes_with_the_command_that_ends_it(invoke, answers):
    """Nobody looks up a curl at night."""
    held = "specgov-bench/7 holds the lease (it ends by itself in 3412 s unless it is renewed)"
    free = "if its holder still runs, stop one of the two; if not, free the engine at once: curl -X DELETE x"
    answers({"mode": "off", "durable": True, "obstacle": held, "remedy": free, "replaced": None})
    lines = invoke("override", "off", "--reason", "x").stdout.splitlines()
    assert lines[1:3] == [f"kept, but not in force: {held}", f"to mend it: {free}"]


async def test_the_end_of_an_override_is_said_as_people_tell_time(make):
    """No seconds since 1970."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "x", "ttl_s": 60})
    await bench.run(1)
    changes = (await bench.api.get("/v1/explain")).json()["would_change"]
    assert changes == [
        "the override ends by itself at 2027-01-15 08:17:40 UTC; at once: specgov override auto"
    ]


def test_preflight_says_who_holds_the_lease(fake_state):
    """And that ranks which have acknowledged nothing cannot be compared."""
    held = fake_state | {"state": "governed", "holder": "pod-7", "lease": {"lease_s": 15.0, "left_s": 12.0}}
    found = {c.name: (c.verdict, c.found) for c in check(facts(control=parse_control_state(held)))}
    assert found["lease"] == (Verdict.WARN, "held by pod-7, 12 s left")
    assert found["ranks"] == (Verdict.PASS, "nothing to compare yet")


def test_override_help_names_every_mode(invoke):
    """All six."""
    said = invoke("override", "--help").stdout
    for mode in Mode:
        assert str(mode) in said


def test_override_wants_a_reason_and_a_known_mode(invoke, answers):
    """Nothing is sent."""
    asked = answers({})
    assert invoke("override", "off").exit_code == Exit.USAGE
    assert invoke("override", "off", "--reason", "  ").exit_code == Exit.USAGE
    assert invoke("override", "sideways", "--reason", "x").exit_code == Exit.USAGE
    assert invoke("override", "off", "--reason", "x", "--ttl", "soon").exit_code == Exit.USAGE
    assert asked == []


async def test_status_decisions_and_explain_print_what_the_api_says(make, invoke, answers):
    """One screen, with markup in an operator's text left as it is; 3 when something needs attention."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "[bold]x[/]", "ttl_s": 60})
    await bench.run(3, batch_size=4)
    answers((await bench.api.get("/v1/status")).json())
    result = invoke("status")
    assert "off by someone: [bold]x[/]" in result.stdout
    assert "specgov override auto" in result.stdout
    assert result.exit_code == 0
    answers((await bench.api.get("/v1/decisions")).json())
    assert "override" in invoke("decisions").stdout
    answers((await bench.api.get("/v1/explain")).json())
    assert "what would change it:" in invoke("explain").stdout
    bench.engine.plugin = False
    await bench.tick()
    answers((await bench.api.get("/v1/status")).json())
    result = invoke("status")
    assert "no_plugin" in result.stdout
    assert result.exit_code == Exit.ATTENTION


def test_commands_are_found_by_module():
    """A new file in the package is a new group of commands; helpers are not."""
    names = {command.name or command.callback.__name__ for command in cli.make_app().registered_commands}
    assert {"run", "status", "override", "decisions", "explain", "preflight", "engine-flags"} <= names
    assert engine_setup.register


def test_a_sidecar_that_runs_holds_no_other_command_in_memory():
    """Each megabyte is paid once for every pod: `run` imports no bench, simulator, terminal or preflight."""
    program = (
        "import sys; from controller import cli; cli.make_app(['run'])\n"
        "from controller import serving, wiring\n"
        "names = {name.partition('.')[0] for name in sys.modules} | set(sys.modules)\n"
        "print(sorted(names & {'controller.bench', 'controller.simulation', 'controller.preflight', "
        "'controller.cli.watch', 'pygments', 'rich', 'otel', 'matplotlib'}))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_first_word_that_is_no_command_leaves_all_of_them(monkeypatch, capsys):
    """Only the name of a command narrows what is loaded."""
    monkeypatch.setattr(sys, "argv", ["specgov", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert {"run", "preflight", "watch"} <= set(capsys.readouterr().out.split())


def test_what_to_type_reaches_the_sidecar_that_said_it(monkeypatch):
    """On a machine with two, a hint without the address would turn off the other one."""
    monkeypatch.setenv("SPECGOV_TOKEN_FILE", "/run/token")
    hint = 'specgov override off --ttl 30m --reason "WHY"'
    there = "http://127.0.0.1:9471"
    assert _common.addressed(hint, _common.DEFAULT_URL, None) == hint
    assert _common.addressed(hint, there, Path("/run/token")) == (
        f'specgov override off --url {there} --ttl 30m --reason "WHY"'
    )
    assert _common.addressed("x; specgov override native; report it", there, Path("/a b")) == (
        f"x; specgov override native --url {there} --token-file '/a b'; report it"
    )
    monkeypatch.setenv("SPECGOV_URL", there)
    assert _common.addressed(hint, there, None) == hint


@pytest.mark.parametrize(("refusals", "done"), [(9, True), (10, False)])
def test_an_order_that_came_too_often_is_asked_again(monkeypatch, refusals, done):
    """A flood ends; what was refused was not done.  Ten times in all, in 4.5 s."""
    asked = []

    class Busy(Pageless):
        def do_DELETE(self):
            asked.append(self.path)
            busy = len(asked) <= refusals
            body = {"error": {"field": None, "message": "too many requests"}} if busy else {"mode": "auto"}
            self.send_response(429 if busy else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    monkeypatch.setattr(_common, "RETRY_S", 0.01)
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        refused = contextlib.nullcontext() if done else pytest.raises(SidecarError, match="too many requests")
        with refused:
            assert _common.call("DELETE", url, "/v1/override", None) == {"mode": "auto"}
        server.shutdown()
    assert len(asked) == 10
