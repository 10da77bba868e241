"""The REST API, in process."""

from __future__ import annotations

import re

import httpx
import pytest

WRITES = [("PUT", "/v1/override"), ("DELETE", "/v1/override")]
READS = ["/v1/status", "/v1/override", "/v1/decisions", "/v1/policy", "/v1/explain"]
OPEN = ["/healthz", "/metrics", "/docs", "/openapi.json"]


async def test_status_is_one_page_with_what_to_type(make):
    """Mode, since when, why; load, depth, lease, engine; and the next command."""
    bench = await make()
    await bench.run(3, batch_size=4)
    status = (await bench.api.get("/v1/status")).json()
    assert status["headline"] == "governed (policy), depth 2 in use: fixed at depth 2"
    assert (status["mode"], status["mode_since_unix_s"]) == ("auto", 1_800_001_000.0)
    assert status["load"]["running_reqs"] == 4
    assert status["load"]["age_s"] == 0.0
    assert status["load"]["queue_age_s"] == pytest.approx(0.1)
    assert status["depth"]["in_force"] == [{"min_batch_size": 1, "depth": 2}]
    assert status["depth"]["in_use"] == {"depth": 2, "gear": "on"}
    assert (status["lease"]["state"], status["engine"]["link"]) == ("held", "ready")
    assert status["type"] == ['specgov override off --ttl 30m --reason "WHY"']


async def test_status_names_the_guard_that_rules_and_why(make):
    """Null as long as the policy, or an order, has the last word."""
    bench = await make(policy__name="threshold")
    await bench.run(3, batch_size=4)
    assert (await bench.api.get("/v1/status")).json()["guard"] is None
    bench.engine.fail["/v1/loads"] = bench.engine.fail["/metrics"] = httpx.ReadError("reset")
    await bench.run(12)
    status = (await bench.api.get("/v1/status")).json()
    assert status["guard"] == {"name": "stale input", "because": "the load is too old or not known"}
    assert "(guard: stale input)" in status["headline"]


async def test_status_says_how_depth_0_and_verifies_run_and_why(make):
    """As the hook says it."""
    bench = await make()
    await bench.tick()
    engine = bench.assembly.sidecar.status()["engine"]
    assert (engine["plain_decode"], engine["plain_decode_reason"]) == (False, "not adapted")
    assert engine["chain_verify"] is False
    assert engine["chain_verify_backend"] == "TorchNativeAttnBackend"
    assert engine["chain_verify_reason"] == "not known"


async def test_status_before_the_first_turn_says_so(make):
    """And readiness waits for it, health does not."""
    bench = await make()
    assert (await bench.api.get("/v1/status")).json()["headline"] == "starting: no turn is done yet"
    assert (await bench.api.get("/readyz")).status_code == 503
    assert (await bench.api.get("/healthz")).status_code == 200
    assert (await bench.api.get("/v1/explain")).json()["because"] == ["no turn is done yet"]


async def test_ready_while_sglang_is_away_and_unhealthy_only_when_the_loop_stands(make):
    """The sidecar must not take SGLang's pod out of service."""
    bench = await make()
    bench.engine.plugin = False
    await bench.tick()
    assert (await bench.api.get("/readyz")).status_code == 200
    bench.clock.now_s += 21
    answer = await bench.api.get("/healthz")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the control loop does not turn")


