"""Prompt sources."""

import json
import random

import pytest

from controller.bench.prompts import Coding, Encyclopedic, Prompt, RandomTokens, of_length, parse_sharegpt


def test_the_same_seed_gives_the_same_prompts():
    """A load can be run again."""
    for source in (Encyclopedic(), Coding(), RandomTokens()):
        assert [source.draw(random.Random(7)) for _ in range(3)] == [
            source.draw(random.Random(7)) for _ in range(3)
        ]


def test_kinds_have_their_shapes():
    """Encyclopedic: short in, long out.  Coding: a long file in."""
    rng = random.Random(1)
    questions = [Encyclopedic().draw(rng) for _ in range(50)]
    edits = [Coding().draw(rng) for _ in range(50)]
    assert max(len(p.text) for p in questions) < 200
    assert min(p.output_tokens for p in questions) >= 256
    assert min(len(p.text) for p in edits) > 1000
    assert all("```python" in p.text for p in edits)


def test_joining_half_way_leaves_half_the_answer_and_grows_the_context():
    """10 tokens in, 8 out, joined at 0.5: 4 more tokens of context, 4 to come."""
    joined = Prompt(8, token_ids=tuple(range(10))).joined_at(0.5)
    assert joined.output_tokens == 4
    assert len(joined.token_ids) == 14
    assert Prompt(1, text="a").joined_at(0.99).output_tokens == 1


def test_sharegpt_is_read_as_json_and_as_jsonl():
    """The answer's length in characters, over four, is what is asked for."""
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "0123456789abcdef"}]
    row = json.dumps({"conversations": turns})
    for text in (f"[{row}]", f"{row}\n\n{row}\n"):
        prompt = parse_sharegpt(text).draw(random.Random(0))
        assert (prompt.text, prompt.output_tokens) == ("why?", 4)


def test_a_sharegpt_file_without_a_turn_is_refused():
    """Nothing to ask is an error, not an empty load."""
    with pytest.raises(ValueError, match="human turn and an answer"):
        parse_sharegpt('[{"conversations": []}]')


def test_random_tokens_refuse_an_upside_down_range():
    """The field and the value are named."""
    with pytest.raises(ValueError, match=r"input_tokens must be a range of positive numbers, got 9\.\.3"):
        RandomTokens(input_tokens=(9, 3))


def test_a_prompt_of_a_length_has_it():
    """Token ids exactly; as text about two tokens a word."""
    rng = random.Random(0)
    assert len(of_length(50, 7, rng, as_text=False).token_ids) == 50
    assert len(of_length(50, 7, rng, as_text=True).text.split()) == 25
