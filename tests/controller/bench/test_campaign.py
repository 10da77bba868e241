"""Interleaved windows, scenarios and traces against steerable servers in virtual time."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from controller.bench.arms import parse_arm
from controller.bench.campaign import Campaign, Failure, Timing
from controller.bench.client import Client
from controller.bench.courses import run_scenario, run_trace
from controller.bench.engine import EngineControl, LeaseHeldError
from controller.bench.prompts import Prompt, RandomTokens
from controller.bench.scenario import Phase
from controller.bench.target import RequestsFailError, ServerUnderTest, Target
from controller.errors import BadRequestError
from tests.controller.bench.fake_server import FakeServer, http

pytestmark = pytest.mark.looptime
SOURCE = RandomTokens((4, 4), (100, 100))
TIMING = Timing(window_s=2.0, settle_s=0.5, ramp_limit_s=5.0, warm_up_s=0.0)


def server(name, fake, client):
    """A server under test over a fake."""
    clock = asyncio.get_running_loop().time
    control = EngineControl(client, clock, "specgov-bench/1") if fake.hook else None
    return ServerUnderTest(name, Client(client, clock), control)


def campaign(targets, seen=None, govern=None, timing=TIMING, stream_every=1):
    """A campaign with everything at hand."""
    clock = asyncio.get_running_loop().time
    on_window = seen.append if seen is not None else lambda _: None
    return Campaign(
        targets,
        source=SOURCE,
        timing=timing,
        stream_every=stream_every,
        seed=1,
        clock=clock,
        govern=govern,
        on_window=on_window,
    )


async def test_arms_alternate_and_each_shows_its_own_speed():
    """Depth 0: 1 token in 10 ms, depth 2: 3 in 20 ms, 4 clients: 400 and 600 tokens/s; A B, then B A."""
    fake = FakeServer()
    async with http(fake) as client:
        one = server("engine", fake, client)
        found = campaign([Target(one, parse_arm(arm)) for arm in ("off-cold", "depth-2")])
        await found.sweep([4], rounds=2)
    assert [w.label for w in found.windows] == ["off-cold", "depth-2", "depth-2", "off-cold"]
    by_label = {w.label: w.stats.output_tok_s for w in found.windows}
    assert by_label["off-cold"] == pytest.approx(400, rel=0.02)
    assert by_label["depth-2"] == pytest.approx(600, rel=0.03)
    cold = found.windows[0]
    assert cold.engine_tok_s == pytest.approx(cold.stats.output_tok_s, rel=0.02)
    assert {(c.depth, c.gear) for c in cold.cells} == {(0, "cold")}
    assert cold.cells[0].step_ms == pytest.approx(10)


async def test_servers_take_turns_and_the_others_idle():
    """While one server is measured no request runs on the other."""
    first, second = FakeServer(), FakeServer(hook=False)
    both = []
    async with http(first) as a, http(second) as b:
        targets = [
            Target(server("engine", first, a), parse_arm("off-cold")),
            Target(server("plain", second, b), parse_arm("as-is")),
        ]
        found = campaign(targets)
        found.on_window = lambda w: both.append((first.running, second.running))
        await found.sweep([2], rounds=2)
    assert [w.label for w in found.windows] == ["off-cold", "plain", "plain", "off-cold"]
    assert both == [(2, 0), (0, 2), (0, 2), (2, 0)]
    assert found.windows[1].engine_tok_s is None


async def test_an_arm_that_the_engine_does_not_follow_is_a_failure_not_a_window():
    """Acknowledged is not applied: this engine says 200 and stays at its depth."""
    fake = FakeServer()
    fake._speculation_real, stuck = fake._speculation, {"depth": 2, "gear": "on"}

    def stubborn(method, body):
        answer = fake._speculation_real(method, body)
        fake.depth, fake.gear = stuck["depth"], stuck["gear"]
        return answer

    fake._speculation = stubborn
    seen = []
    async with http(fake) as client:
        one = server("engine", fake, client)
        found = campaign([Target(one, parse_arm("off-cold")), Target(one, parse_arm("depth-2"))], seen)
        await found.sweep([1], rounds=1)
    assert [w.label for w in found.windows] == ["depth-2"]
    assert isinstance(seen[0], Failure)
    assert "acknowledged but not in use" in found.failures[0].message


async def test_a_policy_governs_exactly_while_it_is_measured():
    """The sidecar of a policy arm lives for its window, and native is handed back through DELETE."""
    fake, spans = FakeServer(), []
    clock = asyncio.get_running_loop().time

    @asynccontextmanager
    async def govern(under, arm):
        began_s = clock()
        yield
        spans.append((under.name, arm.policy, clock() - began_s))

    async with http(fake) as client:
        one = server("engine", fake, client)
        await campaign(
            [Target(one, parse_arm("policy:goodput")), Target(one, parse_arm("native"))], govern=govern
        ).sweep([1], rounds=1)
    assert spans == [("engine", "goodput", pytest.approx(2.5))]
    assert ("DELETE", "/speculation") in fake.calls


async def test_a_policy_after_a_fixed_arm_is_not_locked_out_by_its_lease():
    """The plan (of the claim, then of the window) is handed back before the sidecar begins."""
    fake, begun_after = FakeServer(), []

    @asynccontextmanager
    async def govern(under, arm):
        begun_after.extend(
            method for method, path in fake.calls if path == "/speculation" and method != "GET"
        )
        yield

    async with http(fake) as client:
        one = server("engine", fake, client)
        arms = ("depth-2", "policy:goodput")
        await campaign([Target(one, parse_arm(a)) for a in arms], govern=govern).sweep([1], rounds=1)
    assert begun_after == ["PUT", "PUT", "DELETE"]


@pytest.mark.parametrize("slow", [0, 3, 700])
async def test_as_it_is_beside_held_arms_is_measured_without_their_plan(slow):
    """The server itself is at depth 2 (600 tokens/s), the arm held before and in the warm-up at 0 (400).

    Each window waits until the rank shows the release; one that never shows it is no window.
    """
    fake = FakeServer()
    fake.own_depth, fake.own_gear, fake.slow_release = 2, "on", slow
    async with http(fake) as client:
        one = server("engine", fake, client)
        found = campaign([Target(one, parse_arm(arm)) for arm in ("as-is", "off-cold")])
        await found.sweep([4], rounds=2)
    tok_s = [(w.label, round(w.stats.output_tok_s, -2)) for w in found.windows]
    if slow == 700:
        assert tok_s == [("off-cold", 400), ("off-cold", 400), ("engine", 600)]
        assert found.failures[0].message.startswith("handed back, but not seen to be after 10 s")
    else:
        assert tok_s == [("engine", 600), ("off-cold", 400), ("off-cold", 400), ("engine", 600)]


async def test_a_server_measured_as_it_is_alone_is_asked_for_nothing():
    """It may be governed by somebody else: no plan, no release."""
    fake = FakeServer()
    fake.holder = "specgov/pod-7"
    async with http(fake) as client:
        await campaign([Target(server("engine", fake, client), parse_arm("as-is"))]).sweep([1], rounds=1)
    assert {method for method, path in fake.calls if path == "/speculation"} == {"GET"}


async def test_a_server_beside_that_shows_our_own_lease_is_the_same_one():
    """Whatever its URL: it would be measured under the plan of the arm before.  Nothing is sent."""
    fake = FakeServer()
    async with http(fake) as client:
        targets = [
            Target(server("engine", fake, client), parse_arm("depth-2")),
            Target(server("same", fake, client), parse_arm("as-is")),
        ]
        with pytest.raises(BadRequestError, match=r"servers of their own, got same at http://engine, which"):
            await campaign(targets).sweep([1], rounds=1)
    assert fake.generated == 0


async def test_a_scenario_takes_every_arm_through_every_phase():
    """Two phases of 1 and 4 clients, each arm; load and instruments change at the phase."""
    fake = FakeServer()
    phases = (Phase("calm", 2.0, 1), Phase("busy", 2.0, 4, state={"bench.p": 0.3}))
    async with http(fake) as client:
        one = server("engine", fake, client)
        found = campaign([Target(one, parse_arm("off-cold")), Target(one, parse_arm("depth-2"))])
        await run_scenario(found, phases, lambda _: SOURCE, rounds=1)
    assert [(w.label, w.phase, w.concurrency) for w in found.windows] == [
        ("off-cold", "calm", 1),
        ("off-cold", "busy", 4),
        ("depth-2", "calm", 1),
        ("depth-2", "busy", 4),
    ]
    assert found.windows[1].stats.output_tok_s == pytest.approx(400, rel=0.1)
    assert fake.calls.count(("POST", "/set_internal_state")) == 2


async def test_a_trace_sends_the_same_requests_to_every_arm():
    """Three arrivals of 50 tokens: 150 tokens in the window, under both arms."""
    fake = FakeServer()
    arrivals = [(0.0, Prompt(50, text="a")), (0.5, Prompt(50, text="b")), (1.0, Prompt(50, text="c"))]
    async with http(fake) as client:
        one = server("engine", fake, client)
        found = campaign([Target(one, parse_arm("off-cold")), Target(one, parse_arm("depth-2"))])
        await run_trace(found, arrivals, rounds=1)
    assert [(w.label, w.phase, w.stats.errors) for w in found.windows] == [
        ("off-cold", "trace", 0),
        ("depth-2", "trace", 0),
    ]
    tokens = [w.stats.output_tok_s * w.stats.window_s for w in found.windows]
    assert tokens == [pytest.approx(150), pytest.approx(150)]


@pytest.mark.parametrize(("arm", "arm_after"), [("off-cold", "depth-2"), ("native", "native")])
async def test_the_lease_of_another_holder_ends_the_benchmark_before_there_is_load(arm, arm_after):
    """One PUT or DELETE, one message with the holder and the remedy; no load, no further arm is tried."""
    fake = FakeServer()
    real = fake._speculation

    def taken(method, body):
        if method != "GET":
            return httpx.Response(409, json={"error": {"field": "holder", "message": "held"}})
        return httpx.Response(200, json={**real(method, body).json(), "holder": "specgov/pod-7"})

    fake._speculation = taken
    async with http(fake) as client:
        one = server("engine", fake, client)
        arms = [Target(one, parse_arm(label)) for label in dict.fromkeys((arm, arm_after))]
        found = campaign(arms, timing=Timing(warm_up_s=5.0))
        with pytest.raises(LeaseHeldError, match=r"specgov/pod-7 holds the lease .* stop that sidecar"):
            await found.sweep([1, 4], rounds=2)
    assert [method for method, path in fake.calls if path == "/speculation" and method != "GET"] == [
        "PUT" if arm == "off-cold" else "DELETE"
    ]
    assert found.windows == found.failures == []
    assert fake.generated == 0
    assert asyncio.get_running_loop().time() < 0.1


async def test_a_409_for_the_sequence_fails_one_arm_only():
    """Nobody else holds the lease: the next arm may do better."""
    fake = FakeServer()
    real = fake._speculation
    fake._speculation = lambda method, body: (
        httpx.Response(409, text="sequence") if method == "PUT" else real(method, body)
    )
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("depth-2"))])
        await found.sweep([1], rounds=1)
    assert "HTTP 409: sequence" in found.failures[0].message


class Away(FakeServer):
    """Refuses connections between two moments."""

    def __init__(self, from_s, to_s, **options):
        super().__init__(**options)
        self.span = from_s, to_s

    async def handle_async_request(self, request):
        now_s = asyncio.get_running_loop().time()
        if self.span[0] <= now_s < self.span[1] and request.url.path == "/generate":
            raise httpx.ConnectError("All connection attempts failed")
        return await super().handle_async_request(request)


async def test_a_window_in_which_the_server_was_away_is_marked():
    """It is back at the window's end, and the next round is measured."""
    fake = Away(1.0, 2.0, hook=False)
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("as-is"))])
        await found.sweep([4], rounds=2)
    first, second = found.windows
    assert first.away is not None
    assert first.away.endswith("connections were refused")
    assert second.away is None


