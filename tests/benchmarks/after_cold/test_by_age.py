"""What the figures of `docs/results/after-cold.md` are made by: ages, baselines, the split of the text."""

import math

import numpy as np
import pytest

from tests.benchmarks.after_cold.by_age import Spell, Step, compare, counts, factor, pair, spell_of, summary
from tests.benchmarks.after_cold.source_text import decode, encode, is_held_out, prompts

WITHOUT = [Step(10, 3, 3), Step(14, 3, 3), Step(18, 3, 1), Step(20, 3, 3), Step(24, 3, 0), Step(25, 3, 2)]
AFTER = [Step(10, 3, 3), Step(14, 0, 0), Step(15, 0, 0), Step(16, 3, 0), Step(17, 3, 0), Step(18, 3, 1),
         Step(20, 3, 0), Step(21, 3, 2)]  # fmt: skip


def test_a_spell_lasts_from_the_first_step_off_to_the_first_draft_after_it():
    """Two steps off at 14 and 15 tokens, drafting again at 16."""
    assert spell_of(AFTER) == Spell(begin=14, rise=16, steps=2)


def test_without_a_rise_there_is_no_spell():
    """Never off, and off to the end."""
    assert spell_of(WITHOUT) is None
    assert spell_of([Step(10, 3, 1), Step(12, 0, 0)]) is None


def test_counts_are_the_steps_that_got_so_far():
    """Of 0, 1 and 3 accepted drafts: three steps, two with one or more, one with two and with three."""
    assert counts([Step(1, 3, 0), Step(2, 3, 1), Step(4, 3, 3)]).tolist() == [3, 2, 1, 1]


def test_the_baseline_of_an_age_begins_where_the_spell_s_steps_begin():
    """Ages 1 to 8 after a rise at 16 are 17 to 23 tokens: steps at 17, 18, 20, 21; without it 18, 20."""
    after, without = pair(AFTER, WITHOUT, Spell(14, 16, 2), (1, 8), end=99)
    assert after.tolist() == [4, 2, 1, 0]
    assert without.tolist() == [2, 2, 1, 1]


def test_the_first_step_is_compared_with_the_first_one_not_before_it():
    """The rise is at 16 tokens; without the spell no step begins there, the next one at 18."""
    after, without = pair(AFTER, WITHOUT, Spell(14, 16, 2), (0, 1), end=99)
    assert after.tolist() == [1, 0, 0, 0]
    assert without.tolist() == [1, 1, 0, 0]


def test_what_is_drafted_past_the_end_is_left_out():
    """A request of 24 tokens has its last whole chain of 3 drafts at 20: the step at 21 is dropped."""
    after, _ = pair(AFTER, WITHOUT, Spell(14, 16, 2), (1, 8), end=24)
    assert after.tolist() == [3, 1, 0, 0]


@pytest.mark.parametrize(("tokens", "expected"), [(1.0, 0.0), (1.53125, 0.5), (2.5, 1.0)])
def test_the_factor_is_what_every_position_is_multiplied_by(tokens, expected):
    """p = 3/4, 2/3, 1/2: 1 + 0.75 f + 0.5 f^2 + 0.25 f^3; at f = 0.5 that is 1.53125."""
    baseline = [3 / 4, 2 / 3, 1 / 2]
    assert factor(baseline, tokens) == pytest.approx(expected, abs=1e-6)


def test_equal_arms_have_ratio_one_and_no_error():
    """The same counts on both sides, whatever is drawn."""
    one = np.array([[4.0, 3.0, 2.0, 1.0], [4.0, 2.0, 2.0, 2.0]])
    found = summary(one, one)
    assert found["p"] == [0.625, 0.8, 0.75]
    assert (found["ratio"], found["ratio_error"]) == ([1.0] * 3, [0.0] * 3)
    assert found["factor"] == pytest.approx(1.0)


def test_what_nobody_was_exposed_to_is_unknown():
    """No first draft accepted: nothing is known of the second."""
    found = summary(np.array([[4.0, 0.0, 0.0, 0.0]]), np.array([[4.0, 2.0, 1.0, 1.0]]))
    assert found["p"] == [0.0, None, None]
    assert found["ratio"] == [0.0, None, None]


def test_an_arm_is_compared_request_by_request():
    """One with a spell, one without: the second is left out, and said to be."""
    found = compare({"0": AFTER, "1": WITHOUT}, {"0": WITHOUT, "1": WITHOUT}, {"0": 99, "1": 99})
    assert (found["requests"], found["left_out"], found["spell_steps"]) == (1, 1, [2])
    assert found["bins"][-1]["steps"] == 5
    assert (found["roots_in_both"], found["of_which_accepted_the_same"]) == (2, 1)


def test_where_the_texts_part_the_comparison_ends():
    """Equal up to 20 tokens: whole chains begin before 17, the first step alone; up to 16: none."""
    found = compare({"0": AFTER}, {"0": WITHOUT}, {"0": 20})
    assert found["bins"][-1]["steps"] == 1
    assert compare({"0": AFTER}, {"0": WITHOUT}, {"0": 16})["left_out"] == 1


def test_text_comes_back_from_its_tokens_and_prompts_begin_at_a_line():
    """Bytes are tokens 3 to 258; a prompt follows a line's end, and none comes twice."""
    text = b"".join(b"line %d\n" % i for i in range(200))
    assert encode(b"\x00\xff") == [3, 258]
    assert decode(encode(text)) == text
    found = [decode(prompt) for prompt in prompts([text], 20, 32, seed=1)]
    assert all(prompt.startswith(b"line") and len(prompt) == 32 for prompt in found)
    assert len(set(found)) == 20


def test_a_tenth_of_the_files_is_held_out_by_name():
    """Of a thousand names about a hundred, the same ones every time."""
    names = [f"package/module_{i}.py" for i in range(1000)]
    held_out = sum(map(is_held_out, names))
    assert abs(held_out - 100) < 3 * math.sqrt(90)
