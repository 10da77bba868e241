"""Where every scheduler process writes down what it applied, and the HTTP process reads it.

SGLang answers a control request through TP rank 0 alone, so what the other ranks did cannot be seen on
its request path.  Each process owns one 64-byte slot of a small file in shared memory.  Nobody reads it
to decide anything: it is evidence, not control.
"""

from __future__ import annotations

import atexit
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sglang_hooks.schedule import GEARS

ENV = "SPECGOV_ACK_FILE"
SLOT_BYTES = 64
MAX_SLOTS = 1024
_LAYOUT = struct.Struct("<QQQQQQ")
_CHECKED = struct.Struct("<QQQQQQI")


class Ack(NamedTuple):
    """What one scheduler process applied last; all zero counters before its first command."""

    order: int
    sequence: int
    decode_steps: int
    """Decode steps that it had launched at the moment of applying."""
    digest: int
    """Digest of its (batch size, depth, gear) sequence at that moment."""
    depths_mask: int
    """Bit d is set when depth d is built there."""
    gears_mask: int
    """Bit g is set when gear g of `schedule.GEARS` can be run there."""


def depths_mask(depths: Iterable[int]) -> int:
    """The bit mask of `depths`; depths above 63 share the last bit."""
    return sum({1 << min(depth, 63) for depth in depths})


def gears_mask(gears: Iterable[str]) -> int:
    """The bit mask of `gears`; raises `ValueError` on one that is not in `schedule.GEARS`."""
    return sum({1 << GEARS.index(gear) for gear in gears})


class AckBoard:
    """Slots over any writable buffer: the shared file, or a `bytearray` in one process."""

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self._buffer = buffer

    def write(self, slot: int, ack: Ack) -> None:
        """Fill a slot; a slot out of range is not written and reads as unknown."""
        at = slot * SLOT_BYTES
        if 0 <= at <= len(self._buffer) - SLOT_BYTES:
            body = _LAYOUT.pack(*ack)
            _CHECKED.pack_into(self._buffer, at, *ack, zlib.crc32(body))

    def read(self, slot: int) -> Ack | None:
        """What a slot says; `None`: nobody wrote it, or its writer is in the middle of writing."""
        at = slot * SLOT_BYTES
        if not 0 <= at <= len(self._buffer) - SLOT_BYTES:
            return None
        *fields, checksum = _CHECKED.unpack_from(self._buffer, at)
        ack = Ack(*fields)
        return ack if ack.depths_mask and zlib.crc32(_LAYOUT.pack(*ack)) == checksum else None


def create() -> AckBoard:
    """Make the file (readable by this user only, removed at exit) and name it in the environment."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # tmpfs; the name is random
    handle, name = tempfile.mkstemp(prefix="specgov-", dir=folder)
    try:
        os.ftruncate(handle, MAX_SLOTS * SLOT_BYTES)
        board = AckBoard(mmap.mmap(handle, MAX_SLOTS * SLOT_BYTES))
    finally:
        os.close(handle)
    os.environ[ENV] = name
    atexit.register(_remove, name, os.getpid())
    return board


def attach() -> AckBoard | None:
    """Open the file that the environment names; `None` when there is none."""
    name = os.environ.get(ENV)
    if not name:
        return None
    with Path(name).open("r+b") as file:
        return AckBoard(mmap.mmap(file.fileno(), MAX_SLOTS * SLOT_BYTES))


def unname() -> None:
    """Remove the file's name; who has it open keeps it, and a killed server leaves nothing behind."""
    name = os.environ.pop(ENV, None)
    if name:
        Path(name).unlink(missing_ok=True)


def _remove(name: str, creator: int) -> None:
    if os.getpid() == creator:  # a forked child runs its parent's exit handlers too
        Path(name).unlink(missing_ok=True)
