"""What happened outside of windows is counted, and told apart from what is inside."""

import json
from dataclasses import replace

from controller.bench import report
from controller.bench.between import Between, Ledger
from controller.bench.failed import ErrorCount
from controller.bench.outcome import Outcome, from_json, to_json
from controller.bench.records import Lost, RequestRecord
from tests.controller.bench.test_outcome import STATS, window


def failed(ended_s, text="HTTP 500", lost=None):
    """A request that ended so."""
    return RequestRecord(ended_s - 0.5, streamed=True, ended_s=ended_s, error=text, lost=lost)


def test_every_failure_is_either_inside_a_window_or_between_two():
    """Of eight at 1, 2, ... 8: windows (2, 4] and (5, 7] have four, what is around them 2, 1 and 1."""
    records = [failed(float(at_s)) for at_s in range(1, 9)]
    ledger = Ledger()
    for from_s, to_s in ((2.0, 4.0), (5.0, 7.0)):
        ledger.account("engine", records, from_s)
        ledger.window("engine", to_s)
    ledger.account("engine", records, 9.0)
    found = [(b.after, b.before, b.failed, b.errors) for b in ledger.between()]
    assert found == [
        (0, 1, 2, (ErrorCount("HTTP 500", 2),)),
        (1, 2, 1, (ErrorCount("HTTP 500", 1),)),
        (2, None, 1, (ErrorCount("HTTP 500", 1),)),
    ]


def test_the_end_of_one_load_and_the_start_of_the_next_are_one_span():
    """The windows of another server lie in it: it is between the first and the third."""
    ledger = Ledger()
    ledger.window("engine", 2.0)
    ledger.account("engine", [failed(3.0, "a")], 4.0)
    ledger.window("other", 8.0)
    ledger.account("engine", [failed(9.0, "b"), failed(9.5, "a")], 10.0)
    ledger.window("engine", 12.0)
    (found,) = ledger.between()
    assert (found.after, found.before, found.failed) == (1, 3, 3)
    assert found.errors == (ErrorCount("a", 2), ErrorCount("b", 1))


def test_a_server_that_is_away_between_two_windows_is_known_by_what_it_refuses_or_by_its_counters():
    """A calm span beside it says nothing."""
    ledger = Ledger()
    ledger.account("engine", [RequestRecord(0.0, streamed=True, ended_s=0.5)], 1.0)
    ledger.window("engine", 2.0)
    ledger.account("engine", [failed(2.5, "ConnectError", Lost.REFUSED)], 3.0)
    ledger.restarted("engine", "the engine restarted")
    (found,) = ledger.between()
    assert (found.after, found.failed) == (1, 1)
    assert found.away == "a connection was refused, and later the engine restarted"


BETWEEN = (
    Between("engine", 0, 1, 6, (ErrorCount("HTTP 500", 6),), None),
    Between("engine", 1, 2, 4, (ErrorCount("HTTP 500", 3), ErrorCount("ConnectError", 1)), "a connection"),
    Between("other", 2, None, 0, (), "the engine restarted"),
)


def test_what_happened_between_windows_is_said_apart_from_what_is_in_them():
    """3 failed inside, 10 outside; no window is missing, so that the run is complete."""
    stats = replace(STATS, errors=3)
    inside = replace(window("depth-2", 4, 100), stats=stats, errors=(ErrorCount("HTTP 500", 3),))
    outcome = Outcome({}, [inside, window("depth-2", 4, 100)], between=BETWEEN)
    assert list(report.warnings(outcome))[1:] == [
        (
            "engine was away between windows 1 and 2 (a connection), which is in no figure; "
            "window 2 is of a server just started."
        ),
        "other was away after window 2 (the engine restarted), which is in no figure.",
        (
            "engine: 10 requests failed outside of windows, 6 before window 1, 4 between windows 1 and 2 "
            "(9 times 'HTTP 500', 1 times 'ConnectError')."
        ),
    ]
    data = json.loads(json.dumps(to_json(outcome)))
    assert data["failed_requests"] == {"in_windows": 3, "between_windows": 10}
    assert data["errors"] == [{"text": "HTTP 500", "count": 3}]
    assert data["complete"] is True
    assert tuple(from_json(data).between) == BETWEEN
