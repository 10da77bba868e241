"""An open loop: what was asked for, and whether the server followed."""

import pytest

from controller.bench.offered import offered
from controller.bench.records import RequestRecord


def answered(started_s, seconds, tokens=40):
    """A request with all its tokens."""
    end_s = started_s + seconds
    return RequestRecord(
        started_s, streamed=True, asked_tokens=tokens, events=[(end_s, tokens)], ended_s=end_s
    )


def test_what_is_offered_is_what_the_trace_asks_for():
    """201 requests of 40 tokens in 10 s: 8040 / 10."""
    found = offered([answered(0.05 * i, 1.0) for i in range(201)])
    assert (found.requests, found.tokens, found.seconds) == (201, 8040, pytest.approx(10.0))
    assert found.tok_s == pytest.approx(804.0)
    assert found.answered_after_s == pytest.approx(1.0)
    assert (found.behind, found.unanswered) == (False, 0)


def test_a_server_that_answers_ever_later_fell_behind():
    """Each of 200 waits 0.2 s longer than the one before: the last is answered 41 s after it came."""
    found = offered([answered(0.05 * i, 1.0 + 0.2 * i) for i in range(200)])
    assert found.behind
    assert found.answered_after_s == pytest.approx(1.0 + 0.2 * 199)


def test_a_long_last_answer_is_no_backlog():
    """Ten times the tokens take ten times as long."""
    assert not offered([*[answered(0.1 * i, 1.0) for i in range(30)], answered(3.0, 10.0, 400)]).behind


def test_a_request_that_was_dropped_shows_that_the_server_fell_behind():
    """However few there were; without any there is nothing to say."""
    dropped = RequestRecord(0.0, streamed=True, asked_tokens=4, ended_s=60.0, cancelled=True)
    found = offered([dropped])
    assert (found.behind, found.unanswered, found.tok_s) == (True, 1, None)
    assert offered([]) is None
