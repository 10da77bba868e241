"""Text that every machine with Python has: the standard library's sources, as tokens of single bytes.

Split by file into what a model may learn from and what is held out.  Standard library only.
"""

import random
import sysconfig
import zlib
from pathlib import Path

FIRST_BYTE = 3
"""The token of byte 0; the tokens before it are special."""
HELD_OUT_SHARE = 10
"""One file of so many is held out."""


def encode(text):
    """The tokens of `text`, one a byte."""
    return [FIRST_BYTE + byte for byte in text]


def decode(tokens):
    """The text of `tokens`, as bytes; special tokens have none."""
    return bytes(token - FIRST_BYTE for token in tokens if FIRST_BYTE <= token < FIRST_BYTE + 256)


def is_held_out(name):
    """Whether a file is held out; by its name alone, so that every interpreter says the same."""
    return zlib.crc32(name.encode()) % HELD_OUT_SHARE == 0


def read_files(held_out, root=None):
    """The text of every file of one side of the split, in the order of their names."""
    root = Path(root or sysconfig.get_path("stdlib"))
    names = sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if "site-packages" not in path.parts
    )
    return [(root / name).read_bytes() for name in names if is_held_out(name) == held_out]


def prompts(files, count, length, seed):
    """`count` prompts of `length` tokens, each from another random line of a random file on.

    Raises `ValueError` when no file is long enough.
    """
    draw = random.Random(seed)
    long_enough = [text for text in files if len(text) > 4 * length]
    if not long_enough:
        raise ValueError(f"no file has more than {4 * length} bytes, {len(files)} files given")
    found = []
    while len(found) < count:
        text = draw.choice(long_enough)
        start = text.find(b"\n", draw.randrange(len(text) - 2 * length)) + 1
        prompt = text[start : start + length]
        if len(prompt) == length and prompt not in found:
            found.append(prompt)
    return [encode(prompt) for prompt in found]
