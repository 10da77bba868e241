"""Kept is not in force: what is said of an order that no turn has looked at, or the engine not followed."""

from __future__ import annotations

import httpx
import pytest

from controller.cli import operate
from controller.engine_commands import release_command
from controller.order_force import Force, ForceTracker
from controller.settings import EngineSettings

HANGS = {"/speculation": httpx.ReadTimeout("no answer"), "/v1/loads": httpx.ReadTimeout("no answer")}


async def order(bench, **body):
    answer = await bench.api.put("/v1/override", json={"reason": "x", "actor": "jo", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def kept(bench):
    return (await bench.api.get("/v1/override")).json()


def test_in_force_counts_from_the_first_turn_that_saw_it_and_a_break_ends_it():
    """Given at 0; obeyed from 1 to 2 and again from 5."""
    tracker = ForceTracker()
    seen = [(0.0, False), (1.0, True), (2.0, True), (3.0, False), (4.0, False), (5.0, True), (6.0, True)]
    found = [tracker.update(("off",), obeyed=obeyed, now_unix_s=at) for at, obeyed in seen]
    assert found[0] == Force()
    assert found[2] == Force(1.0)
    assert found[4] == Force()
    assert found[5:] == [Force(5.0, (2.0, 5.0))] * 2


def test_an_order_that_another_had_covered_knows_its_gap():
    """In force at 1; another from 2; back at 9."""
    tracker = ForceTracker()
    for at, given in ((1.0, ("fleet",)), (2.0, ("pod",)), (8.0, ("pod",))):
        tracker.update(given, obeyed=True, now_unix_s=at)
    assert tracker.update(("fleet",), obeyed=True, now_unix_s=9.0) == Force(9.0, (1.0, 9.0))
    assert tracker.ever(("pod",))
    assert not tracker.ever(("other",))


async def test_an_order_is_in_force_with_the_turn_in_which_the_engine_took_it(make):
    """Not with the 200; mode, since when and what undoes it are said at once."""
    bench = await make()
    await bench.run(2)
    answer = await order(bench, mode="off")
    assert answer["unconfirmed"] == "no turn has looked at it yet, the last is 0 s old"
    assert answer["in_force_since_unix_s"] is None
    await bench.tick()
    found = await kept(bench)
    assert (found["unconfirmed"], found["in_force_since_unix_s"]) == (None, 1_800_001_003.0)


async def test_while_a_turn_hangs_status_says_the_order_and_how_old_the_turn_is(make):
    """Mode, since, why and undo of the order; what is of the turn before it says so."""
    bench = await make()
    await bench.run(3, batch_size=4)
    bench.clock.now_s += 5
    await order(bench, mode="off", ttl_s=300)
    bench.clock.now_s += 2
    status = (await bench.api.get("/v1/status")).json()
    assert (status["mode"], status["mode_since_unix_s"]) == ("off", 1_800_001_008.0)
    assert status["headline"].startswith("ordered, not confirmed: off by jo: x; 7 s ago: governed (policy)")
    assert status["why"].startswith(
        "not confirmed: no turn has looked at it yet, the last is 7 s old: the engine"
    )
    assert status["type"][-1] == "specgov override auto"
    assert (status["effect"]["state"], status["effect"]["for_s"]) == ("pending", 2.0)
    assert status["effect"]["detail"] == "not yet looked at: the order is newer than the latest turn"
    assert status["depth"]["in_use_before"] is True
    assert (await kept(bench))["unconfirmed"] == status["unconfirmed"]
    because = (await bench.api.get("/v1/explain")).json()["because"]
    assert because[0].startswith("ordered, not confirmed: off by jo: x: no turn has looked at it yet")


async def test_an_order_that_ends_while_a_turn_hangs_is_not_shown_any_more(make):
    """Over at 8 s: auto since then, in status and override alike, not "until" a time that is past."""
    bench = await make()
    await bench.run(2)
    await order(bench, mode="off", ttl_s=8)
    await bench.tick()
    bench.clock.now_s += 11
    status = (await bench.api.get("/v1/status")).json()
    assert (status["mode"], (await kept(bench))["mode"]) == ("auto", "auto")
    assert status["override"] is None
    assert status["mode_since_unix_s"] == 1_800_001_010.0
    assert status["headline"].startswith("ordered, not confirmed: no order: the policy decides; 11 s ago: ")


async def test_an_order_that_a_hand_ended_while_a_turn_hangs_is_not_shown_any_more(make):
    """Auto since it was ended."""
    bench = await make()
    await order(bench, mode="off")
    await bench.tick()
    bench.clock.now_s += 5
    assert (
        (await bench.api.delete("/v1/override")).json()["unconfirmed"].startswith("no turn has looked at it")
    )
    bench.clock.now_s += 1
    status = (await bench.api.get("/v1/status")).json()
    assert (status["mode"], status["mode_since_unix_s"]) == ("auto", 1_800_001_006.0)


@pytest.mark.parametrize("seen_by_a_turn", [True, False])
async def test_an_order_that_ended_without_having_been_in_force_is_logged_so(make, seen_by_a_turn):
    """Also one that was over before any turn looked at it."""
    bench = await make()
    await bench.run(2)
    bench.engine.fail = HANGS
    await order(bench, mode="off", ttl_s=5)
    if seen_by_a_turn:
        await bench.tick()
        assert (await kept(bench))["in_force_since_unix_s"] is None
    await bench.tick(6.0)
    row = (await bench.api.get("/v1/decisions", params={"reason": "expired"})).json()["decisions"][0]
    assert row["body"]["was_in_force"] is False
    assert row["body"]["detail"] == "off by jo: x; it was never seen in force"


async def test_an_order_that_was_in_force_and_ended_is_logged_as_before(make):
    """Nothing is said against it."""
    bench = await make()
    await order(bench, mode="off", ttl_s=5)
    await bench.run(2)
    await bench.tick(6.0)
    row = (await bench.api.get("/v1/decisions", params={"reason": "expired"})).json()["decisions"][0]
    assert (row["body"]["was_in_force"], row["body"]["detail"]) == (True, "off by jo: x")


async def test_an_order_that_was_replaced_without_having_been_in_force_is_logged_so(make):
    """In the row of the one that replaced it, and in its answer."""
    bench = await make()
    bench.engine.fail = HANGS
    await bench.run(2)
    await order(bench, mode="off")
    assert (await order(bench, mode="native"))["replaced"]["was_in_force"] is False
    row = (await bench.api.get("/v1/decisions", params={"reason": "native"})).json()["decisions"][0]
    assert row["body"]["detail"] == "native by jo: x; ends off by jo: x: it was never seen in force"
    assert row["body"]["never_in_force"]["mode"] == "off"


async def test_an_engine_that_hangs_in_the_middle_of_an_order_never_confirms_it(make):
    """The turn is done, its PUT is not: not acknowledged, whatever the sidecar wants."""
    bench = await make()
    await bench.run(3, batch_size=4)
    bench.engine.fail = HANGS
    await order(bench, mode="off")
    await bench.tick()
    found = await kept(bench)
    assert found["in_force_since_unix_s"] is None
    assert found["unconfirmed"] or found["obstacle"]


async def test_a_break_in_an_order_is_said_with_its_times(make):
    """In force, the engine away for three turns, in force again: from when to when it was not."""
    bench = await make()
    await order(bench, mode="off")
    await bench.run(2)
    bench.engine.fail = {"/speculation": httpx.ConnectError("refused")}
    await bench.run(3)
    bench.engine.fail = {}
    await bench.run(2)
    status = (await bench.api.get("/v1/status")).json()
    gap = status["override"]["gap_unix_s"]
    assert gap == [1_800_001_002.0, 1_800_001_006.0]
    assert f"not from {operate._clock(gap[0])} to {operate._clock(gap[1])}" in operate._given(
        status["override"]
    )
    because = (await bench.api.get("/v1/explain")).json()["because"]
    assert because[-1] == (
        "order: given at 2027-01-15 08:16:40 UTC, in force since 2027-01-15 08:16:46,"
        " not from 2027-01-15 08:16:42 to 2027-01-15 08:16:46"
    )


async def test_a_new_plan_of_the_same_effect_is_as_old_as_itself(make):
    """Idle: `acknowledged` before and after, but not "for 5 s" of a plan that is a turn old."""
    bench = await make()
    await bench.run(5)
    assert (await bench.api.get("/v1/status")).json()["effect"]["for_s"] == 4.0
    await order(bench, mode="off")
    await bench.tick()
    effect = (await bench.api.get("/v1/status")).json()["effect"]
    assert (effect["state"], effect["for_s"]) == ("acknowledged", 0.0)


async def test_a_lease_held_elsewhere_is_said_with_what_is_left_and_the_command_that_ends_it(make, clock):
    """For that holder alone, so that it cannot end another's; the key by the name of its variable."""
    bench = await make(engine__admin_api_key="hidden", lease__holder="me")
    engine = bench.engine
    engine.admin_key = "hidden"
    engine.plan = {"schedule": [{"min_batch_size": 1, "depth": 3}], "probe": None}
    engine.holder, engine.sequence, engine.expires_s = "specgov-bench/a b", 7, clock() + 3600
    await bench.run(2)
    answer = await order(bench, mode="off")
    assert answer["obstacle"] == (
        "specgov-bench/a b holds the lease (by its name a benchmark; not seen to renew so far:"
        " it ends by itself in 3598 s unless it is renewed)"
    )
    free = (
        'curl -X DELETE -H "Authorization: Bearer $SPECGOV_ENGINE__ADMIN_API_KEY"'
        " 'http://127.0.0.1:30000/speculation?holder=specgov-bench/a%20b'"
    )
    assert answer["remedy"].endswith(f"if not, free the engine at once: {free}")
    assert answer["remedy"] in (await bench.api.get("/v1/status")).json()["type"]
    assert "hidden" not in (await bench.api.get("/v1/status")).text
    await engine_delete(engine)
    await bench.tick()
    assert (await kept(bench))["in_force_since_unix_s"] is not None


async def engine_delete(engine):
    async with httpx.AsyncClient(transport=engine.transport(), base_url="http://engine") as http:
        params, headers = {"holder": "specgov-bench/a b"}, {"authorization": "Bearer hidden"}
        assert (await http.delete("/speculation", params=params, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "curl -X DELETE 'http://127.0.0.1:30000/speculation?holder=a'"),
        (
            {"url": "https://e:1", "ca_file": "/ca.pem", "api_key_file": "/run/k"},
            (
                'curl -X DELETE --cacert /ca.pem -H "Authorization: Bearer $(cat /run/k)" '
                "'https://e:1/speculation?holder=a'"
            ),
        ),
    ],
)
def test_the_command_names_url_certificate_and_key(settings, said):
    """As the sidecar itself reaches the engine."""
    assert release_command(EngineSettings(**settings), "a") == said


@pytest.mark.parametrize("away", [True, False])
async def test_an_order_of_the_fleet_that_ended_says_whether_it_was_in_force(make, tmp_path, away):
    """As one of this pod does."""
    file = tmp_path / "override.json"
    bench = await make(fleet__file=str(file))
    bench.engine.fail = HANGS if away else {}
    file.write_text('{"mode": "off", "reason": "bad kernel", "actor": "ann"}')
    await bench.run(2)
    file.unlink()
    await bench.tick()
    row = (await bench.api.get("/v1/decisions", params={"reason": "ended"})).json()["decisions"][0]
    never = "; it was never seen in force" if away else ""
    assert row["body"]["detail"] == f"the fleet's off by ann: bad kernel{never}"
    assert row["body"]["was_in_force"] is not away


async def test_an_order_of_the_fleet_that_one_of_this_pod_had_covered_says_from_when_to_when(make, tmp_path):
    """Off for the fleet; native here for 8 s: off was not in force without a break."""
    file = tmp_path / "override.json"
    file.write_text('{"mode": "off", "reason": "bad kernel", "actor": "ann"}')
    bench = await make(fleet__file=str(file))
    await bench.run(3)
    await order(bench, mode="native", ttl_s=8)
    await bench.run(10)
    status = (await bench.api.get("/v1/status")).json()
    assert (status["override"]["scope"], status["override"]["resumed"]) == ("fleet", True)
    assert status["override"]["gap_unix_s"] == [1_800_001_003.0, 1_800_001_011.0]
    assert "without a break" not in operate._given(status["override"])
