"""train_pair.py DIR [--device cuda] [--hidden 512 ...]: a small target and an EAGLE3 draft, both learned.

The engine tests' models are made, not learned: what their drafts are worth says nothing about real ones.
These are a byte-level Llama that has read the standard library's sources, and a draft that has learned to
predict the target's own next tokens, on such sources and on what the target writes by itself.  The files of
`source_text.read_files(held_out=True)` are never seen.

Writes DIR/target, DIR/draft and DIR/pair.json (what was trained, and how well it did on held-out text).  The
same arguments on the same machine give the same weights.  Runs inside the engine's own environment.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "engine")]
from eagle3_draft import Draft, captured_layers  # noqa: E402 - the path comes first
from make_models import TINY, VOCABULARY, config  # noqa: E402
from source_text import FIRST_BYTE, encode, prompts, read_files  # noqa: E402

DRAFTS = 3
"""Steps of a chain in training, the depth that is measured."""
LATER_STEP_WEIGHT = 0.8
SHORT_SHARE = 0.6
"""Of its tokens, the target first learns so many in stretches of half the length: attention costs less."""
PROMPT = 64
OWN_EVERY = 2
"""Of so many batches for the draft one is the target's own text."""


class Text:
    """Random stretches of a long text."""

    def __init__(self, files, device, seed):
        tokens = [token for text in files for token in encode(text)]
        self._tokens = torch.tensor(tokens, dtype=torch.int16)
        self._device = device
        self._draw = torch.Generator().manual_seed(seed)

    def batch(self, rows, length):
        starts = torch.randint(len(self._tokens) - length, (rows, 1), generator=self._draw)
        return self._tokens[starts + torch.arange(length)].long().to(self._device)


class Learner:
    """Muon for the matrices inside, AdamW for the rest; warmed up, then along a cosine to a tenth.

    With so few steps Muon is worth it: after 80 of 1024 tokens the small target was at 2.46 nats, with AdamW
    alone at 2.90.
    """

    def __init__(self, model, rate, steps):
        outside = ("embed_tokens", "lm_head")
        named = [(name, p) for name, p in model.named_parameters()]
        inside = [p for name, p in named if p.dim() == 2 and not any(part in name for part in outside)]
        rest = [p for _, p in named if not any(p is q for q in inside)]
        self._parameters = inside + rest
        self._optimizers = [
            torch.optim.Muon(inside, lr=rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        warm = max(1, steps // 20)

        def factor(step):
            cosine = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps))
            return min((step + 1) / warm, 0.1 + 0.9 * cosine)

        self._schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in self._optimizers]

    def learn(self, loss):
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for one in (*self._optimizers, *self._schedules):
            one.step()


class Progress:
    """Prints the mean loss now and then, with the time."""

    def __init__(self, what, steps):
        self._what, self._steps, self._losses, self._began_s = what, steps, [], time.monotonic()

    def __call__(self, step, loss):
        self._losses.append(loss.detach())
        if (step + 1) % 25 == 0 or step + 1 == self._steps:
            mean = torch.stack(self._losses).mean().item()
            spent_s = time.monotonic() - self._began_s
            print(f"{self._what} {step + 1}/{self._steps}: loss {mean:.3f}, {spent_s:.0f} s", flush=True)
            self._losses.clear()