async def test_a_server_that_was_away_between_two_windows_is_told_and_costs_none():
    """Refused from 2.55 s to 2.85 s: the first window of two arms ends at 2.5 s, the next begins at 3 s."""
    fake = Away(2.55, 2.85)
    async with http(fake) as client:
        one = server("engine", fake, client)
        short = Campaign(
            [Target(one, parse_arm(arm)) for arm in ("off-cold", "depth-2")],
            source=RandomTokens((4, 4), (5, 5)),
            timing=TIMING,
            stream_every=1,
            seed=1,
            clock=asyncio.get_running_loop().time,
            govern=None,
        )
        await short.sweep([4], rounds=1)
    assert [w.away for w in short.windows] == [None, None]
    assert [w.stats.errors for w in short.windows] == [0, 0]
    (found,) = short.between()
    assert (found.server, found.after, found.before) == ("engine", 1, 2)
    assert found.failed == sum(error.count for error in found.errors) >= 4
    assert found.away == f"{found.failed} connections were refused"


@pytest.mark.parametrize("number", [1, 2])
async def test_a_restart_that_no_request_has_seen_shows_in_the_plugins_state(number):
    """The other server was measured meanwhile; when the process started tells whether it is another."""
    fake, other = FakeServer(), FakeServer(hook=False)
    real = fake._speculation

    def restarted(method, body):
        state = real(method, body).json()
        late = asyncio.get_running_loop().time() > 4.0
        state["telemetry"][0]["started_unix_s"] = 1000.0 * (number if late else 1)
        return httpx.Response(200, json=state)

    fake._speculation = restarted
    async with http(fake) as a, http(other) as b:
        targets = [
            Target(server("engine", fake, a), parse_arm("depth-2")),
            Target(server("other", other, b), parse_arm("as-is")),
        ]
        found = campaign(targets)
        await found.sweep([1, 2], rounds=1)
    assert [w.server for w in found.windows] == ["engine", "other", "engine", "other"]
    assert all(w.away is None for w in found.windows)
    told = [(b.server, b.after, b.before, b.away) for b in found.between()]
    assert told == ([] if number == 1 else [("engine", 1, 3, "the engine restarted")])


