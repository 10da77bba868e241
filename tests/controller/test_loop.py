"""The whole loop against a fake engine, in virtual time."""

from __future__ import annotations

import httpx
from starlette.responses import JSONResponse, PlainTextResponse

from controller.effect import Effect
from controller.link import Link
from controller.steering import Lease


async def test_a_fixed_depth_is_pushed_acknowledged_and_only_then_seen_applied(make):
    """HTTP 200 is not `applied`: that takes decode steps that show the depth."""
    bench = await make()
    first = await bench.tick()
    assert bench.engine.puts[0]["schedule"] == [{"min_batch_size": 1, "depth": 2}]
    assert first.effect.effect is Effect.ACKNOWLEDGED
    assert (await bench.tick()).effect.effect is Effect.ACKNOWLEDGED
    assert (await bench.run(2, batch_size=4)).effect.effect is Effect.APPLIED
    assert bench.loop.last.observation.in_use.depth == 2


async def test_what_never_was_lasts_since_the_start_of_the_sidecar(make):
    """The clock stood at 1000 s when it began: 5 s later no plan has been wanted for 5 s, not 1005."""
    bench = await make(dry_run=True)
    await bench.run(5)
    effect = (await bench.api.get("/v1/status")).json()["effect"]
    assert (effect["state"], effect["for_s"]) == ("none", 5.0)


async def test_ages_and_what_is_left_of_the_lease_are_counted_to_the_request_not_to_the_turn(make):
    """An engine that hangs lengthens the turn: 8 s on, a lease of 15 s that was just pushed has 7 left."""
    bench = await make()
    await bench.tick()
    fresh = (await bench.api.get("/v1/status")).json()
    assert (fresh["lease"]["left_s"], fresh["turn"]["late"]) == (15.0, False)
    assert not fresh["headline"].startswith("0 s ago")
    bench.clock.now_s += 8
    hung = (await bench.api.get("/v1/status")).json()
    assert (hung["lease"]["left_s"], hung["turn"]["age_s"], hung["turn"]["late"]) == (7.0, 8.0, True)
    assert fresh["turn"]["detail"] is None
    assert hung["turn"]["detail"] == "the engine is slow or hangs, or turns fail: see the sidecar's log"
    assert hung["type"] == ["specgov preflight --engine http://127.0.0.1:30000", *fresh["type"]]
    assert hung["headline"] == f"8 s ago: {fresh['headline']}"
    assert hung["load"]["age_s"] == fresh["load"]["age_s"] + 8
    assert hung["load"]["telemetry_age_s"] == fresh["load"]["telemetry_age_s"] + 8
    bench.clock.now_s += 8
    assert (await bench.api.get("/v1/status")).json()["lease"]["left_s"] == 0.0


async def test_an_engine_that_acknowledges_and_does_nothing_is_unconfirmed_then_inert(make):
    """The depth in use is judged under load: 5 s make it unconfirmed, 30 s inert."""
    bench = await make()
    bench.engine.ignore_plan = True
    assert (await bench.run(4, batch_size=4)).effect.effect is Effect.ACKNOWLEDGED
    assert (await bench.run(6, batch_size=4)).effect.effect is Effect.UNCONFIRMED
    assert "unconfirmed" in bench.conditions()
    assert (await bench.run(30, batch_size=4)).effect.effect is Effect.INERT
    assert "inert" in bench.conditions()


async def test_the_lease_is_renewed_with_growing_sequence_numbers(make):
    """A plan that stays is renewed every 3 s, so 10 ticks of 1 s make 1 push and 3 renewals."""
    bench = await make()
    await bench.run(10)
    assert [put["sequence"] for put in bench.engine.puts] == [1, 2, 3, 4]
    assert bench.engine.plan is not None


async def test_a_sidecar_that_stops_loses_control_when_the_lease_ends(make):
    """Without renewal the engine is back on its fallback after 15 s."""
    bench = await make()
    await bench.run(2)
    bench.clock.now_s += 15
    assert bench.engine.state()["state"] == "fallback"