async def test_a_token_is_asked_for_where_something_changes(make, tmp_path):
    """Missing or wrong: 401 and nothing changes; rotated in its file: the new one counts."""
    file = tmp_path / "token"
    file.write_text("first\n")
    bench = await make(api__token_file=str(file))
    body = {"mode": "off", "reason": "x"}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}):
        for method, path in WRITES:
            answer = await bench.api.request(method, path, json=body, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["field"] is None
    assert (await bench.api.get("/v1/override")).json()["mode"] == "auto"
    right = {"authorization": "Bearer first"}
    assert (await bench.api.put("/v1/override", json=body, headers=right)).status_code == 200
    file.write_text("second token\n")
    assert (await bench.api.put("/v1/override", json=body, headers=right)).status_code == 401
    rotated = {"authorization": "Bearer second token"}
    assert (await bench.api.put("/v1/override", json=body, headers=rotated)).status_code == 200


async def test_reads_need_the_token_only_where_that_is_set(make):
    """Probes and metrics stay open for kubelet and Prometheus."""
    bench = await make(api__token="t", api__protect_reads=True)
    await bench.tick()
    for path in READS:
        assert (await bench.api.get(path)).status_code == 401, path
        assert (await bench.api.get(path, headers={"authorization": "Bearer t"})).status_code == 200, path
    for path in OPEN:
        assert (await bench.api.get(path)).status_code == 200, path


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"mode": "sideways", "reason": "x"}, "mode"),
        ({"mode": "off"}, "reason"),
        ({"mode": "off", "reason": ""}, "reason"),
        ({"mode": "off", "reason": " \t\u00a0"}, "reason"),
        ({"mode": "off", "reason": "a\nb"}, "reason"),
        ({"mode": "off", "reason": "a\u009b31mb"}, "reason"),
        ({"mode": "off", "reason": "\u200b"}, "reason"),
        ({"mode": "off", "reason": "a\u2028b"}, "reason"),
        ({"mode": "off", "reason": "a\u202eb"}, "reason"),
        ({"mode": "off", "reason": "a\u2067b"}, "reason"),
        ({"mode": "off", "reason": "x" * 401}, "reason"),
        ({"mode": "off", "reason": "x", "ttl_s": 0}, "ttl_s"),
        ({"mode": "off", "reason": "x", "ttl_s": 1e9}, "ttl_s"),
        ({"mode": "off", "reason": "x", "ttl_s": True}, "ttl_s"),
        ({"mode": "off", "reason": "x", "ttl_s": "60"}, "ttl_s"),
        ({"mode": "auto", "reason": "x", "ttl_s": 60}, "ttl_s"),
        ({"mode": "on", "reason": "x", "depth": -1}, "depth"),
        ({"mode": "on", "reason": "x", "depth": 7}, "depth"),
        ({"mode": "on", "reason": "x", "depth": "2"}, "depth"),
        ({"mode": "on", "reason": "x", "depth": True}, "depth"),
        ({"mode": "off", "reason": "x", "depth": 2}, "depth"),
        ({"mode": "off", "reason": "x", "extra": 1}, "extra"),
        ([], None),
    ],
)
async def test_a_bad_override_is_refused_with_its_field(make, body, field):
    """422, and nothing changes."""
    bench = await make()
    await bench.tick()
    answer = await bench.api.put("/v1/override", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field
    assert (await bench.api.get("/v1/override")).json()["mode"] == "auto"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"mode": "off", "reason": "\u00e9" x}',
            "the body is not JSON at byte 31: Expecting ',' delimiter",
        ),
        (b'{"mode": "\xff"}', "the body is not JSON at byte 10: not UTF-8"),
        ('{"mode": "off", "mode": "on", "reason": "x"}', "an object has the key 'mode' twice: leave one out"),
    ],
)
async def test_a_body_that_is_not_one_json_value_is_refused_with_the_place(make, content, message):
    """400, about no field, and nothing changes."""
    bench = await make()
    answer = await bench.api.put(
        "/v1/override", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json() == {"error": {"field": None, "message": message}}
    assert (await bench.api.get("/v1/override")).json()["mode"] == "auto"


async def test_a_body_of_another_media_type_is_refused_by_the_name_of_the_header(make):
    """As `curl -d` sends it."""
    bench = await make()
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await bench.api.put("/v1/override", content='{"mode": "off", "reason": "x"}', headers=form)
    message = "Content-Type must be application/json, got 'application/x-www-form-urlencoded'"
    assert (answer.status_code, answer.json()["error"]) == (422, {"field": None, "message": message})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"mode": "off", "reason": "x", "ttl_s": 0}, "greater than or equal to 1, got 0: see /docs"),
        ({"mode": "off", "reason": "x", "depth": "2"}, 'got "2": see /docs'),
        ({"mode": "sideways", "reason": "x"}, 'got "sideways": see /docs'),
        ({"mode": "off", "reason": "x" * 401}, 'got "' + "x" * 56 + "...: see /docs"),
        ({"mode": "off", "reason": "a\u202eb"}, r'got "a\u202eb": see /docs'),
        ({"mode": {"a": "s3cret"}, "reason": "x"}, "got an object: see /docs"),
        ({"mode": "off"}, "got nothing: give it"),
        ({"mode": "off", "reason": "x", "token": "s3cret"}, "no such field, leave it out"),
        ({"mode": "off", "reason": "x", "k" * 5000: 1}, "no such field, leave it out"),
    ],
)
async def test_a_refusal_says_what_was_given_in_bounds_and_never_a_secret(make, body, said):
    """Field, rule, value, remedy; a value under an unknown name is not repeated."""
    bench = await make()
    message = (await bench.api.put("/v1/override", json=body)).json()["error"]["message"]
    assert said in message
    assert "s3cret" not in message
    assert len(message) < 300


