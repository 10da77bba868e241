"""The status page's files, and the two views that only it needs, on the sidecar's API."""

import json
import re
import tomllib
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest

from controller.history import KEEP_S


async def samples(bench, since=0.0):
    """Samples of `/v1/history`."""
    return (await bench.api.get("/v1/history", params={"since_unix_s": since})).json()["samples"]


async def test_the_page_is_open_while_its_data_may_be_guarded(make):
    """The page holds no data; with protected reads every view of it asks for the token."""
    bench = await make(api__token="s3cret", api__protect_reads=True)
    assert (await bench.api.get("/")).status_code == 200
    for path in ("/v1/history", "/v1/benefit", "/v1/status"):
        assert (await bench.api.get(path)).status_code == 401, path
        allowed = await bench.api.get(path, headers={"authorization": "Bearer s3cret"})
        assert allowed.status_code == 200, path


async def test_every_file_that_the_page_names_is_served_with_its_type(make):
    """Scripts, style and icon; the modules that import one another too."""
    bench = await make()
    page = await bench.api.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    kinds = {"style.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        assert f"ui/{name}" in page.text
        answer = await bench.api.get(f"/ui/{name}")
        assert answer.headers["content-type"].startswith(kind)
    names = set(re.findall(r'from "\./([\w.]+)"', (await bench.api.get("/ui/app.js")).text))
    assert len(names) == 8
    for name in names:
        assert (await bench.api.get(f"/ui/{name}")).status_code == 200, name


async def test_nothing_in_the_page_is_inline_or_from_elsewhere(make):
    """What the page's own policy would block is not there in the first place."""
    bench = await make()
    page = (await bench.api.get("/")).text
    for forbidden in ("http://", "https://", "style=", "onclick", "onload", "javascript:", "<script>"):
        assert forbidden not in page, forbidden


async def test_history_has_a_sample_a_turn_and_unknown_stays_unknown(make):
    """100 tokens a second at batch size 5: 10 steps of 5 requests and 3 tokens (depth 2) in 1 s are 150."""
    bench = await make()
    await bench.run(2)
    await bench.run(3, batch_size=5)
    found = await samples(bench)
    assert len(found) == 5
    assert found[0]["decode_tok_s"] is None, "there is no turn before the first"
    assert found[-1]["running_reqs"] == 5
    assert found[-1]["in_use"] == {"depth": 2, "gear": "on"}
    assert found[-1]["decode_tok_s"] == pytest.approx(150.0)
    bench.engine.fail["GET /speculation"] = httpx.ConnectError("gone")
    bench.engine.fail["/v1/loads"] = httpx.ConnectError("gone")
    bench.engine.fail["/metrics"] = httpx.ConnectError("gone")
    await bench.run(3, seconds=40)
    assert (await samples(bench))[-1]["decode_tok_s"] is None


async def test_history_gives_only_what_is_new(make):
    """What a page that is open asks for."""
    bench = await make()
    await bench.run(5)
    middle = (await samples(bench))[2]["at_unix_s"]
    assert len(await samples(bench, since=middle)) == 2


async def test_history_is_bounded(make):
    """Half an hour, a sample a second, however long it runs and however often it turns."""
    bench = await make()
    await bench.run(20, seconds=0.25)
    assert len(await samples(bench)) == 5
    for _ in range(300):
        await bench.tick(KEEP_S / 100)
    assert len(await samples(bench)) == 305


async def test_benefit_is_served_and_exported(make):
    """Depth 2 alone ran: 3 tokens in 20 ms for each of 4 requests are 600 tok/s; nothing to compare with."""
    bench = await make()
    await bench.run(4, batch_size=4)
    body = (await bench.api.get("/v1/benefit")).json()
    measured = {(m["batch_bucket"], m["depth"]): m["tok_s"] for m in body["measured"]}
    assert measured[4, 2] == pytest.approx(600.0)
    assert body["against"]["always_off"]["gain"] is None
    assert body["against"]["always_off"]["share"] == 0.0
    metrics = (await bench.api.get("/metrics")).text
    assert 'specgov_compared_tokens_total{against="always_off"} 0.0' in metrics


async def test_only_what_ran_while_governed_is_compared(make):
    """Neither under `native`, nor after the lease had ended, nor in a dry run; from when on is said."""
    bench = await make()
    compared = lambda body: body["against"]["always_on"]["tokens"]  # noqa: E731
    await bench.run(4, batch_size=4)
    governed = (await bench.api.get("/v1/benefit")).json()
    assert governed["since_unix_s"] == 1_800_001_001.0
    await bench.api.put("/v1/override", json={"mode": "on", "depth": 3, "reason": "x"})
    await bench.run(6, batch_size=4)
    ordered = compared((await bench.api.get("/v1/benefit")).json())
    assert ordered > compared(governed)
    await bench.api.put("/v1/override", json={"mode": "native", "reason": "x"})
    await bench.run(1, batch_size=4)
    released = compared((await bench.api.get("/v1/benefit")).json())
    await bench.run(5, batch_size=4)
    assert compared((await bench.api.get("/v1/benefit")).json()) == released
    await bench.api.put("/v1/override", json={"mode": "on", "depth": 3, "reason": "x"})
    await bench.run(3, batch_size=4)
    before = compared((await bench.api.get("/v1/benefit")).json())
    assert before > released
    away = dict.fromkeys(("/speculation", "/v1/loads", "/metrics"), httpx.ConnectError("away"))
    bench.engine.fail.update(away)
    await bench.run(30, batch_size=4)
    bench.engine.fail.clear()
    await bench.run(1, batch_size=4)
    assert compared((await bench.api.get("/v1/benefit")).json()) == before


async def test_a_dry_run_brings_nothing(make):
    """It tells how fast things are, and that no token was compared."""
    bench = await make(dry_run=True)
    await bench.run(6, batch_size=4)
    body = (await bench.api.get("/v1/benefit")).json()
    assert body["measured"]
    assert {each["tokens"] for each in body["against"].values()} == {0.0}


async def test_a_policy_without_a_forecast_shows_no_curve(make):
    """Nothing is made up."""
    bench = await make()
    await bench.run(1)
    assert (await bench.api.get("/v1/policy")).json()["curves"] == []


async def test_a_policy_with_a_forecast_shows_a_curve_for_each_arm_it_knows(make):
    """Goodput has seen depth 3 (SGLang's own start): its curve rises with the batch size."""
    bench = await make(policy__name="goodput")
    await bench.run(6, batch_size=4)
    curves = (await bench.api.get("/v1/policy")).json()["curves"]
    (curve,) = [each for each in curves if each["depth"] == 3]
    by_size = {point["batch_size"]: point for point in curve["points"]}
    assert by_size[8]["tok_s"] > by_size[1]["tok_s"] > 0
    assert by_size[4]["se_tok_s"] < by_size[max(by_size)]["se_tok_s"], (
        "far from what was seen it is less sure"
    )


async def test_an_order_of_the_fleet_is_obeyed_and_shows(make, tmp_path):
    """Off while the file says so; the status says whose order it is."""
    file = tmp_path / "override.json"
    bench = await make(fleet__file=str(file))
    await bench.run(2, batch_size=4)
    assert bench.engine.depth == 2
    file.write_text(json.dumps({"mode": "off", "reason": "all of them", "actor": "ann"}))
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 0
    status = (await bench.api.get("/v1/status")).json()
    assert (status["mode"], status["override"]["scope"], status["override"]["actor"]) == (
        "off",
        "fleet",
        "ann",
    )
    file.unlink()
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 2


async def test_a_wrong_file_of_the_fleet_is_a_condition_and_changes_nothing(make, tmp_path):
    """The message names the field."""
    file = tmp_path / "override.json"
    file.write_text(json.dumps({"mode": "of", "reason": "typo"}))
    bench = await make(fleet__file=str(file))
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 2
    assert "fleet_override_invalid" in bench.conditions()
    found = {c["condition"]: c["message"] for c in (await bench.api.get("/v1/status")).json()["conditions"]}
    assert "mode" in found["fleet_override_invalid"]


async def test_the_pods_order_stands_above_the_fleets_and_both_show(make, tmp_path):
    """REST wins on its pod; deleting it brings the fleet's back."""
    file = tmp_path / "override.json"
    file.write_text(json.dumps({"mode": "off", "reason": "all"}))
    bench = await make(fleet__file=str(file))
    await bench.run(2, batch_size=4)
    await bench.api.put("/v1/override", json={"mode": "on", "depth": 3, "reason": "not this one"})
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 3
    status = (await bench.api.get("/v1/status")).json()
    assert (status["override"]["scope"], status["fleet_override"]["mode"]) == ("pod", "off")
    await bench.api.delete("/v1/override")
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 0


async def test_orders_of_the_fleet_are_in_the_log_from_their_first_turn_to_their_end(make, tmp_path):
    """Who, what and why: coming into force, replaced, ended, over at its time."""
    file = tmp_path / "override.json"
    bench = await make(fleet__file=str(file))
    await bench.run(2)
    ends = datetime.fromtimestamp(bench.clock.wall() + 15, UTC).isoformat()
    for content in (
        {"mode": "off", "reason": "bad kernel", "actor": "ann"},
        {"mode": "native", "reason": "worse", "actor": "bob"},
        None,
        {"mode": "off", "reason": "again", "actor": "ann", "until": ends},
    ):
        file.write_text(json.dumps(content)) if content else file.unlink()
        await bench.run(3)
    await bench.run(8)
    page = (await bench.api.get("/v1/decisions", params={"kind": "override"})).json()["decisions"]
    assert [(row["reason"], row["body"]["detail"]) for row in reversed(page)] == [
        ("off", "the fleet's off by ann: bad kernel"),
        ("native", "the fleet's native by bob: worse; replaces the fleet's off by ann: bad kernel"),
        ("ended", "the fleet's native by bob: worse"),
        ("off", "the fleet's off by ann: again"),
        ("expired", "the fleet's off by ann: again"),
    ]
    assert {(row["body"]["scope"], row["body"]["actor"]) for row in page} == {
        ("fleet", "ann"),
        ("fleet", "bob"),
    }


async def test_a_fleets_file_that_is_emptied_while_the_sidecar_is_down_ends_nothing(make, tmp_path):
    """Off before and after the restart, and the mistake shows."""
    file = tmp_path / "override.json"
    file.write_text(json.dumps({"mode": "off", "reason": "bad kernel"}))
    first = await make(fleet__file=str(file))
    await first.run(2, batch_size=4)
    await first.assembly.aclose()
    file.write_text("")
    second = await make(engine=first.engine, fleet__file=str(file))
    await second.run(3, batch_size=4)
    assert second.engine.depth == 0
    assert second.conditions() == {"fleet_override_invalid"}


async def test_auto_under_an_order_of_the_fleet_says_what_it_suspends_and_how_to_give_that_up(make, tmp_path):
    """Tied to that order: a later one is obeyed, and the log tells all of it."""
    file = tmp_path / "override.json"
    file.write_text(json.dumps({"mode": "off", "reason": "bad kernel", "actor": "ann"}))
    bench = await make(fleet__file=str(file))
    await bench.run(3, batch_size=4)
    body = {"mode": "auto", "reason": "try here", "actor": "jo"}
    for _ in range(2):
        answer = (await bench.api.put("/v1/override", json=body)).json()
        assert (answer["mode"], answer["scope"], answer["suspends"]) == (
            "auto",
            "pod",
            "off by ann: bad kernel",
        )
    await bench.run(3, batch_size=4)
    assert bench.engine.depth == 2
    status = (await bench.api.get("/v1/status")).json()
    assert status["type"] == ["specgov override fleet"]
    assert (status["override"]["suspends"], status["fleet_override"]["mode"]) == (
        "off by ann: bad kernel",
        "off",
    )
    explained = (await bench.api.get("/v1/explain")).json()
    assert "order: suspends the fleet's off by ann: bad kernel" in explained["because"]
    ends = (
        "the override ends by itself when the fleet's order changes or ends; at once: specgov override fleet"
    )
    assert ends in explained["would_change"]
    file.write_text(json.dumps({"mode": "native", "reason": "worse", "actor": "bob"}))
    await bench.run(2, batch_size=4)
    assert bench.loop.last.override.reason == "worse"
    rows = bench.assembly.sidecar.decisions(kind="override")
    assert rows[-2].body["detail"] == "auto by jo: try here; suspends the fleet's off by ann: bad kernel"
    assert rows[0].reason == "expired"


def test_every_file_of_the_page_is_in_the_wheel():
    """`pip install` must not lose the icon: the patterns of pyproject.toml cover all of `ui/`."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["controller"]
    files = [path.name for path in (root / "controller" / "ui").iterdir() if path.is_file()]
    assert len(files) >= 11
    assert [name for name in files if not any(fnmatch(name, p.removeprefix("**/")) for p in patterns)] == []
