"""Why did it lose?  The decode seconds that an oracle would have saved, by cause.

With g(arm) the expected tokens per second of an arm on the batch of a step (`accounting.py`), best the
largest of them, and warm the largest without cold (of the arms that keep the draft model's cache in step), a
step of T seconds and so many tokens loses

    switch seconds + (T - tokens / warm) + (tokens / warm - tokens / best)

The second part is a first step after off without the draft model, whose drafts fit nothing (T times the
share of its tokens that this lost), and for the rest a wrong arm: in a probe, or before the schedule was
first changed after a shift of acceptance, or else. The third is what only going cold would save: the oracle
goes cold for single steps, and does not pay for the drafts that are lost when it comes back, as every
policy does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from policies.step_cost import KNOTS

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Losses:
    """Seconds lost against the oracle; they add up to `spent_s - oracle_s`."""

    switches_s: float = 0.0
    """Time that changes of arm took."""
    probes_s: float = 0.0
    """Probe steps that took longer than the best arm would have for the same tokens."""
    cold_s: float = 0.0
    """What an oracle saves by going cold at no harm."""
    stale_s: float = 0.0
    """Tokens that first steps after off without the draft model did not get, but for probes."""
    late_s: float = 0.0
    """Wrong arm from a shift of acceptance to the first change of schedule after it."""
    arms_s: float = 0.0
    """Wrong arm otherwise: not learned yet, believed better than it is, or a boundary in the wrong place."""
    arms_by_batch_s: dict[int, float] = field(default_factory=dict)
    """`late_s` and `arms_s` together, by the telemetry's batch buckets."""

    def add(
        self, batch: npt.NDArray[np.int64], lost: tuple[Floats, Floats, Floats], probing: Bools, *, late: bool
    ) -> None:
        """Take steps: seconds that each lost in all but by not going cold; by that; to drafts left over."""
        wrong, cold, stale = lost
        self.cold_s += float(cold.sum())
        self.probes_s += float(wrong[probing].sum())
        self.stale_s += float(stale[~probing].sum())
        wrong = np.where(probing, 0.0, wrong - stale)
        if late:
            self.late_s += float(wrong.sum())
        else:
            self.arms_s += float(wrong.sum())
        bucket = np.searchsorted(KNOTS, batch, side="right") - 1
        for k, lost_s in enumerate(np.bincount(bucket, weights=wrong, minlength=len(KNOTS)).tolist()):
            if lost_s:
                self.arms_by_batch_s[KNOTS[k]] = self.arms_by_batch_s.get(KNOTS[k], 0.0) + lost_s