async def test_sequences_start_above_what_the_engine_has_seen(make):
    """A fresh sidecar asks first and then counts on."""
    bench = await make()
    bench.engine.sequence = 41
    await bench.tick()
    assert bench.engine.puts[0]["sequence"] == 42


async def test_a_restarted_engine_gets_the_plan_again_and_begins_an_epoch(make):
    """Counters that start over are no decode steps, and the plan is pushed anew."""
    bench = await make()
    await bench.run(3, batch_size=4)
    bench.engine.start()
    bench.engine.decode(4, steps=3)
    result = await bench.tick()
    assert result.observation.engine_epoch == 1
    assert result.observation.decode_steps is None
    assert bench.engine.plan is not None
    assert (await bench.run(2, batch_size=4)).effect.effect is Effect.APPLIED


async def test_a_second_sidecar_observes_and_says_so(make, clock, tmp_path):
    """One holds the lease; the other pushes nothing until that lease is over."""
    first = await make(lease__holder="a")
    second = await make(
        engine=first.engine, lease__holder="b", policies__fixed__depth=1, store__path=str(tmp_path / "b.db")
    )
    await first.tick()
    await second.tick()
    assert second.loop.last.steered.lease is Lease.FOREIGN
    assert "foreign_lease" in second.conditions()
    assert {put["holder"] for put in first.engine.puts} == {"a"}
    clock.now_s += 15
    await second.tick()
    assert first.engine.holder == "b"


async def test_a_sidecar_started_twice_says_what_is_known_of_the_other(make):
    """Same host, same default store, which is locked; that the other runs is known once it has renewed."""
    first = await make()
    second = await make(engine=first.engine)
    await first.tick()
    await second.tick()
    kin = f"{first.engine.holder} holds the lease (by its name a sidecar of this host"
    held = second.loop.last.steered.held_elsewhere
    assert held == f"{kin}; not seen to renew so far: it ends by itself in 14 s unless it is renewed)"
    status = second.assembly.sidecar.status()
    assert status["headline"] == f"not controlled by this sidecar: {held}"
    messages = {each["condition"]: each["message"] for each in status["conditions"]}
    assert messages["foreign_lease"] == held
    assert "database is locked: another process uses it, usually a sidecar with" in messages["store_degraded"]
    await first.run(4)
    await second.tick()
    assert second.loop.last.steered.held_elsewhere == f"{kin}; it runs: it has renewed its lease)"


async def test_a_dead_predecessor_is_not_said_to_run(make, clock, tmp_path):
    """Killed with its lease live, its database gone: nothing is claimed of it, and it is waited for."""
    first = await make()
    await first.run(2)
    second = await make(engine=first.engine, store__path=str(tmp_path / "new.db"))
    for _ in range(12):
        await second.tick()
        assert "unless it is renewed" in second.loop.last.steered.held_elsewhere
    await second.run(3)
    assert second.loop.last.steered.lease is Lease.HELD


async def test_a_dry_run_beside_a_governing_sidecar_is_no_fault(make, tmp_path):
    """It wants no lease: nothing is to be stopped, and its headline says that it is a dry run."""
    first = await make()
    second = await make(engine=first.engine, dry_run=True, store__path=str(tmp_path / "b.db"))
    await first.tick()
    await second.run(2)
    assert second.conditions() == {"dry_run"}
    status = second.assembly.sidecar.status()
    assert status["headline"].startswith("not controlled, dry run: ")
    assert status["type"] == ["set dry_run = false and restart it", "specgov explain"]


