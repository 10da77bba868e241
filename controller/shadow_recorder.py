"""How far the shadow policy is from the one in force, turn by turn: as metrics and for the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from controller.loop import TickResult
from policies.shadow import Comparison, Difference
from policies.types import Forecast

_UNKNOWN = float("nan")


class ShadowRecorder:
    """A recorder; without a shadow policy it has nothing to do.

    `forecast` gives what is expected of every arm, by whichever of the two policies can say.
    """

    def __init__(self, registry: CollectorRegistry, forecast: Callable[[], tuple[Forecast, ...]]) -> None:
        self._comparison = Comparison()
        self._forecast = forecast
        self._difference: Difference | None = None
        self._differing = Gauge(
            "specgov_shadow_differing_ratio",
            "Share of recent decode steps at batch sizes where the shadow policy names another arm; "
            "NaN: no shadow, or nothing to compare yet",
            registry=registry,
        )
        self._gain = Gauge(
            "specgov_shadow_predicted_gain_ratio",
            "Tokens per second that the shadow's choices are expected to bring over those in force, minus 1; "
            "NaN: no shadow, or neither policy can say",
            registry=registry,
        )
        self.metrics = [self._differing, self._gain]
        self._show()

    def record(self, result: TickResult) -> None:
        """Compare what both decided in a turn."""
        if result.shadow is None:
            return
        cells = result.observation.cells
        self._difference = self._comparison.add(result.decision, result.shadow, cells, self._forecast())
        self._show()

    def to_json(self) -> dict[str, Any] | None:
        """`differing_share` and `predicted_gain`; `None`: nothing to compare yet."""
        return dataclasses.asdict(self._difference) if self._difference else None

    def _show(self) -> None:
        found = self._difference or Difference(_UNKNOWN, None)
        self._differing.set(found.differing_share)
        self._gain.set(_UNKNOWN if found.predicted_gain is None else found.predicted_gain)
