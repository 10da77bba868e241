"""From samples to observations: differences, sums, ages, epochs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from controller.control_state import parse_control_state
from controller.exposition import LoadSample, RankLoad, ServerInfo, parse_loads
from controller.observer import EngineSample, Observer
from policies.types import Arm
from tests.controller.fake_engine import FakeEngine

FIXTURES = Path(__file__).parent.parent / "fixtures"


def loads(*ranks, source="loads"):
    return LoadSample(source, tuple(ranks))


def rank(dp_rank=0, running=4, queue=0, age_s=0.1, **more):
    return RankLoad(dp_rank, running, queue, running and running * 10, 0.5, 8, age_s, **more)


def engine():
    return FakeEngine(lambda: 0.0)


def sample(fake, at_s, load=None):
    return EngineSample(at_s, load or loads(rank()), control=parse_control_state(fake.state()))


def test_cells_are_differences_since_the_observation_before():
    """10 steps, then 5 more of 4 requests at depth 3: 5 steps, 20 request-steps, 80 tokens."""
    fake, observer = engine(), Observer()
    fake.decode(4, steps=10)
    assert observer.observe(sample(fake, 0.0), 0.0).cells == ()
    fake.decode(4, steps=5, seconds=0.02)
    seen = observer.observe(sample(fake, 1.0), 1.0)
    (cell,) = seen.cells
    assert (cell.batch_bucket, cell.arm, cell.steps, cell.request_steps, cell.tokens) == (
        4,
        Arm(3),
        5,
        20,
        80,
    )
    assert cell.accepted == (0, 0, 0, 20)
    assert (cell.timed_steps, cell.timed_seconds) == (5, pytest.approx(0.1))
    assert seen.decode_steps == 5


def test_a_cell_that_is_new_counts_from_zero():
    """The first steps in another bucket are a difference too, once the rank is known."""
    fake, observer = engine(), Observer()
    observer.observe(sample(fake, 0.0), 0.0)
    fake.decode(8, steps=3)
    assert [c.steps for c in observer.observe(sample(fake, 1.0), 1.0).cells] == [3]


def test_an_engine_restart_begins_an_epoch_without_a_jump():
    """Counters go back to 0 and on to 3: no difference, another epoch; after that, differences again."""
    fake, observer = engine(), Observer()
    fake.decode(4, steps=10)
    observer.observe(sample(fake, 0.0), 0.0)
    fake.start()
    fake.started_unix_s += 60
    fake.decode(4, steps=3)
    seen = observer.observe(sample(fake, 1.0), 1.0)
    assert (seen.engine_epoch, seen.cells, seen.decode_steps) == (1, (), None)
    fake.decode(4, steps=2)
    assert observer.observe(sample(fake, 2.0), 2.0).decode_steps == 2


def test_counters_that_go_back_are_a_restart_even_without_a_start_time():
    """An engine that does not say when it started."""
    fake, observer = engine(), Observer()
    fake.started_unix_s = None
    fake.decode(4, steps=10)
    observer.observe(sample(fake, 0.0), 0.0)
    fake.decode_steps, fake.cells = 1, {}
    assert observer.observe(sample(fake, 1.0), 1.0).engine_epoch == 1


def test_dp_ranks_are_summed_and_the_largest_batch_counts():
    """6 and 6 running in the capture: 12 in all, schedule looked up at 6; the older rank gives the age."""
    body = json.loads((FIXTURES / "loads_dp2_busy.json").read_text())
    seen = Observer().observe(EngineSample(0.0, parse_loads(body)), 0.5)
    assert (seen.running_reqs, seen.queue_reqs, seen.batch_size) == (12, 0, 6)
    assert seen.context_tokens == 196 + 189
    assert seen.load_age_s == pytest.approx(2.799 + 0.5, abs=1e-3)


def test_a_dp_rank_that_is_missing_makes_the_sum_unknown():
    """Two ranks by `/server_info`, one in the answer: unknown, not half; and so no age."""
    info = ServerInfo(version="0.5.23", dp_size=2)
    seen = Observer().observe(EngineSample(0.0, loads(rank(0)), info=info), 0.0)
    assert (seen.running_reqs, seen.batch_size, seen.load_age_s) == (None, None, None)


def test_a_dp_rank_that_was_there_before_is_missed():
    """No `/server_info` is needed to know that rank 1 has gone."""
    observer = Observer()
    assert observer.observe(EngineSample(0.0, loads(rank(0), rank(1))), 0.0).running_reqs == 8
    assert observer.observe(EngineSample(1.0, loads(rank(0))), 1.0).running_reqs is None


def test_telemetry_of_two_dp_ranks_is_summed():
    """3 steps on each of two ranks are 6 steps in one cell; with one rank missing the total is unknown."""
    fake, observer = engine(), Observer()

    def both(state):
        twin = copy.deepcopy(state["telemetry"][0]) | {"dp_rank": 1}
        return state | {"telemetry": [*state["telemetry"], twin]}

    def observe(state, at_s):
        control = parse_control_state(state)
        return observer.observe(EngineSample(at_s, loads(rank(0), rank(1)), control=control), at_s)

    observe(both(fake.state()), 0.0)
    fake.decode(4, steps=3)
    seen = observe(both(fake.state()), 1.0)
    assert (seen.decode_steps, [c.steps for c in seen.cells]) == (6, [6])
    assert seen.cells[0].accepted == (0, 0, 0, 24)
    fake.decode(4, steps=3)
    seen = observe(fake.state(), 2.0)
    assert (seen.decode_steps, [c.steps for c in seen.cells]) == (None, [3])


def test_ages_grow_while_nothing_is_read():
    """The last figures stay, older by the second."""
    fake, observer = engine(), Observer()
    observer.observe(sample(fake, 0.0), 0.0)
    seen = observer.observe(EngineSample(7.0), 7.0)
    assert seen.running_reqs == 4
    assert (seen.load_age_s, seen.telemetry_age_s) == (pytest.approx(7.1), pytest.approx(7.0))
    assert seen.decode_steps is None


def test_before_anything_is_read_all_is_unknown():
    """No zero before the first answer."""
    seen = Observer().observe(EngineSample(0.0), 0.0)
    assert (seen.running_reqs, seen.batch_size, seen.load_age_s, seen.telemetry_age_s) == (None,) * 4
    assert (seen.built, seen.in_force, seen.in_use) == ((), None, None)


def test_a_batch_that_has_just_been_decoded_is_fresher_than_loads():
    """Loads of 9 s ago say 4; the steps since were of 8 requests.  The queue is still 9 s old."""
    fake, observer = engine(), Observer()
    old = loads(rank(running=4, queue=2, age_s=9.0))
    observer.observe(sample(fake, 0.0, old), 0.0)
    fake.decode(8, steps=3)
    seen = observer.observe(sample(fake, 1.0, old), 1.0)
    assert (seen.running_reqs, seen.batch_size, seen.load_age_s) == (8, 8, 0.0)
    assert (seen.queue_reqs, seen.queue_age_s) == (2, 9.0)


def test_a_rank_that_stands_still_is_judged_by_loads():
    """No step since: idle, prefilling or hung, which the latest batch size cannot tell."""
    fake, observer = engine(), Observer()
    fake.decode(8, steps=3)
    observer.observe(sample(fake, 0.0, loads(rank(running=0))), 0.0)
    seen = observer.observe(sample(fake, 1.0, loads(rank(running=0))), 1.0)
    assert (seen.running_reqs, seen.batch_size) == (0, 0)


def test_running_zero_with_a_queue_is_suspect():
    """A scrape between states must not read as idle."""
    seen = Observer().observe(EngineSample(0.0, loads(rank(running=0, queue=9))), 0.0)
    assert seen.suspect == ("running_zero_with_queue",)


def test_loads_come_before_metrics():
    """Both are there: `/v1/loads` counts."""
    both = EngineSample(0.0, loads(rank(running=6)), loads(rank(running=2, age_s=None), source="metrics"))
    assert Observer().observe(both, 0.0).running_reqs == 6


def test_metrics_that_do_not_move_under_load_grow_old():
    """The gauges carry no time: 4 running, unchanged for 9 s, are 9 s old; idle ones may stand still."""
    observer = Observer()
    busy = loads(rank(running=4, age_s=None), source="metrics")
    observer.observe(EngineSample(0.0, metrics=busy), 0.0)
    assert observer.observe(EngineSample(9.0, metrics=busy), 9.0).load_age_s == 9.0
    idle = loads(rank(running=0, age_s=None), source="metrics")
    observer.observe(EngineSample(10.0, metrics=idle), 10.0)
    assert observer.observe(EngineSample(99.0, metrics=idle), 99.0).load_age_s == 0.0


def test_only_a_live_lease_counts_as_in_force():
    """A schedule that the engine still shows after its lease is history."""
    fake = engine()
    state = fake.state() | {"state": "fallback", "schedule": [{"min_batch_size": 1, "depth": 2}]}
    seen = Observer().observe(EngineSample(0.0, control=parse_control_state(state)), 0.0)
    assert seen.in_force is None


def test_an_engine_that_is_not_controllable_has_nothing_built():
    """Whatever it lists."""
    fake = engine()
    fake.controllable = False
    assert Observer().observe(sample(fake, 0.0), 0.0).built == ()


def test_a_scheduler_that_has_decoded_nothing_uses_no_depth_and_says_which_it_begins_with():
    """Depth 4 before any step: not in use, and what a policy must not change for nothing."""
    fake = engine()
    state = fake.state()
    (row,) = state["telemetry"]
    for steps, used in ((0, None), (1, Arm(4))):
        fresh = {**state, "telemetry": [{**row, "decode_steps": steps, "depth": 4, "gear": "on"}]}
        taken = EngineSample(0.0, loads(rank()), control=parse_control_state(fresh))
        seen = Observer().observe(taken, 0.0)
        assert (seen.in_use, seen.latest_arm) == (used, Arm(4))
