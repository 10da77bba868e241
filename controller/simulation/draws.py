"""Random draws of the simulated engine, made in blocks so that a step costs one slice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from controller.simulation.acceptance import Acceptance, AfterOff, Harm, survival

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
        self, rng: np.random.Generator, acceptance: Acceptance, max_depth: int, after_off: AfterOff
    ) -> None:
        self._rng = rng
        self._acceptance = acceptance
        self._max_depth = max_depth
        self._factors = after_off.factors()
        self._drawn = [np.zeros(0, dtype=np.int64) for _ in Harm]
        self._at = [0 for _ in Harm]
        self._valid_until_s = -1.0
        self._positions: tuple[float, ...] = ()

    def take(self, now_s: float, depth: int, count: int, harm: Harm = Harm.NONE) -> npt.NDArray[np.int64]:
        """Drafts accepted by `count` requests of this `harm` at `depth`, with the acceptance at `now_s`."""
        if now_s >= self._valid_until_s:
            self._valid_until_s = self._acceptance.next_change_s(now_s)
            self._positions = self._acceptance.at(now_s).positions
            self._at = [len(drawn) for drawn in self._drawn]
        if self._at[harm] + count > len(self._drawn[harm]):
            self._drawn[harm], self._at[harm] = self._block(self._factors[harm]), 0
        at = self._at[harm]
        self._at[harm] = at + count
        return np.minimum(self._drawn[harm][at : at + count], depth)

    def _block(self, factor: float) -> npt.NDArray[np.int64]:
        """Accepted drafts at the deepest depth: the number of positions j with u < S(j)."""
        survived = survival(self._positions, self._max_depth, factor)
        below = np.searchsorted(survived[::-1], self._rng.random(_BLOCK), side="right")
        return np.asarray(self._max_depth - below, dtype=np.int64)
