"""Lengths that the host counts along while a step adds exactly one token."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.plain_decode_lengths import KnownLengths


def test_a_prefilled_request_is_counted_through_steps_without_drafts():
    """5 tokens of prompt and two steps are 7, in the order in which slots are asked for."""
    lengths = KnownLengths()
    lengths.set([3, 1], [5, 9])
    lengths.advance([1, 3])
    lengths.advance([3])
    assert lengths.get([3, 1]) == [7, 10]


def test_a_step_that_drafts_makes_its_requests_unknown_and_only_them():
    """How many drafts were accepted is known to the device alone."""
    lengths = KnownLengths()
    lengths.set([1, 2], [5, 6])
    lengths.forget([2])
    assert lengths.get([1]) == [5]
    assert lengths.get([2]) is None
    assert lengths.get([1, 2]) is None


def test_an_unknown_length_stays_unknown_until_it_is_set():
    """Counting on from nothing would be a wrong length, which is an illegal read on the device."""
    lengths = KnownLengths()
    lengths.advance([4])
    assert lengths.get([4]) is None
    lengths.set([4], [12])
    lengths.advance([4])
    assert lengths.get([4]) == [13]


def test_a_slot_that_was_never_seen_is_unknown():
    """A request that came in another way than through a prefill is not guessed at."""
    assert KnownLengths().get([0, 17]) is None


def test_a_slot_that_is_used_again_has_the_length_of_its_new_request():
    """The pool hands slots out again as soon as a request ends."""
    lengths = KnownLengths()
    lengths.set([2], [400])
    lengths.advance([2])
    lengths.set([2], [3])
    assert lengths.get([2]) == [3]


def test_an_empty_batch_has_no_lengths_and_is_known():
    """Nothing to be unknown about."""
    assert KnownLengths().get([]) == []


_LAUNCH = st.tuples(st.sampled_from(["prefill", "step", "draft"]), st.sets(st.integers(0, 7), min_size=1))


@given(st.lists(_LAUNCH, max_size=60))
def test_what_is_known_is_right_after_any_sequence_of_launches(launches):
    """Against a device that knows everything: a length is right or not given."""
    device = dict.fromkeys(range(8), 0)
    lengths = KnownLengths()
    for number, (what, slots) in enumerate(launches):
        order = sorted(slots)
        for slot in order:
            device[slot] = {"prefill": 10 + number, "step": device[slot] + 1, "draft": device[slot] + 3}[what]
        if what == "prefill":
            lengths.set(order, [device[slot] for slot in order])
        elif what == "step":
            lengths.advance(order)
        else:
            lengths.forget(order)
    for slot in range(8):
        assert lengths.get([slot]) in (None, [device[slot]])


def test_nothing_is_known_once_all_slots_have_drafted():
    """Counted, so that drafting steps need not look: set twice counts once, forgotten twice too."""
    lengths = KnownLengths()
    assert not lengths
    lengths.set([3, 5], [7, 9])
    lengths.set([3], [8])
    lengths.forget([3])
    lengths.forget([3])
    assert lengths
    lengths.advance([5])
    lengths.forget([5, 9])
    assert not lengths
