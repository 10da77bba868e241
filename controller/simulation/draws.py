"""Random draws of the simulated engine, made in blocks so that a step costs one slice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from controller.simulation.acceptance import Acceptance, survival

_BLOCK = 1 << 15


class StepNoise:
    """Factors on step times: log-normal with mean 1."""

    def __init__(self, rng: np.random.Generator, sigma: float) -> None:
        self._rng = rng
        self._sigma = sigma
        self._factors: list[float] = []

    def next(self) -> float:
        """The next factor; always 1 when `sigma` is 0."""
        if not self._sigma:
            return 1.0
        if not self._factors:
            sigma = self._sigma
            self._factors = np.exp(self._rng.normal(-0.5 * sigma * sigma, sigma, 4096)).tolist()
        return self._factors.pop()


class AcceptedDrafts:
    """Accepted drafts per request and step, by inverse transform of the survival curve in force."""

    def __init__(
        self, rng: np.random.Generator, acceptance: Acceptance, max_depth: int, after_cold_factor: float
    ) -> None:
        self._rng = rng
        self._acceptance = acceptance
        self._max_depth = max_depth
        self._factor = after_cold_factor
        self._fresh = np.zeros(0, dtype=np.int64)
        self._cold = np.zeros(0, dtype=np.int64)
        self._fresh_at = self._cold_at = 0
        self._valid_until_s = -1.0
        self._positions: tuple[float, ...] = ()

    def take(self, now_s: float, depth: int, count: int) -> npt.NDArray[np.int64]:
        """Drafts accepted by `count` requests at `depth`, with the acceptance in force at `now_s`."""
        if now_s >= self._valid_until_s:
            self._valid_until_s = self._acceptance.next_change_s(now_s)
            self._positions = self._acceptance.at(now_s).positions
            self._fresh_at, self._cold_at = len(self._fresh), len(self._cold)
        if self._fresh_at + count > len(self._fresh):
            self._fresh, self._fresh_at = self._block(1.0), 0
        at = self._fresh_at
        self._fresh_at = at + count
        return np.minimum(self._fresh[at : at + count], depth)

    def take_after_cold(self, depth: int, count: int) -> npt.NDArray[np.int64]:
        """The same for requests that lived through a cold spell; call `take` first, it keeps the time."""
        if self._cold_at + count > len(self._cold):
            self._cold, self._cold_at = self._block(self._factor), 0
        at = self._cold_at
        self._cold_at = at + count
        return np.minimum(self._cold[at : at + count], depth)

    def _block(self, factor: float) -> npt.NDArray[np.int64]:
        """Accepted drafts at the deepest depth: the number of positions j with u < S(j)."""
        survived = survival(self._positions, self._max_depth, factor)
        below = np.searchsorted(survived[::-1], self._rng.random(_BLOCK), side="right")
        return np.asarray(self._max_depth - below, dtype=np.int64)
