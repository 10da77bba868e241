"""Every input that fuzzing has kept, once more; and random changes to them."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(file for file in CORPUS.rglob("*") if file.is_file())


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_input_of_the_corpus_is_survived(file):
    """Found once, never again."""
    TARGETS[file.parent.name](file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_inputs_to_start_from(name):
    """Sound ones, from which the fuzzer goes on."""
    assert any(file.parent.name == name for file in INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.data())
def test_bytes_cut_doubled_and_overwritten_are_survived(name, data):
    """From an input of the corpus, or from nothing."""
    files = [file for file in INPUTS if file.parent.name == name]
    text = data.draw(st.sampled_from(files)).read_bytes()
    at, to = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    middle = data.draw(st.sampled_from([b"", text[at:to] * 2, b"NaN", b"-1", b"1e999", b"[" * 50]))
    TARGETS[name](text[:at] + (middle or data.draw(st.binary(max_size=8))) + text[to:])