async def test_off_is_refused_where_depth_0_is_not_built(make):
    """With what would mend it."""
    bench = await make()
    bench.engine.built_depths = [1, 2]
    await bench.tick()
    answer = await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert message == "mode must lead to a built depth (1, 2), got 0; see specgov engine-flags"


@pytest.mark.parametrize(
    ("away", "why"),
    [
        ({"fail": {"/speculation": httpx.ConnectError("refused")}}, "the engine does not answer"),
        ({"controllable": False, "reason": "DP attention is on"}, "DP attention is on"),
        ({"plugin": False}, "no /speculation endpoint"),
    ],
)
async def test_an_order_that_the_engine_cannot_follow_is_kept_and_said_not_to_be_in_force(make, away, why):
    """Rather than "in force", or a depth that is "not built": it comes into force when that is mended."""
    bench = await make()
    whole = {name: getattr(bench.engine, name) for name in away}
    for name, value in away.items():
        setattr(bench.engine, name, value)
    await bench.run(2)
    answer = await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})
    assert answer.status_code == 200
    assert why in answer.json()["obstacle"]
    result = await bench.tick(20.0)
    assert (result.decision.action, result.decision.reason) == ("hold", "not_controlled")
    assert "not_built" not in bench.conditions()
    status = (await bench.api.get("/v1/status")).json()
    assert why in status["override"]["obstacle"]
    assert status["why"].startswith("nothing is put in force: ")
    for name, value in whole.items():
        setattr(bench.engine, name, value)
    await bench.run(2, batch_size=4, seconds=61)
    assert (await bench.api.get("/v1/override")).json()["obstacle"] is None
    assert bench.engine.puts[-1]["schedule"] == [{"min_batch_size": 1, "depth": 0, "gear": "cold"}]


async def test_a_body_that_is_too_large_is_refused(make):
    """Whatever it holds."""
    bench = await make(api__max_body_bytes=256)
    answer = await bench.api.put("/v1/override", content=b"x" * 257)
    assert answer.status_code == 413


async def test_a_dry_sidecar_refuses_an_override(make):
    """Rather than promise an operator what it will not do."""
    bench = await make(dry_run=True)
    answer = await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, None)


UNORDERED = {
    "mode": "auto",
    "durable": True,
    "obstacle": None,
    "remedy": None,
    "unconfirmed": "no turn is done yet",
    "in_force_since_unix_s": None,
    "gap_unix_s": None,
    "after_restart": None,
}


