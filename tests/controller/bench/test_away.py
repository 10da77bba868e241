"""Whether a server was away: told from requests that failed on a server that was there."""

import errno

import httpx
import pytest

from controller.bench.away import lost, own_limit, why_away
from controller.bench.records import Lost, RequestRecord


def request(started_s, ended_s, how=None):
    """A request that ended so."""
    error = None if how is None else "x"
    return RequestRecord(started_s, streamed=True, ended_s=ended_s, error=error, lost=how)


def test_a_refused_connection_shows_that_nobody_was_there():
    """One is enough; (1, 3]: the one at 1 is of the window before."""
    records = [request(0.5, 1.0, Lost.REFUSED), request(2.0, 2.1, Lost.REFUSED), request(0.0, 5.0)]
    assert why_away(records, 1.0, 3.0) == "a connection was refused"
    assert why_away(records, 2.5, 3.0) is None
    assert why_away(records * 2, 0.0, 3.0) == "4 connections were refused"


def test_all_running_requests_that_lose_their_connections_at_once_show_it_too():
    """Within 0.1 s of the first; one that goes on shows that the server is there."""
    together = [request(0.0, 2.0 + 0.02 * i, Lost.BROKEN) for i in range(4)]
    why = "all 4 running requests lost their connections at once"
    assert why_away(together, 0.0, 5.0) == why
    assert why_away([*together, request(1.0, 4.0)], 0.0, 5.0) is None
    assert why_away([*together, request(1.0, None)], 0.0, 5.0) is None
    assert why_away([*together, request(2.5, None)], 0.0, 5.0) == why


def test_streams_that_are_cut_off_one_by_one_are_failures_of_requests():
    """Two at once are chance."""
    records = [request(0.0, 1.0 + i, Lost.BROKEN) for i in range(4)] + [request(0.0, 6.0)]
    assert why_away(records, 0.0, 5.0) is None
    assert why_away([request(0.0, 1.0, Lost.BROKEN)] * 2, 0.0, 5.0) is None


@pytest.mark.parametrize(
    ("problem", "how"),
    [
        (httpx.ConnectError("no"), Lost.REFUSED),
        (httpx.ReadError("reset"), Lost.BROKEN),
        (httpx.RemoteProtocolError("closed"), Lost.BROKEN),
        (httpx.ReadTimeout("slow"), None),
        (httpx.ConnectTimeout("busy"), None),
        (ValueError("HTTP 500"), None),
    ],
)
def test_how_a_request_lost_its_server(problem, how):
    """A busy server is no dead one, and one that answers with an error is there."""
    assert lost(problem) is how


def test_want_of_files_on_this_side_says_nothing_of_the_server():
    """As anyio wraps it: a group of what each address brought."""
    problem = httpx.ConnectError("All connection attempts failed")
    problem.__cause__ = OSError("All connection attempts failed")
    problem.__cause__.__cause__ = ExceptionGroup("all", [OSError(errno.EMFILE, "Too many open files")])
    assert own_limit(problem)
    assert lost(problem) is None
    refused = httpx.ConnectError("no")
    refused.__cause__ = OSError(errno.ECONNREFUSED, "Connection refused")
    assert lost(refused) is Lost.REFUSED
