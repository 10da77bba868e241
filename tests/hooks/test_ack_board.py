"""The acknowledgement board: slots in shared memory."""

import os
import stat
from pathlib import Path

import pytest

from sglang_hooks import ack_board
from sglang_hooks.ack_board import SLOT_BYTES, Ack, AckBoard, depths_mask, gears_mask

ACK = Ack(order=7, sequence=42, decode_steps=91234, digest=18374, depths_mask=0b1111, gears_mask=0b0110)


@pytest.fixture
def environment(monkeypatch):
    """An environment of this test's own; the file is gone afterwards."""
    monkeypatch.delenv(ack_board.ENV, raising=False)
    yield os.environ
    ack_board.unname()


def test_a_slot_gives_back_what_was_written():
    """Slots do not touch each other."""
    board = AckBoard(bytearray(3 * SLOT_BYTES))
    board.write(1, ACK)
    assert [board.read(slot) for slot in range(3)] == [None, ACK, None]


def test_a_slot_half_written_reads_as_unknown():
    """A reader in the middle of a write sees no acknowledgement rather than a mixed one."""
    buffer = bytearray(SLOT_BYTES)
    board = AckBoard(buffer)
    board.write(0, ACK)
    other = bytearray(SLOT_BYTES)
    AckBoard(other).write(0, ACK._replace(order=8, sequence=43))
    buffer[:12] = other[:12]
    assert board.read(0) is None


@pytest.mark.parametrize("slot", [-1, 3, 10_000])
def test_a_rank_beyond_the_board_is_unknown(slot):
    """It neither writes elsewhere nor reads as somebody else."""
    buffer = bytearray(3 * SLOT_BYTES)
    AckBoard(buffer).write(slot, ACK)
    assert buffer == bytearray(3 * SLOT_BYTES)
    assert AckBoard(buffer).read(slot) is None


def test_processes_share_the_board_through_a_private_file(environment):
    """What one opens by the environment the other one reads; nobody but this user may."""
    board = ack_board.create()
    attached = ack_board.attach()
    attached.write(5, ACK)
    assert board.read(5) == ACK
    mode = Path(environment[ack_board.ENV]).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_the_board_outlives_its_name(environment):
    """Once every process has it open the name goes, so that a killed server leaves nothing behind."""
    board = ack_board.create()
    attached, name = ack_board.attach(), environment[ack_board.ENV]
    ack_board.unname()
    assert not Path(name).exists()
    attached.write(0, ACK)
    assert board.read(0) == ACK
    assert ack_board.attach() is None


def test_depths_are_compared_by_mask():
    """Bit d stands for depth d."""
    assert depths_mask([0, 1, 3]) == 0b1011
    assert depths_mask([70, 80]) == 1 << 63


def test_gears_are_compared_by_mask():
    """Bit 1 stands for warm, bit 2 for cold, as in the list of gears."""
    assert gears_mask(["warm", "cold"]) == 0b0110
