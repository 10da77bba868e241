"""SGLang's own adaptive rule, re-implemented from its documented behaviour, to compare with.

It offers what the hook expects of SGLang's policy (`sglang_hooks.governed_policy.StepPolicy`), so that in
the simulated engine, as in the real one, it rules while no plan is in force.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """What the rule may use from a batch size up, and how reluctantly it moves."""

    candidates: tuple[int, ...]
    up_margin: float = 0.0
    down_margin: float = 0.0


DEFAULT_SLOTS: Mapping[int, Slot] = {
    1: Slot((1, 3, 7), down_margin=-0.25),
    8: Slot((0, 1, 3)),
    32: Slot((0, 1)),
    64: Slot((0,)),
}
"""The default table of SGLang 0.5.17's `--speculative-adaptive`, by smallest batch size."""


class SlotRule:
    """One slot: moves along its candidates by the moving average of accepted drafts.

    average <- 0.8 * average + 0.2 * mean accepted drafts of the batch, while drafting.  Every 5 batches after
    the first 10: step down while average <= candidate below - 0.5 (0.5 for candidate 0) + down margin;
    else up while average > current - 0.5 + up margin.  From 0 it always tries the next candidate.
    Time never enters: that is what it is here to be compared for.
    """

    WEIGHT, WARM_UP, EVERY = 0.2, 10, 5

    def __init__(self, slot: Slot, initial_depth: int) -> None:
        self.slot = slot
        depths = slot.candidates
        self._at = depths.index(initial_depth) if initial_depth in depths else len(depths) // 2
        self._average = float(self.depth - 1)
        self._batches = 0

    @property
    def depth(self) -> int:
        """The depth in use."""
        return self.slot.candidates[self._at]

    def observe(self, mean_accepted: float) -> None:
        """Hear of one batch that ran at this slot."""
        if self.depth > 0:
            self._average += self.WEIGHT * (mean_accepted - self._average)
        self._batches += 1
        if self._batches > self.WARM_UP and (self._batches - self.WARM_UP) % self.EVERY == 0:
            self._move()

    def _move(self) -> None:
        if self.depth == 0:
            self._leave_off()
        elif not self._descend():
            self._climb()

    def _leave_off(self) -> None:
        self._at = min(self._at + 1, len(self.slot.candidates) - 1)
        if self.depth > 0 and self._average < 0:
            self._average = float(self.depth - 1)

    def _descend(self) -> bool:
        start = self._at
        while self._at > 0:
            below = self.slot.candidates[self._at - 1]
            limit = (0.5 if below == 0 else below - 0.5) + self.slot.down_margin
            if self._average > limit:
                break
            self._at -= 1
        return self._at < start

    def _climb(self) -> None:
        top = len(self.slot.candidates) - 1
        while self._at < top and self._average > self.depth - 0.5 + self.slot.up_margin:
            self._at += 1


class NativeRule:
    """The slots by batch size, on the depths that are built."""

    def __init__(self, built_depths: Collection[int], slots: Mapping[int, Slot] = DEFAULT_SLOTS) -> None:
        """Candidates of `slots` that are not built are replaced by the nearest built depth.

        `slots` should begin at batch size 1; the first one rules below its start.
        """
        self.candidate_steps = sorted(built_depths)
        self._starts = sorted(slots)
        fitted = [_fit(slots[start], self.candidate_steps) for start in self._starts]
        self._rules = [SlotRule(slot, self.candidate_steps[-1]) for slot in fitted]

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """There are no graphs here."""

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:  # noqa: ARG002 SGLang's signature
        """There are no graphs here."""
        return None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """The depth of the slot for this batch size."""
        return self._rule(batch_size).depth

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> int | None:
        """Feed the slot of this batch size; the new depth is asked for, not told."""
        if num_correct_drafts_per_req:
            self._rule(batch_size).observe(sum(num_correct_drafts_per_req) / len(num_correct_drafts_per_req))
        return None

    def _rule(self, batch_size: int) -> SlotRule:
        return self._rules[max(0, bisect.bisect_right(self._starts, batch_size) - 1)]


def _fit(slot: Slot, built: list[int]) -> Slot:
    nearest = {min(built, key=lambda depth: (abs(depth - want), depth)) for want in slot.candidates}
    return Slot(tuple(sorted(nearest)), slot.up_margin, slot.down_margin)
