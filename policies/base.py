"""What a policy is: one method, one record in, one record out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from policies.types import Decision, Forecast, Observation


class Policy(Protocol):
    """Turns an observation into a proposal.

    May keep state built from observations only: replaying a recording must reproduce every decision.
    Must not raise on any observation and must only name arms in `observation.built`.
    """

    @property
    def name(self) -> str:
        """Lower-case word used in settings, metrics and logs."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """Propose what to do now."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A policy whose knowledge outlives the process."""

    def export_state(self) -> dict[str, Any]:
        """What was learned, JSON-ready, without the key of the deployment (the caller adds it)."""
        ...

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `export_state` gave; raises `ValueError` (field, rule, value) when it cannot."""
        ...


@runtime_checkable
class Forecaster(Protocol):
    """A policy that can say what it expects where it is not."""

    def forecast(self) -> tuple[Forecast, ...]:
        """Of every known arm at every batch size that it tells apart; empty before the first decision."""
        ...
