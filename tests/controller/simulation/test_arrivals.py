"""Traces in four formats; a bad row is named by its line, never dropped in silence."""

from __future__ import annotations

import json

import pytest

from controller.simulation.arrivals import (
    Arrival,
    InvalidArrivalsError,
    Trace,
    describe_bad_rows,
    parse_arrivals,
    read_arrivals,
)

EXPECTED = (Arrival(0.0, 4808, 10), Arrival(1.5, 110, 27))
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.4799600,110,27
"""
AZURE_2024 = AZURE.replace("03.9799600", "03.979960+00:00").replace("05.4799600", "05.479960+00:00")
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,4808,10,4818,Conversation log
6.5,GPT-4,110,27,137,Conversation log
"""
MOONCAKE = """\
{"timestamp": 27000, "input_length": 4808, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 28500, "input_length": 110, "output_length": 27, "hash_ids": []}
"""
OWN = """\
{"arrival_s": 0, "prompt_tokens": 4808, "output_tokens": 10}
{"arrival_s": 1.5, "prompt_tokens": 110, "output_tokens": 27}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure", AZURE),
        ("azure", AZURE_2024),
        ("burstgpt", BURSTGPT),
        ("mooncake", MOONCAKE),
        ("specgov", OWN),
    ],
)
def test_every_format_gives_the_same_requests(name, text):
    """Two requests, 1.5 s apart, whichever way they are written down."""
    trace = parse_arrivals(text.splitlines(keepends=True))
    assert trace.format == name
    assert [(round(a.arrival_s, 6), a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [
        (a.arrival_s, a.prompt_tokens, a.output_tokens) for a in EXPECTED
    ]
    assert trace.bad_rows == ()


def test_bad_rows_are_named_by_line_and_the_rest_is_kept():
    """Line numbers count the header and blank lines, as an editor shows them."""
    text = (
        AZURE + "\nyesterday,1,2\n2023-11-16 18:17:06,0,5\n2023-11-16 18:17:06,5\n2023-11-16 18:17:07,5,1.5\n"
    )
    trace = parse_arrivals(text.splitlines(keepends=True))
    assert len(trace.arrivals) == 2
    assert [str(row) for row in trace.bad_rows] == [
        "line 5: TIMESTAMP is not a time, got 'yesterday'",
        "line 6: ContextTokens must be a whole number 1..10000000, got '0'",
        "line 7: has 2 columns, the header 3",
        "line 8: GeneratedTokens must be a whole number 1..10000000, got '1.5'",
    ]
    assert describe_bad_rows(trace, first=1).endswith("got 'yesterday'; and 3 more")


def test_bad_json_rows_are_named_too():
    """Not JSON, not an object, a key missing, an infinite time, one before the trace's own zero."""
    times = [f'{{"arrival_s": {at_s}, "prompt_tokens": 1, "output_tokens": 1}}' for at_s in ("1e999", "-5")]
    rows = ["{", "[1]", '{"arrival_s": 1}', *times]
    trace = parse_arrivals([*OWN.splitlines(), *rows])
    assert [row.line for row in trace.bad_rows] == [3, 4, 5, 6, 7]
    assert trace.bad_rows[4].reason == "arrival_s must be finite and >= 0, got -5"
    assert "output_tokens, prompt_tokens is missing" in trace.bad_rows[2].reason


def test_rows_out_of_order_are_sorted_in_and_counted():
    """A trace is replayed in order of time; that the file was not is told."""
    lines = AZURE.splitlines()
    trace = parse_arrivals([lines[0], lines[2], lines[1]])
    assert [a.output_tokens for a in trace.arrivals] == [10, 27]
    assert trace.reordered == 1


def test_strict_refuses_what_is_otherwise_told(tmp_path):
    """The first bad rows stand in the error."""
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "x,1,1\n")
    assert len(read_arrivals(path).bad_rows) == 1
    with pytest.raises(InvalidArrivalsError, match=r"1 bad row: line 4: TIMESTAMP is not a time, got 'x'"):
        read_arrivals(path, strict=True)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"x": 1}\n', AZURE.splitlines()[0]])
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, text):
    """Empty, unknown header, unknown keys, no rows: an error, not an empty replay."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidArrivalsError, match=r"trace\.csv"):
        read_arrivals(path)


def test_a_rate_scale_of_two_halves_every_time():
    """The same requests, twice as fast."""
    assert [a.arrival_s for a in Trace("x", EXPECTED).scaled(2).arrivals] == [0.0, 0.75]


def test_a_trace_can_be_repeated_and_cut():
    """Two requests 1.5 s apart repeat every 1.5 * (1 + 1/1) = 3 s: 0, 1.5, 3, 4.5, then 6 is too late."""
    longer = Trace("x", EXPECTED).lasting(6.0)
    assert [a.arrival_s for a in longer.arrivals] == [0, 1.5, 3, 4.5]
    assert len(Trace("x", EXPECTED).lasting(1.0).arrivals) == 1


def test_a_real_azure_row_survives_json(tmp_path):
    """Our own format is plain enough to be written by one line of anybody's code."""
    path = tmp_path / "own.jsonl"
    row = {"arrival_s": 0.25, "prompt_tokens": 7, "output_tokens": 9}
    path.write_text(json.dumps(row) + "\n")
    assert read_arrivals(path).arrivals == (Arrival(0.0, 7, 9),)