def next_token_loss(model, tokens):
    logits = model(tokens).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train_target(given, text):
    """A Llama that has read `given.target_tokens` tokens of `text`."""
    model = LlamaForCausalLM(config(given.shape, given.layers)).to(given.device)
    steps = given.target_tokens // given.batch_tokens
    learner, say = Learner(model, given.rate, steps), Progress("target", steps)
    for step in range(steps):
        length = given.context // (2 if step < SHORT_SHARE * steps else 1)
        loss = next_token_loss(model, text.batch(given.batch_tokens // length, length))
        learner.learn(loss)
        say(step, loss)
    return model.eval()


@torch.no_grad()
def own_text(given, model, starts):
    """What the target writes after each of `starts`, greedily, up to the context's length."""
    found = []
    for i in range(0, len(starts), 64):
        rows = torch.tensor(starts[i : i + 64], device=given.device)
        found.append(
            model.generate(
                rows, attention_mask=torch.ones_like(rows), do_sample=False, use_cache=True,
                max_new_tokens=given.context - rows.shape[1], eos_token_id=None, pad_token_id=2,
            )
        )  # fmt: skip
    return torch.cat(found)


@torch.no_grad()
def seen_by_draft(model, tokens):
    """(embedding, captured layers' inputs, logits) of the target."""
    said = model(tokens, output_hidden_states=True)
    layers = captured_layers(model.config.num_hidden_layers)
    captured = torch.cat([said.hidden_states[i] for i in layers], -1)
    return model.model.embed_tokens(tokens), captured, said.logits


def chain_losses(drafted, logits):
    """Cross entropy to the target's distribution, of each step."""
    losses = []
    for step, guess in enumerate(drafted):
        wanted = logits[:, step + 1 :].softmax(-1)
        said = guess[:, : -step - 1].log_softmax(-1)
        losses.append(-(wanted * said).sum(-1).mean())
    return losses


def train_draft(given, target, text, own):
    """A draft for `target`, from `given.draft_tokens` tokens of `text` and of the target's `own` text."""
    torch.manual_seed(given.seed + 1)
    draft = Draft(target.config).to(given.device)
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight)
    steps = given.draft_tokens // given.batch_tokens
    learner, say = Learner(draft, given.rate, steps), Progress("draft", steps)
    rows = given.batch_tokens // given.context
    for step in range(steps):
        if step % OWN_EVERY and len(own):
            tokens = own[torch.randint(len(own), (rows,)).to(own.device)]
        else:
            tokens = text.batch(rows, given.context)
        embedded, captured, logits = seen_by_draft(target, tokens)
        losses = chain_losses(draft(embedded, captured, DRAFTS), logits)
        loss = sum(LATER_STEP_WEIGHT**i * loss for i, loss in enumerate(losses))
        learner.learn(loss)
        say(step, losses[0])
    return draft.eval()


@torch.no_grad()
def agreement(target, draft, tokens, first=0):
    """Of each step, how often the draft's choice is the target's where it was at all steps before."""
    embedded, captured, logits = seen_by_draft(target, tokens)
    wanted, alive, found = logits.argmax(-1), None, []
    for step, guess in enumerate(draft(embedded, captured, DRAFTS)):
        hit = (guess[:, : -step - 1].argmax(-1) == wanted[:, step + 1 :])[:, first:]
        alive = torch.ones_like(hit) if alive is None else alive[:, : hit.shape[1]]
        found.append((hit & alive).sum().item() / max(1, alive.sum().item()))
        alive = alive & hit
    return found


def byte_names():
    """A character for every byte, as byte-level tokenizers have them: itself, or one past 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder):
    """Tokens are bytes, as in `source_text`; a grammar's text needs to know."""
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2} | {
        name: FIRST_BYTE + byte for byte, name in enumerate(byte_names())
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def write_target(folder, model):
    model.config.dtype = torch.float32
    model.cpu().save_pretrained(folder)
    write_tokenizer(folder)


def write_draft(folder, given, draft):
    tensors = {name: tensor.cpu().contiguous() for name, tensor in draft.state_dict().items()}
    tensors["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
    tensors["t2d"] = torch.ones(VOCABULARY, dtype=torch.bool)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = config(given.shape, 1).to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "float32",
        "draft_vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))


def held_out_figures(given, target, draft):
    """How good both are on what they never saw."""
    files = read_files(held_out=True)
    rows = Text(files, given.device, given.seed).batch(32, given.context)
    own = own_text(given, target, prompts(files, 32, PROMPT, given.seed))
    with torch.no_grad():
        nats = next_token_loss(target, rows).item()
    return {
        "held_out_bits_per_byte": nats / math.log(2),
        "agreement_on_held_out_text": agreement(target, draft, rows),
        "agreement_on_own_text_after_held_out_prompts": agreement(target, draft, own, PROMPT),
    }


def train(given):
    torch.manual_seed(given.seed)
    torch.set_num_threads(given.threads)
    if given.device != "cpu":
        torch.set_float32_matmul_precision("high")
    files = read_files(held_out=False)
    text = Text(files, given.device, given.seed)
    began_s, cpu_s = time.monotonic(), time.process_time()
    target = train_target(given, text)
    own = (
        own_text(given, target, prompts(files, given.own_rows, PROMPT, given.seed)) if given.own_rows else ()
    )
    draft = train_draft(given, target, text, own)
    figures = {"seconds": time.monotonic() - began_s, "cpu_seconds": time.process_time() - cpu_s}
    figures |= held_out_figures(given, target, draft)
    write_target(given.folder / "target", target)
    write_draft(given.folder / "draft", given, draft)
    asked = {name: value for name, value in vars(given).items() if name not in ("folder", "shape")}
    figures |= {"asked": asked, "shape": asdict(given.shape), "train_bytes": sum(map(len, files))}
    (given.folder / "pair.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures))


def parsed(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=TINY.hidden)
    parser.add_argument("--intermediate", type=int, default=TINY.intermediate)
    parser.add_argument("--layers", type=int, default=TINY.layers)
    parser.add_argument("--context", type=int, default=320)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--target-tokens", type=int, default=700_000)
    parser.add_argument("--draft-tokens", type=int, default=450_000)
    parser.add_argument("--own-rows", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3e-3)
    given = parser.parse_args(arguments)
    given.shape = replace(TINY, hidden=given.hidden, intermediate=given.intermediate, layers=given.layers)
    return given


if __name__ == "__main__":
    train(parsed())
