"""Step controls that need no sidecar: one arm for ever, and SGLang's own adaptive rule."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.simulation.arms import OFF_COLD, OFF_WARM, Arm


class FixedControl:
    """The same arm at every step."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def arm_for(self, batch_size: int) -> Arm:  # noqa: ARG002
        """The arm."""
        return self.arm

    def on_result(
        self,
        now_s: float,
        arm: Arm,
        batch_size: int,
        accepted: list[int],
        accepted_after_cold: list[int],
        context_tokens: int,
    ) -> None:
        """Nothing is learned."""

    def on_prefill(self, now_s: float) -> None:
        """Nothing is learned."""

    def on_idle(self, now_s: float) -> None:
        """Nothing is learned."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What SGLang's rule may use from a batch size up, and how reluctantly it moves."""

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
    """One slot of SGLang's rule: moves along its candidates by the moving average of accepted drafts.

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
        due = self._batches > self.WARM_UP and (self._batches - self.WARM_UP) % self.EVERY == 0
        if due:
            self._move()

    def _move(self) -> None:
        depths, top = self.slot.candidates, len(self.slot.candidates) - 1
        if self.depth == 0:
            self._at = min(self._at + 1, top)
            if self.depth > 0 and self._average < 0:
                self._average = float(self.depth - 1)
            return
        start = self._at
        while self._at > 0:
            below = depths[self._at - 1]
            limit = (0.5 if below == 0 else below - 0.5) + self.slot.down_margin
            if self._average > limit:
                break
            self._at -= 1
        if self._at < start:
            return
        while self._at < top and self._average > self.depth - 0.5 + self.slot.up_margin:
            self._at += 1


class NativeControl(FixedControl):
    """SGLang's own adaptive rule, from its documented behaviour, on the depths that are built."""

    def __init__(self, arms: Sequence[Arm], slots: Mapping[int, Slot] | None = None) -> None:
        """`slots` defaults to SGLang's, each candidate replaced by the nearest built depth."""
        super().__init__(arms[0])
        built = sorted({depth for depth, _ in arms})
        self._off = OFF_WARM if OFF_WARM in arms else OFF_COLD
        table = slots or DEFAULT_SLOTS
        self._starts = sorted(table)
        fitted = [_fit(table[start], built) for start in self._starts]
        self._rules = [SlotRule(slot, built[-1]) for slot in fitted]

    def arm_for(self, batch_size: int) -> Arm:
        """The depth of the slot for this batch size; off is SGLang's own (warm) off."""
        depth = self._rule(batch_size).depth
        return (depth, "on") if depth else self._off

    def on_result(
        self,
        now_s: float,  # noqa: ARG002
        arm: Arm,  # noqa: ARG002
        batch_size: int,
        accepted: list[int],
        accepted_after_cold: list[int],
        context_tokens: int,  # noqa: ARG002
    ) -> None:
        """Feed the slot of this batch size."""
        drafts = sum(i * n for i, n in enumerate(accepted)) + sum(
            i * n for i, n in enumerate(accepted_after_cold)
        )
        self._rule(batch_size).observe(drafts / batch_size)

    def _rule(self, batch_size: int) -> SlotRule:
        return self._rules[max(0, bisect.bisect_right(self._starts, batch_size) - 1)]


def _fit(slot: Slot, built: list[int]) -> Slot:
    nearest = {min(built, key=lambda depth: (abs(depth - want), depth)) for want in slot.candidates}
    return Slot(tuple(sorted(nearest)), slot.up_margin, slot.down_margin)
