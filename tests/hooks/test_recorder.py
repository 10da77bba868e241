"""What the recorder counts, on literal results with the arithmetic shown."""

import pytest

from sglang_hooks.recorder import BUCKETS, Recorder, mark_cold
from tests.hooks.fakes import Request


def decode(
    recorder, now_s, accepted, *, depth=2, gear="on", requests=None, batch_size=None, context=100, behind=None
):
    requests = [Request() for _ in accepted] if requests is None else requests
    recorder.decode(
        now_s,
        depth,
        gear,
        batch_size=len(accepted) if batch_size is None else batch_size,
        requests=requests,
        accepted=accepted,
        context_tokens=context,
        behind=behind,
    )


def only_cell(recorder):
    (cell,) = recorder.cells()
    return cell


def test_a_cell_sums_what_its_steps_yielded():
    """Two steps of three requests: tokens are accepted drafts plus one bonus token per request."""
    recorder = Recorder()
    decode(recorder, 1.0, [0, 1, 2])
    decode(recorder, 1.25, [2, 2, 0], context=120)
    cell = only_cell(recorder)
    assert (cell["batch_bucket"], cell["depth"], cell["gear"]) == (3, 2, "on")
    assert (cell["steps"], cell["request_steps"]) == (2, 6)
    assert cell["tokens"] == 13  # (0 + 1 + 2) + 3 + (2 + 2 + 0) + 3
    assert cell["accepted"] == [2, 1, 3]
    assert cell["accepted_after_cold"] == [0, 0, 0]
    assert (cell["timed_steps"], cell["timed_seconds"], cell["timed_seconds_sq"]) == (1, 0.25, 0.0625)
    assert (cell["timed_request_steps"], cell["timed_context_tokens"]) == (3, 120)
    assert cell["skipped_idle"] == 1  # the first result has nothing before it


@pytest.mark.parametrize(
    ("batch_size", "bucket"), [(1, 1), (5, 4), (11, 8), (1023, 768), (5000, 1024), (0, 1)]
)
def test_buckets_are_named_by_their_smallest_batch_size(batch_size, bucket):
    """Every batch size has a bucket."""
    recorder = Recorder()
    decode(recorder, 1.0, [0], batch_size=batch_size)
    assert only_cell(recorder)["batch_bucket"] == bucket


def test_an_interval_with_a_prefill_is_not_a_decode_step():
    """It is counted as skipped, and the next interval is clean again."""
    recorder = Recorder()
    decode(recorder, 1.0, [0])
    recorder.prefill(1.75, [object()], 20)
    decode(recorder, 1.9, [0])
    decode(recorder, 2.0, [0])
    cell = only_cell(recorder)
    assert (cell["after_prefill_steps"], cell["after_prefill_seconds"]) == (1, pytest.approx(0.15))
    assert (cell["skipped_prefill"], cell["timed_steps"]) == (1, 1)
    assert cell["timed_seconds"] == pytest.approx(0.1)
    assert recorder.prefill_batches == 1


def test_what_prefills_add_is_counted_with_the_step_behind_them():
    """Two batches in one interval are one spell; what came before a batch ran dry is in none."""
    recorder = Recorder()
    decode(recorder, 1.0, [0])
    recorder.prefill(1.25, [object()], 20)
    recorder.prefill(1.5, [object(), object()], 300)
    decode(recorder, 2.0, [0])
    decode(recorder, 2.25, [0], behind="prefill")
    decode(recorder, 2.5, [], batch_size=1)
    recorder.prefill(5.0, [object()], 5000)
    decode(recorder, 5.5, [0])
    cell = only_cell(recorder)
    assert (cell["skipped_prefill"], cell["skipped_prefill_seconds"]) == (2, 1.25)
    assert (cell["prefill_spells"], cell["prefilled_requests"], cell["prefilled_tokens"]) == (1, 3, 320)


def test_an_interval_with_a_switch_is_left_out_of_the_new_cell():
    """The interval before a result is its own step's: the first one after a switch is not typical."""
    recorder = Recorder()
    decode(recorder, 1.0, [0], depth=2)
    decode(recorder, 1.1, [0], depth=3)
    decode(recorder, 1.2, [0], depth=3)
    two, three = recorder.cells()
    assert (two["skipped_switch"], two["timed_steps"]) == (0, 0)
    assert (three["skipped_switch"], three["timed_steps"]) == (1, 1)


