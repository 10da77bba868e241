"""Every input that fuzzing has kept, once more; and random changes to them."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, corpus


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_survived(name):
    """Those to start from, sound ones, and those that fuzzing found to reach new code."""
    inputs = corpus(name)
    assert inputs
    for key, data in inputs.items():
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name}/{key}: {data[:200]!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.data())
def test_bytes_cut_doubled_and_overwritten_are_survived(name, data):
    """From an input of the corpus, or from nothing."""
    text = data.draw(st.sampled_from(list(corpus(name).values())))
    at, to = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    middle = data.draw(st.sampled_from([b"", text[at:to] * 2, b"NaN", b"-1", b"1e999", b"[" * 50]))
    TARGETS[name](text[:at] + (middle or data.draw(st.binary(max_size=8))) + text[to:])