async def test_requests_that_end_with_their_load_are_no_failures():
    """Aborted before their first token: the server answers with none."""
    fake = FakeServer({0: 0.9}, {0: 1})
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("as-is"))])
        await found.sweep([3], rounds=2)
    assert found.between() == ()


async def test_counters_that_went_back_show_that_the_server_was_away():
    """The engine restarted inside the window, and answers before and after it."""
    fake = FakeServer()
    clock = asyncio.get_running_loop().time
    real = fake._speculation

    def restarting(method, body):
        if clock() > 2.0:
            fake.cells.clear()
        return real(method, body)

    fake._speculation = restarting
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("depth-2"))])
        await found.sweep([4], rounds=1)
    (window,) = found.windows
    assert window.away is not None
    assert "the engine restarted" in window.away
    assert window.cells == ()


async def test_the_later_phases_of_a_round_are_left_out_after_a_server_was_away():
    """It came back without what the phases before had brought it to."""
    fake = Away(0.5, 1.0)
    phases = (Phase("calm", 2.0, 2), Phase("busy", 2.0, 4))
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("off-cold"))])
        await run_scenario(found, phases, lambda _: SOURCE, rounds=2)
    assert [(w.phase, w.round, w.away is None) for w in found.windows] == [
        ("calm", 0, False),
        ("calm", 1, True),
        ("busy", 1, True),
    ]
    assert "the server was away in phase 'calm'" in found.failures[0].message


