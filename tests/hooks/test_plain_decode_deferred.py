"""How many of a request's tokens are kept for the draft, and where they are."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.plain_decode_deferred import KeptCounts


def test_tokens_are_kept_up_to_the_width_and_found_oldest_first():
    """Width 3: after four steps the last three, in rows 1, 2 and 0 of the ring."""
    counts = KeptCounts(3)
    assert [counts.add([7]) for _ in range(4)] == [0, 1, 2, 0]
    assert counts.of([7]) == [3]
    assert counts.rows([3]) == [[1, 2, 0]]


def test_a_request_that_joined_later_has_fewer():
    """Its rows are filled up with any ring row: what lies past the kept tokens is overwritten later."""
    counts = KeptCounts(3)
    counts.add([1])
    counts.add([1, 2])
    assert counts.of([1, 2]) == [2, 1]
    assert counts.rows([2, 1]) == [[0, 1, 0], [1, 0, 0]]


def test_a_request_that_missed_a_step_has_lost_what_it_had():
    """Its tokens would not be consecutive."""
    counts = KeptCounts(3)
    counts.add([1, 2])
    counts.add([1])
    assert counts.of([1, 2]) == [2, 0]
    counts.add([1, 2])
    assert counts.of([1, 2]) == [3, 1]


def test_what_was_taken_in_or_dropped_is_not_kept_any_more():
    """The next step starts anew; others keep theirs."""
    counts = KeptCounts(3)
    counts.add([1, 2])
    counts.drop([1, 9])
    assert counts.of([1, 2, 9]) == [0, 1, 0]
    counts.add([1, 2])
    assert counts.of([1, 2]) == [1, 2]


_EVENT = st.tuples(st.sampled_from(["step", "drop"]), st.sets(st.integers(0, 3), min_size=1))


@given(st.integers(2, 6), st.lists(_EVENT, max_size=50))
def test_the_rows_always_lead_to_the_latest_tokens_of_a_request(width, events):
    """Against a ring that stores which step and request wrote each place."""
    counts, ring, history = KeptCounts(width), {}, {slot: [] for slot in range(4)}
    for number, (what, slots) in enumerate(events):
        if what == "drop":
            counts.drop(sorted(slots))
            for slot in slots:
                history[slot] = []
            continue
        row = counts.add(sorted(slots))
        for slot in range(4):
            history[slot] = [*history[slot], number][-width:] if slot in slots else []
        for slot in slots:
            ring[row, slot] = number
    everyone = range(4)
    kept = counts.of(everyone)
    latest_was_a_step = bool(events) and any(history.values())
    if latest_was_a_step:
        assert kept == [len(history[slot]) for slot in everyone]
    for slot, count, rows in zip(everyone, kept, counts.rows(kept), strict=True):
        assert [ring[row, slot] for row in rows[:count]] == history[slot][len(history[slot]) - count :]