async def test_of_two_sidecars_under_one_name_the_one_that_pushed_last_governs(make, tmp_path):
    """They would push in turns for ever; the other says so, and revokes nothing when it ends."""
    first = await make(lease__holder="a", policies__fixed__depth=1)
    second = await make(
        engine=first.engine, lease__holder="a", policies__fixed__depth=2, store__path=str(tmp_path / "b.db")
    )
    await first.tick()
    await second.tick()
    for _ in range(3):
        await first.tick()
        await second.tick()
    assert [put["schedule"][0]["depth"] for put in first.engine.puts] == [1, 2, 2]
    assert second.loop.last.steered.lease is Lease.HELD
    assert first.loop.last.steered.lease is Lease.FOREIGN
    said = "a holds the lease (this sidecar's own name, but not its plan; it"
    assert first.assembly.sidecar.status()["headline"].startswith(f"not controlled by this sidecar: {said}")
    assert await first.loop._steering.shut_down() is False


async def test_a_lost_put_answer_is_found_out_by_asking(make):
    """The engine took the plan, the answer was lost: the next turn sees it and does not push again."""
    bench = await make()
    bench.engine.lose_put_answer = True
    first = await bench.tick()
    assert (first.steered.acknowledged, first.effect.effect) == (False, Effect.PENDING)
    bench.engine.lose_put_answer = False
    second = await bench.tick()
    assert second.steered.acknowledged
    assert len(bench.engine.puts) == 1


async def test_a_rank_that_lags_keeps_the_plan_pending(make):
    """202 means that some rank has not taken it."""
    bench = await make()
    bench.engine.lagging_rank = True
    result = await bench.tick()
    assert (result.effect.effect, result.steered.pending_ranks) == (Effect.PENDING, 1)
    assert "ranks_pending" in bench.conditions()
    bench.engine.lagging_rank = False
    assert (await bench.tick()).effect.effect is Effect.ACKNOWLEDGED


async def test_a_refused_plan_is_said_and_not_sent_again(make):
    """422 names the field; the same plan is not tried at every tick."""
    bench = await make()
    bench.engine.fail["PUT /speculation"] = _refusal()
    await bench.run(3)
    assert "plan_rejected" in bench.conditions()
    assert "schedule[0].depth" in bench.loop.last.steered.rejected
    bench.engine.fail.clear()
    await bench.run(3)
    assert bench.engine.puts == []


async def test_engines_that_cannot_be_controlled_are_told_apart_and_never_called_controlled(make):
    """No plugin, speculation off, no adaptive controller, another protocol: four states, none governed."""
    for change, expected in (
        ({"plugin": False}, Link.NO_PLUGIN),
        ({"controllable": False, "reason": "no adaptive controller"}, Link.NOT_CONTROLLABLE),
        ({"protocol": 2}, Link.WRONG_VERSION),
        ({"admin_key": "secret"}, Link.UNAUTHORIZED),
    ):
        bench = await make(store__path=":memory:")
        vars(bench.engine).update(change)
        result = await bench.run(2)
        assert result.link.link is expected
        assert result.steered.lease is Lease.NONE
        assert bench.assembly.sidecar.status()["headline"].startswith("not controlled")
        assert (await bench.run(32)).effect.effect is Effect.INERT
    bench = await make(store__path=":memory:")
    bench.engine.controllable = False
    bench.engine.info["speculative_algorithm"] = None
    assert (await bench.run(3)).link.link is Link.SPECULATION_OFF


async def test_an_engine_that_goes_away_is_survived_and_governed_again(make):
    """Unreachable holds, then counts the lease as lost; when it is back the plan is pushed."""
    bench = await make()
    await bench.run(3, batch_size=4)
    for path in ("/v1/loads", "/metrics", "/server_info", "GET /speculation", "PUT /speculation"):
        bench.engine.fail[path] = _unavailable()
    result = await bench.run(12)
    assert result.link.link is Link.UNREACHABLE
    assert result.steered.lease is Lease.LOST
    assert {"engine_unreachable", "lease_lost"} <= bench.conditions()
    bench.engine.fail.clear()
    bench.engine.start()
    assert (await bench.run(4, batch_size=4)).effect.effect is Effect.APPLIED
    assert bench.conditions() == set()