async def test_delete_ends_the_order_and_is_idempotent(make):
    """Twice the same answer; the log has it once."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "x", "actor": "jo"})
    for _ in range(2):
        answer = await bench.api.delete("/v1/override", params={"reason": "over", "actor": "jo"})
        assert answer.json() == UNORDERED
    page = (await bench.api.get("/v1/decisions", params={"kind": "override"})).json()
    assert [row["reason"] for row in page["decisions"]] == ["auto", "off"]


async def test_auto_without_an_order_changes_and_logs_nothing(make):
    """Also on a store in memory, where no older order can come back."""
    bench = await make(store__path=":memory:")
    for _ in range(2):
        answer = await bench.api.put("/v1/override", json={"mode": "auto", "reason": "x"})
        assert answer.json() == UNORDERED | {"replaced": None, "pin_ended": False}
    assert (await bench.api.get("/v1/decisions")).json()["decisions"] == []


async def test_an_order_says_whose_it_replaced(make):
    """Mode, who and why; then `auto` says what it ended."""
    bench = await make()
    first = {"mode": "off", "reason": "incident 7", "actor": "jo"}
    assert (await bench.api.put("/v1/override", json=first)).json()["replaced"] is None
    for mode, replaced in (("native", "off by jo: incident 7"), ("auto", "native by someone: x")):
        answer = await bench.api.put("/v1/override", json={"mode": mode, "reason": "x"})
        assert answer.json()["replaced"]["detail"] == replaced


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_answer_head(make, path):
    """As uptime checks and link checkers ask."""
    bench = await make()
    assert (await bench.api.head(path)).status_code == 200


async def test_decisions_are_paged(make):
    """`next_before` leads on until there is no more."""
    bench = await make()
    await bench.run(3, batch_size=4)
    seen, before = [], None
    while True:
        params = {"limit": 2} | ({"before": before} if before else {})
        page = (await bench.api.get("/v1/decisions", params=params)).json()
        seen += [row["id"] for row in page["decisions"]]
        before = page["next_before"]
        if before is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 1
    assert (await bench.api.get("/v1/decisions", params={"limit": 0})).status_code == 422


async def test_policy_shows_parameters_schedule_and_shadow(make):
    """What decides, what would decide."""
    bench = await make(policy__shadow="threshold")
    await bench.tick()
    said = (await bench.api.get("/v1/policy")).json()
    assert (said["name"], said["params"]["depth"]) == ("fixed", 2)
    assert said["schedule"] == [{"min_batch_size": 1, "depth": 2}]
    assert said["shadow"]["name"] == "threshold"
    assert said["shadow"]["decision"]["schedule"][1] == {"min_batch_size": 32, "depth": 0, "gear": "warm"}
    assert bench.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 2}]


async def test_explain_tells_what_would_change_the_depth(make):
    """At batch size 4 of the default table: 32 requests would turn it off."""
    bench = await make(policy__name="threshold")
    await bench.run(3, batch_size=4)
    said = (await bench.api.get("/v1/explain")).json()
    assert "a batch size of 32 or more: depth 0 warm" in said["would_change"]
    assert any("requests running: 4, waiting: 0; batch size: 4 (" in line for line in said["because"])


async def test_the_docs_load_nothing_from_elsewhere(make):
    """They work without internet access."""
    bench = await make()
    page = (await bench.api.get("/docs")).text
    assert "PUT /v1/override" in page
    assert not re.search(r"https?://|<script|src=", page)


async def test_metrics_show_inputs_beside_outputs(make):
    """Load, depth, lease, effect, cells, after three turns at batch size 4 with all drafts accepted."""
    bench = await make()
    await bench.run(3, batch_size=4)
    lines = (await bench.api.get("/metrics")).text.splitlines()
    for line in (
        'specgov_mode{mode="auto"} 1.0',
        "specgov_running_requests 4.0",
        'specgov_schedule_depth{batch_bucket="64"} 2.0',
        "specgov_depth_in_use 2.0",
        'specgov_lease_state{state="held"} 1.0',
        'specgov_effect{effect="applied"} 1.0',
        'specgov_condition{condition="inert"} 0.0',
        "specgov_engine_decode_steps_total 20.0",
        'specgov_engine_steps_total{batch_bucket="4",depth="2",gear="on"} 20.0',
        'specgov_engine_accepted_drafts_total{accepted="2",depth="2"} 80.0',
        "specgov_decode_tokens_per_second 120.0",
        "specgov_ticks_total 3.0",
    ):
        assert line in lines, line
    assert any(line.startswith('specgov_build_info{version="') for line in lines)


async def test_unknown_is_nan_in_metrics(make):
    """An engine that does not answer has no load, rather than none."""
    bench = await make()
    bench.engine.plugin = False
    for path in ("/v1/loads", "/metrics", "/server_info"):
        bench.engine.fail[path] = httpx.ConnectError("refused")
    await bench.run(2)
    lines = (await bench.api.get("/metrics")).text.splitlines()
    assert "specgov_running_requests NaN" in lines
    assert 'specgov_signal_age_seconds{signal="load"} NaN' in lines
    assert 'specgov_engine_link{link="no_plugin"} 1.0' in lines
    assert not any(line.startswith("specgov_schedule_depth{") for line in lines)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_answers_head_as_it_answers_get(make, path):
    """Some load balancers ask so."""
    bench = await make()
    await bench.tick()
    answer = await bench.api.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_reason_of_two_lines_is_refused_in_words(make):
    """Nobody reads a pattern at three in the morning."""
    bench = await make()
    answer = await bench.api.put("/v1/override", json={"mode": "off", "reason": "a\nb"})
    assert answer.json()["error"]["message"] == (
        "reason: must be one line, without control characters (line breaks, tabs, turns of direction,"
        " zero-width spaces), "
        r'got "a\nb": see /docs for what it takes'
    )


@pytest.mark.parametrize("body", ["[]", "null", '"off"', "7"])
async def test_a_body_that_is_no_object_is_refused_in_our_words(make, body):
    """Not in those of the library that reads it."""
    bench = await make()
    answer = await bench.api.put("/v1/override", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"] == {"field": None, "message": "the body must be a JSON object"}


async def test_a_body_that_is_nested_too_deeply_is_refused_in_our_words(make):
    """Not in those of Python's recursion limit."""
    bench = await make()
    body, kind = "[" * 15_000, {"content-type": "application/json"}
    answer = await bench.api.put("/v1/override", content=body, headers=kind)
    assert answer.status_code == 400
    said = "the body is nested too deeply: an order is one flat object"
    assert answer.json()["error"] == {"field": None, "message": said}
