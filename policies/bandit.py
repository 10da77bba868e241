"""A second opinion: one bandit per batch-size bucket, with no model at all.

Thompson sampling (Thompson, Biometrika 25, 1933) on discounted Gaussian rewards.  The reward of a tick is
the logarithm of the measured tokens per second and request of an arm in a bucket, less the cost of the
switch that led to it; its mean and error are forgotten exponentially, so that the bandit follows drift.
Each time the bucket in use may change its arm, one value is drawn per arm from Normal(mean, error^2) and
the best is taken.  Arms never tried are tried first, deepest last.

It shares nothing between buckets or depths: it learns slower than `goodput` and pays for its exploring in
whole ticks.  That makes it independent, which is what a second opinion (`policy.shadow`) is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from policies import unbuilt
from policies.bounds import Bound, Count, NotNegative, Positive, check_bounds
from policies.soundness import sound_cells
from policies.step_cost import KNOTS, bucket_index, ordered, timing
from policies.types import Action, Arm, CellDelta, Decision, Gear, Observation, Reason, Row, Schedule


@dataclass(frozen=True, slots=True)
class BanditParams:
    """Parameters of `bandit`."""

    seed: Annotated[int, Bound(at_least=0)] = 1
    """Of its draws: the same observations give the same decisions."""
    memory_ticks: Positive = 60.0
    """Half-life of a reward, in ticks of its bucket."""
    noise: Positive = 0.1
    """Standard deviation of one tick's log reward."""
    switch_cost_steps: NotNegative = 0.5
    """Decode steps that a switch is charged."""
    hold_ticks: Count = 5
    """Ticks of a bucket between two draws."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)


@dataclass(slots=True)
class Reward:
    """Discounted mean log reward of one arm in one bucket; `weight` counts ticks."""

    weight: float = 0.0
    mean: float = 0.0

    def fade(self, memory_ticks: float) -> None:
        """One more tick of the bucket went by."""
        self.weight *= 2.0 ** (-1.0 / memory_ticks)

    def add(self, value: float) -> None:
        """A reward was seen."""
        self.weight += 1.0
        self.mean += (value - self.mean) / self.weight


class Bandit:
    """Governs with the arm that each bucket's bandit has drawn."""

    name = "bandit"

    def __init__(self, params: BanditParams | None = None) -> None:
        self._params = params or BanditParams()
        self._rng = np.random.default_rng(self._params.seed)
        self._rewards: dict[tuple[int, Arm], Reward] = {}
        self._chosen: dict[int, Arm] = {}
        self._held: dict[int, int] = {}

    def decide(self, observation: Observation) -> Decision:
        """Learn, draw for the bucket in use, and name an arm for every bucket."""
        arms = [a for a in ordered(observation.built) if a.gear is not Gear.FROZEN]
        if not arms:
            return unbuilt.hold("any depth", ())
        cells = sound_cells(observation.cells)
        for cell in cells:
            self._learn(cell)
        busiest = max(cells, key=lambda cell: cell.steps, default=None)
        k = bucket_index(busiest.batch_bucket) if busiest else None
        if k is not None:
            self._draw(k, arms)
        schedule = self._schedule(arms, observation)
        detail = f"arm {self._chosen.get(k) if k is not None else None} drawn; table {schedule}"
        return Decision(Action.GOVERN, Reason.BANDIT, detail, schedule, evidence=self._evidence(k))

    def _learn(self, cell: CellDelta) -> None:
        seen = timing(cell)
        if seen is None or cell.request_steps <= 0 or cell.tokens <= 0:
            return
        k = bucket_index(cell.batch_bucket)
        for (bucket, _), reward in self._rewards.items():
            if bucket == k:
                reward.fade(self._params.memory_ticks)
        charged_s = seen.mean_s * (
            1 + self._params.switch_cost_steps * (self._held.get(k, 0) == 0) / cell.steps
        )
        value = math.log(cell.tokens / cell.request_steps / charged_s)
        self._rewards.setdefault((k, cell.arm), Reward()).add(value)

    def _draw(self, k: int, arms: list[Arm]) -> None:
        """Draw anew for bucket `k` once its arm was held long enough, or is not built any more."""
        self._held[k] = self._held.get(k, -1) + 1
        if self._chosen.get(k) in arms and self._held[k] < self._params.hold_ticks:
            return
        untried = [arm for arm in arms if (k, arm) not in self._rewards]
        self._held[k] = 0
        self._chosen[k] = untried[0] if untried else max(arms, key=lambda arm: self._sample(k, arm))

    def _sample(self, k: int, arm: Arm) -> float:
        reward = self._rewards[k, arm]
        sd = self._params.noise / math.sqrt(max(1e-3, reward.weight))
        return float(self._rng.normal(reward.mean, sd))

    def _schedule(self, arms: list[Arm], observation: Observation) -> Schedule:
        """The drawn arms; a bucket without one takes that of the nearest smaller bucket."""
        arm = observation.in_use if observation.in_use in arms else arms[-1]
        assert arm is not None  # noqa: S101  (one of `arms`)
        rows = []
        for k, start in enumerate(KNOTS):
            drawn = self._chosen.get(k)
            arm = drawn if drawn in arms and drawn is not None else arm
            rows.append(Row(start, arm))
        return Schedule(tuple(rows)).merged()

    def _evidence(self, k: int | None) -> dict[str, object]:
        here = {str(arm): r for (bucket, arm), r in self._rewards.items() if bucket == k}
        return {
            "batch_bucket": KNOTS[k] if k is not None else None,
            "tok_s_per_request": {name: round(math.exp(r.mean), 3) for name, r in here.items()},
            "ticks": {name: round(r.weight, 2) for name, r in here.items()},
        }