async def test_an_engine_that_answers_late_is_not_called_unreachable_at_once(make):
    """A long prefill: 9 s without an answer change nothing, 10 s are too long; a refusal counts at once."""
    bench = await make()
    await bench.run(3, batch_size=4)
    bench.engine.fail["GET /speculation"] = httpx.ReadTimeout("late")
    result = await bench.run(9, batch_size=4)
    assert (result.link.link, result.effect.effect) == (Link.READY, Effect.APPLIED)
    assert bench.conditions() == set()
    assert bench.engine.state()["lease"]["left_s"] > 10
    assert (await bench.tick()).link.link is Link.UNREACHABLE
    bench.engine.fail.clear()
    assert (await bench.tick()).link.link is Link.READY
    bench.engine.fail["GET /speculation"] = httpx.ConnectError("refused")
    assert (await bench.tick()).link.link is Link.UNREACHABLE


async def test_a_restarted_sidecar_takes_over_its_own_plan(make, clock, tmp_path):
    """The holder is kept in the database: a sidecar killed and started again is not locked out."""
    first = await make()
    await first.run(2)
    await first.assembly.aclose()
    second = await make(engine=first.engine)
    result = await second.tick()
    assert result.steered.lease is Lease.HELD


async def test_shutdown_gives_the_lease_back(make):
    """A clean end needs no lease to run out."""
    bench = await make()
    await bench.tick()
    await bench.loop._shut_down()
    assert bench.engine.plan is None


async def test_dry_run_changes_nothing_and_says_what_it_would_do(make):
    """Decisions are made and recorded; the engine is never written to."""
    bench = await make(dry_run=True)
    result = await bench.run(3, batch_size=4)
    assert bench.engine.puts == bench.engine.deletes == []
    assert result.decision.evidence["would_schedule"] == "1+: 2"
    assert "dry_run" in bench.conditions()


async def test_an_override_is_obeyed_in_the_next_turn_and_ends_by_itself(make):
    """Off for 60 s: depth 0 at every batch size, then the policy's depth again."""
    bench = await make()
    await bench.run(2, batch_size=4)
    answer = await bench.api.put(
        "/v1/override", json={"mode": "off", "ttl_s": 60, "reason": "incident 7", "actor": "jo"}
    )
    assert answer.json()["durable"] is True
    await bench.tick()
    assert bench.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 0, "gear": "cold"}]
    assert bench.loop.last.decision.detail == "depth 0 cold, by jo: incident 7"
    await bench.tick(61)
    assert bench.engine.plan["schedule"] == [{"min_batch_size": 1, "depth": 2}]
    reasons = [row.reason for row in bench.assembly.sidecar.decisions()]
    assert {"off", "override", "expired", "fixed"} <= set(reasons)


async def test_native_releases_at_once(make):
    """Override native hands back with a DELETE in our name."""
    bench = await make()
    await bench.tick()
    await bench.api.put("/v1/override", json={"mode": "native", "reason": "x"})
    result = await bench.tick()
    assert bench.engine.plan is None
    assert result.effect.effect is Effect.NONE


async def test_an_override_works_while_the_input_is_stale(make):
    """An operator is obeyed though `/v1/loads` and `/metrics` are gone."""
    bench = await make(policy__name="threshold")
    bench.engine.fail["/v1/loads"] = bench.engine.fail["/metrics"] = _unavailable()
    await bench.run(2)
    assert "stale_input" in bench.conditions()
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"})
    await bench.tick()
    assert bench.engine.plan["schedule"][0]["depth"] == 0


def _refusal():
    return JSONResponse(
        {"error": {"field": "schedule[0].depth", "message": "schedule[0].depth must be x"}}, 422
    )


def _unavailable():
    return PlainTextResponse("upstream is away", 502)