def test_a_change_of_gear_is_a_switch():
    """Off warm and off cold cost differently."""
    recorder = Recorder()
    decode(recorder, 1.0, [0], depth=0, gear="warm")
    decode(recorder, 1.1, [0], depth=0, gear="cold")
    cold, _warm = recorder.cells()
    assert (cold["gear"], cold["skipped_switch"]) == ("cold", 1)


def test_the_stale_step_of_finished_requests_yields_nothing_and_starts_an_idle_gap():
    """Overlap scheduling launches one step too many; with nobody left the time until the next is idle."""
    recorder = Recorder()
    decode(recorder, 1.0, [1])
    decode(recorder, 1.1, [], batch_size=1)
    recorder.prefill(1.5, [object()], 20)
    decode(recorder, 1.9, [1])
    cell = only_cell(recorder)
    assert (cell["steps"], cell["tokens"]) == (2, 4)
    assert (cell["skipped_idle"], cell["skipped_prefill"], cell["timed_steps"]) == (2, 0, 0)


def test_finished_requests_count_for_the_cost_but_not_for_the_yield():
    """Three were launched, one had finished: it cost what three cost and yielded the tokens of two."""
    recorder = Recorder()
    decode(recorder, 1.0, [0, 1], batch_size=3)
    decode(recorder, 1.1, [0, 1], batch_size=3)
    cell = only_cell(recorder)
    assert (cell["batch_bucket"], cell["request_steps"], cell["timed_request_steps"]) == (3, 4, 3)


def test_a_pause_is_not_a_step():
    """An interval above two seconds holds something else, a weight update say."""
    recorder = Recorder()
    decode(recorder, 1.0, [0])
    decode(recorder, 3.5, [0])
    assert only_cell(recorder)["skipped_idle"] == 2


def test_requests_that_lived_through_a_cold_step_are_counted_apart():
    """Their draft KV cache has a gap, so what they accept says nothing about fresh requests."""
    recorder = Recorder()
    old, new = Request(), Request()
    decode(recorder, 1.0, [0], depth=0, gear="cold", requests=[old])
    decode(recorder, 1.1, [0, 2], requests=[old, new])
    cold, on = recorder.cells()
    assert (cold["gear"], cold["accepted"], cold["accepted_after_cold"]) == ("cold", [1], [0])
    assert (on["accepted"], on["accepted_after_cold"]) == ([0, 0, 1], [1, 0, 0])


def test_a_request_whose_draft_prefill_was_skipped_is_after_cold():
    """Plain decoding marks such requests itself, when it leaves their draft prefill out."""
    recorder = Recorder()
    frozen, fresh = Request(), Request()
    mark_cold([frozen])
    recorder.prefill(0.9, [frozen, fresh], 20)
    decode(recorder, 1.0, [2, 1], requests=[frozen, fresh])
    cell = only_cell(recorder)
    assert (cell["accepted"], cell["accepted_after_cold"]) == ([0, 1, 0], [0, 0, 1])


def test_memory_is_bounded_by_buckets_and_arms():
    """Every batch size up to 3000 at four arms makes no more cells than there are buckets and arms."""
    recorder = Recorder()
    for i in range(12_000):
        depth = i // 3000
        decode(recorder, i * 0.01, [0], depth=depth, gear="on" if depth else "warm", batch_size=i % 3000)
    assert len(recorder.cells()) == len(BUCKETS) * 4


def test_the_report_is_a_copy():
    """What was reported does not change under its reader."""
    recorder = Recorder()
    decode(recorder, 1.0, [0])
    before = only_cell(recorder)
    decode(recorder, 1.1, [0])
    assert before["accepted"] == [1, 0, 0]


@pytest.mark.parametrize("behind", ["prefill", "switch"])
def test_a_result_that_waited_for_the_launch_of_something_else_is_not_timed(behind):
    """0.1 s is the step; 0.25 s is the host, which launched another batch before it looked."""
    recorder = Recorder()
    decode(recorder, 1.0, [0])
    decode(recorder, 1.1, [0])
    decode(recorder, 1.35, [0], behind=behind)
    cell = only_cell(recorder)
    assert (cell["steps"], cell["timed_steps"]) == (3, 1)
    assert cell["timed_seconds"] == pytest.approx(0.1)
    assert cell[f"skipped_{behind}"] == 1
