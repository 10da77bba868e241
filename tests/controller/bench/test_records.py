"""What a window takes from the requests that touch it."""

import pytest

from controller.bench.records import RequestRecord, per_event, window_stats


def stream(started_s, events, *, ended=True, error=None):
    """A streamed request."""
    return RequestRecord(
        started_s, streamed=True, events=events, ended_s=events[-1][0] if ended else None, error=error
    )


def test_latencies_of_one_stream():
    """First token after 0.5 s; then 8 tokens in 2 s: 0.25 s a token; gaps 1 and 1 s."""
    record = stream(10.0, [(10.5, 2), (11.5, 6), (12.5, 10)])
    assert record.ttft_s == 0.5
    assert record.tpot_s == 0.25
    assert list(record.itl_s()) == [(11.5, 1.0), (12.5, 1.0)]
    assert record.e2e_s == 2.5


def test_tokens_count_when_they_arrive_whoever_ends():
    """Of a running stream only the 4 tokens inside (11, 12] count: 4 tokens in 1 s."""
    found = window_stats([stream(10.0, [(10.5, 2), (11.5, 6), (12.5, 10)], ended=False)], 11.0, 12.0)
    assert found.output_tok_s == 4
    assert found.finished == 0
    assert found.tpot_p50_s is None


def test_without_streams_an_answer_counts_when_it_ends():
    """100 tokens at 10 s: nothing before, all of them in the window of 2 s that holds its end."""
    record = RequestRecord(0.0, streamed=False, events=[(10.0, 100)], ended_s=10.0)
    assert window_stats([record], 4.0, 6.0, stream_share=0.0).output_tok_s == 0
    assert window_stats([record], 9.0, 11.0, stream_share=0.0).output_tok_s == 50
    assert record.ttft_s is None


def test_where_one_client_in_four_streams_all_output_is_in_proportion():
    """The stream brought 8 tokens in 2 s; four clients like it bring 16 tokens/s."""
    streamed = stream(0.0, [(0.5, 2), (1.5, 6), (2.5, 10)], ended=False)
    whole = RequestRecord(0.0, streamed=False, events=[(2.0, 100)], ended_s=2.0)
    assert window_stats([streamed, whole], 1.0, 3.0, stream_share=0.25).output_tok_s == 16


def test_events_that_nobody_has_counted_yet_bring_what_those_of_ended_requests_did():
    """A server that says only at the end how many tokens there were: 4 an event, 2 events a second."""
    ended = stream(0.0, [(1.0, 1), (1.5, 5), (2.0, 9)])
    ended.settled = True
    running = stream(2.0, [(3.0, 1), (3.5, 2), (4.0, 3)], ended=False)
    running.guessed = True
    found = window_stats([ended, running], 3.0, 4.0)
    assert (found.output_tok_s, found.guessed) == (8.0, False)


def test_what_an_event_brings_does_not_hang_on_how_short_the_first_answers_are():
    """4 tokens an event but for the first (1) and the last (1): tokens over events say 2.5 to 3.6."""
    settled = []
    for events in range(3, 11):
        tokens = [1, *(1 + 4 * n for n in range(1, events - 1))]
        settled.append(stream(0.0, [(float(i), n) for i, n in enumerate([*tokens, tokens[-1] + 1])]))
        settled[-1].settled = True
    assert per_event(settled) == pytest.approx(4.0)
    assert per_event(settled[:1]) == pytest.approx(2.5)
    assert per_event([]) is None


def test_a_window_says_that_its_tokens_are_a_guess():
    """When no request has ever said how many tokens its events brought, one each is all that is known."""
    running = stream(2.0, [(3.0, 1), (3.5, 2), (4.0, 3)], ended=False)
    running.guessed = True
    found = window_stats([running], 3.0, 4.0)
    assert (found.output_tok_s, found.guessed) == (2.0, True)


def test_the_first_token_counts_in_the_window_in_which_it_came():
    """Clients that all start at once wait for each other before the window; whether they end in it or not."""
    burst = stream(0.0, [(0.9, 1), (2.0, 9)])
    later = stream(1.5, [(1.6, 1), (9.0, 9)], ended=False)
    found = window_stats([burst, later], 1.0, 3.0)
    assert found.ttft_p50_s == pytest.approx(0.1)
    assert found.finished == 1


def test_short_answers_are_counted():
    """Arms whose answers are cut short do not do the same work."""
    good, short = stream(0.0, [(1.0, 1), (2.0, 8)]), stream(0.0, [(1.0, 1), (2.0, 7)])
    good.asked_tokens = short.asked_tokens = 8
    found = window_stats([good, short], 0.0, 3.0)
    assert (found.finished, found.short) == (2, 1)


def test_errors_are_counted_and_kept_out_of_latencies():
    """One good request, one failed, one cancelled."""
    good = stream(0.0, [(1.0, 1), (2.0, 2)])
    bad = stream(0.0, [(1.0, 1), (1.9, 2)], error="HTTP 500")
    gone = RequestRecord(0.0, streamed=True, events=[(1.0, 1)], ended_s=1.5, cancelled=True)
    found = window_stats([good, bad, gone], 0.0, 3.0)
    assert (found.finished, found.errors) == (1, 1)
    assert found.e2e_p50_s == 2.0


def test_an_empty_window_is_refused():
    """Zero seconds have no rate."""
    with pytest.raises(ValueError, match="to_s must be after from_s"):
        window_stats([], 1.0, 1.0)


def test_streams_that_have_begun_and_stand_are_stalled_those_that_have_not_wait():
    """At 10 s: silent for 3 s, 1.5 s (not 2); never begun in 6 s, 1 s (not the whole window)."""
    running = [
        stream(0.0, [(1.0, 1), (7.0, 5)], ended=False),
        stream(0.0, [(1.0, 1), (8.5, 5)], ended=False),
        RequestRecord(4.0, streamed=True),
        RequestRecord(9.0, streamed=True),
        RequestRecord(0.0, streamed=False),
        stream(0.0, [(1.0, 1), (2.0, 5)]),
    ]
    found = window_stats(running, 5.0, 10.0)
    assert (found.stalled, found.waiting) == (1, 1)


def test_a_silence_of_two_seconds_is_told_in_a_shorter_window_too():
    """Since before the window; what comes later does not undo it."""
    record = stream(0.0, [(1.0, 1), (7.0, 5), (20.0, 9)], ended=False)
    assert window_stats([record], 9.0, 9.5).stalled == 1
    assert window_stats([record], 8.0, 8.5).stalled == 0


def test_a_stream_that_ended_without_a_word_of_its_tokens_is_untold():
    """One that still runs may yet be told."""
    ended, running = stream(0.0, [(1.0, 1), (2.0, 2)]), stream(0.0, [(1.0, 1), (2.0, 2)], ended=False)
    ended.guessed = running.guessed = True
    assert window_stats([ended, running], 0.0, 3.0).untold == 1
    assert window_stats([running], 0.0, 3.0).untold == 0