async def test_a_server_that_stands_between_two_windows_does_not_hide_it_there():
    """Its state is asked for inside the window, which lasts 5 s longer for it: 400 * 2 / 7 tokens/s."""
    fake = FakeServer()
    real = fake.handle_async_request
    asked = []

    async def frozen(request):
        asked.append(request.url.path)
        if asked.count("/v1/models") == 1 and asked[-1] == "/v1/models":
            fake.step_s = {0: 5.01}  # the step in flight; the next begin after the thaw
            await asyncio.sleep(5.005)
            fake.step_s = {0: 0.010}
        return await real(request)

    fake.hook, fake.handle_async_request = False, frozen
    async with http(fake) as client:
        found = campaign([Target(server("engine", fake, client), parse_arm("as-is"))])
        await found.sweep([4], rounds=1)
    (window,) = found.windows
    assert window.stats.window_s == pytest.approx(7.0, abs=0.1)
    assert window.stats.output_tok_s == pytest.approx(400 * 2 / 7, rel=0.05)


class Refuses(FakeServer):
    """Has no such path; the first `tokens` requests are answered all the same."""

    def __init__(self, answered=0):
        super().__init__(hook=False)
        self.answered = answered

    async def _generate(self, body):
        if self.generated <= self.answered:
            return await super()._generate(body)
        return httpx.Response(404, text="Not Found")


async def test_it_stops_after_a_warm_up_in_which_every_request_failed():
    """So would all those of hours; path, URL, the first error and the remedy are named."""
    fake = Refuses()
    async with http(fake) as client:
        found = campaign(
            [Target(server("engine", fake, client), parse_arm("as-is"))], timing=Timing(warm_up_s=1.0)
        )
        with pytest.raises(RequestsFailError) as stopped:
            await found.sweep([4], rounds=2)
    assert found.windows == []
    assert "at http://engine/generate (the first: BadAnswerError: HTTP 404: b'Not Found')" in str(
        stopped.value
    )
    assert str(stopped.value).endswith(
        "for a server that is not SGLang give --dialect openai, or openai-chat"
    )


async def test_one_answer_in_the_warm_up_is_enough_to_go_on():
    """Its figures stand, the failures are shown."""
    fake = Refuses(answered=1)
    async with http(fake) as client:
        found = campaign(
            [Target(server("engine", fake, client), parse_arm("as-is"))],
            timing=Timing(window_s=1.0, settle_s=0.0, warm_up_s=1.0),
        )
        await found.sweep([4], rounds=1)
    assert len(found.windows) == 1
