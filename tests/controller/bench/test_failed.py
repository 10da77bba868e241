"""Why requests failed: texts and counts."""

from controller.bench.failed import ErrorCount, add_up, errors_of, in_words
from controller.bench.records import RequestRecord


def failed(ended_s, text):
    """A request that ended so."""
    return RequestRecord(0.0, streamed=True, ended_s=ended_s, error=text)


def test_texts_of_a_window_come_in_the_order_in_which_requests_failed():
    """(1, 3]: the one at 1 is of the window before, those that run or are well do not count."""
    records = [failed(3.0, "b"), failed(2.0, "a"), failed(2.5, "b"), failed(1.0, "c"), failed(None, "d")]
    records.append(RequestRecord(0.0, streamed=True, ended_s=2.0))
    assert errors_of(records, 1.0, 3.0) == (ErrorCount("a", 1), ErrorCount("b", 2))


def test_a_server_that_numbers_its_errors_does_not_fill_the_results():
    """Of seven texts five are kept; a known one goes on being counted."""
    many = [ErrorCount(f"error {n}", 1) for n in range(7)]
    found = add_up([*many, ErrorCount("error 0", 3)])
    assert [error.text for error in found] == ["error 0", "error 1", "error 2", "error 3", "error 4"]
    assert [error.count for error in found] == [4, 1, 1, 1, 1]


def test_what_is_left_out_is_counted_in_words():
    """4 of 10 have other texts."""
    assert in_words([ErrorCount("no", 6)], 10) == "6 times 'no', 4 with other texts"
    assert in_words([ErrorCount("no", 6)], 6) == "6 times 'no'"
