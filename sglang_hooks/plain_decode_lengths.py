"""Depth 0, host work: sequence lengths that need not be read back from the device.

After a speculative step only the device knows how many tokens each request got, so SGLang copies the
lengths to the host before every launch, and some attention backends (FlashInfer) cannot be planned
without them.  That copy waits for the step before to end: the device then idles while the host
prepares the next one.  At depth 0 a request gets exactly one token a step, so the host can count
along, as it does in a server without speculation.  A step that drafts makes its requests' lengths
unknown until SGLang reads them back.

Pure: standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = -1


class KnownLengths:
    """Committed tokens per slot of the request pool, as the next launch will find them.

    `slots` are indices into the request pool; the slots of one call are distinct.
    """

    __slots__ = ("_known", "_lengths")

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._known = 0

    def __bool__(self) -> bool:
        """Whether the length of any slot is known: not while drafting goes on, and nobody need look then."""
        return self._known > 0

    def set(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """A launch was made after which `slots` have exactly `lengths` tokens (a prefill)."""
        self._reserve(slots)
        for slot, length in zip(slots, lengths, strict=True):
            self._known += self._lengths[slot] == UNKNOWN
            self._lengths[slot] = length

    def advance(self, slots: Sequence[int]) -> None:
        """A launch was made that adds one token to each of `slots`; unknown ones stay unknown."""
        self._reserve(slots)
        lengths = self._lengths
        for slot in slots:
            if lengths[slot] != UNKNOWN:
                lengths[slot] += 1

    def forget(self, slots: Sequence[int]) -> None:
        """A launch was made that adds an unknown number of tokens to `slots`."""
        self._reserve(slots)
        for slot in slots:
            self._known -= self._lengths[slot] != UNKNOWN
            self._lengths[slot] = UNKNOWN

    def get(self, slots: Sequence[int]) -> list[int] | None:
        """The lengths of `slots` in their order; None when one of them is not known."""
        self._reserve(slots)
        lengths = [self._lengths[slot] for slot in slots]
        return None if UNKNOWN in lengths else lengths

    def _reserve(self, slots: Sequence[int]) -> None:
        missing = max(slots, default=-1) + 1 - len(self._lengths)
        if missing > 0:
            self._lengths.extend([UNKNOWN] * missing)
