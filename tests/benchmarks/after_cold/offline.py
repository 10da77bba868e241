"""offline.py PAIR OUT.json [--requests N] [--engine WORK]: the same arms in plain PyTorch, for more requests.

The engine on CPU is slow, so it sees few requests.  What is drafted at a place depends on the text up to
there and on the draft's cache alone: with the weights at hand it can be computed for a whole text at once.
The entries of a spell are replaced by another request's from elsewhere, which is what a slot of the pool
holds that nobody wrote.  Requests then step through their text as they would in the engine.  One thing is
taken over: of the first step after a rise, whose drafts were left from before the spell, none is accepted.

`--engine`: the folder that `measure.py --work` kept; says how many of the steps that the engine made there
come out the same, in the arms whose cache is whole.  Runs inside the engine's own environment.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent.parent)]
from eagle3_draft import Draft  # noqa: E402 - the path comes first
from train_pair import seen_by_draft  # noqa: E402

from tests.benchmarks.after_cold.arms import BATCH, BEFORE, OUTPUT, PROMPT, steps_of, texts  # noqa: E402
from tests.benchmarks.after_cold.by_age import DEPTH, Step, compare, conditional, counts  # noqa: E402

SEED = 7
"""Of the engine's requests, as in `measure.py`."""
SPELLS = {"cold-8": 8, "cold-32": 32, "cold-128": 128, "frozen-32": 32}
ELSEWHERE = 97
"""How far away in the other request's text the entries come from that a hole is filled with."""


def load(folder):
    target = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    draft = Draft(target.config)
    weights = load_file(folder / "draft" / "model.safetensors")
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()})
    return target, draft.eval()


@torch.no_grad()
def accepted_at(target, draft, tokens, holes=None):
    """[rows, length] accepted drafts of a step that begins with so many tokens known to the target's cache.

    `holes`: [rows, length], where the draft's cache holds what another request left.
    """

    def spoil(key, value):
        hole = holes[:, None, :, None]
        return tuple(torch.where(hole, x.roll((1, ELSEWHERE), (0, 2)), x) for x in (key, value))

    embedded, captured, _ = seen_by_draft(target, tokens)
    alive = torch.ones_like(tokens, dtype=torch.bool)
    accepted = torch.zeros_like(tokens)
    for step, guess in enumerate(draft(embedded, captured, DEPTH, spoil if holes is not None else None)):
        alive = alive & (guess.argmax(-1) == tokens.roll(-step - 2, 1))
        accepted += alive
    return accepted.roll(1, 1)  # a chain from index a is verified by the step that begins at a + 1 tokens


def walk(accepted, begin, count=None):
    """Steps at full depth from `begin` tokens on, `count` of them or to the end."""
    steps, before = [], begin
    while before < PROMPT + OUTPUT - DEPTH and (count is None or len(steps) < count):
        steps.append(Step(before, DEPTH, accepted[before]))
        before += accepted[before] + 1
    return steps, before


def with_spell(clean, begin, length, spoiled):
    """Steps of a request: as without it until `begin`, off for `length` tokens, then from a spoiled cache."""
    rise = begin + length
    ahead = [step for step in clean if step.before < begin]
    off = [Step(before, 0, 0) for before in range(begin, rise)]
    after, _ = walk(spoiled, rise + 1)
    return [*ahead, *off, Step(rise, DEPTH, 0), *after]


def arm(name, target, draft, tokens, clean):
    """{row: steps} of one arm."""
    frozen, length = name.startswith("frozen"), SPELLS[name]
    begins = [PROMPT if frozen else walk(row, PROMPT, BEFORE)[1] for row in clean]
    places = torch.arange(tokens.shape[1])
    first = torch.tensor([0 if frozen else begin for begin in begins])[:, None]
    last = torch.tensor(begins)[:, None] + length
    spoiled = accepted_at(target, draft, tokens, (places >= first) & (places < last)).tolist()
    return {
        str(i): with_spell(walk(clean[i], PROMPT)[0], begins[i], length, spoiled[i])
        for i in range(len(clean))
    }


def mean_p(steps_of_requests):
    """p1, p2, p3 over all steps."""
    return conditional(sum(counts(steps) for steps in steps_of_requests)).round(4).tolist()


def against_engine(target, draft, folder):
    """Of the steps that the engine made with a whole cache, how many accept as many drafts here."""
    steps, found = steps_of(folder), {}
    rows = torch.tensor(texts(len(steps["on"]) + 2 * BATCH, SEED)[2 * BATCH :])
    known = accepted_at(target, draft, rows).tolist()
    for name in ("on", "warm-32"):
        pairs = [
            (known[int(number)][step.before], step.accepted)
            for number, of_request in steps[name].items()
            for step in of_request
            if step.depth == DEPTH and step.before < PROMPT + OUTPUT - DEPTH
        ]
        found[name] = {"steps": len(pairs), "the_same": sum(a == b for a, b in pairs)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pair", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--engine", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = load(given.pair)
    tokens = torch.tensor(texts(given.requests, SEED + 1))
    clean = accepted_at(target, draft, tokens).tolist()
    without = {str(i): walk(row, PROMPT)[0] for i, row in enumerate(clean)}
    ends = dict.fromkeys(without, PROMPT + OUTPUT)
    found = {"requests": given.requests, "arms": {}}
    if given.engine:
        found["against_engine"] = against_engine(target, draft, given.engine)
    nothing = accepted_at(target, draft, tokens, torch.ones_like(tokens, dtype=torch.bool)).tolist()
    found["p_with_no_entry_of_its_own"] = mean_p([walk(row, PROMPT)[0] for row in nothing])
    found["p"] = mean_p(without.values())
    for name in SPELLS:
        found["arms"][name] = compare(arm(name, target, draft, tokens, clean), without, ends)
    given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
