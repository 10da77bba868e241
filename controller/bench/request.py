"""What `specgov bench` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.bench.campaign import Timing
from controller.bench.client import Dialect


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of the command."""

    engine: str
    arms: tuple[str, ...]
    """Empty: every fixed arm that the server can run, or as-is where it cannot be steered."""
    beside: tuple[tuple[str, str], ...]
    """(name, URL) of servers measured as they are."""
    plain: tuple[str, ...]
    """Names of those that run without speculation."""
    concurrencies: tuple[int, ...]
    rounds: int
    timing: Timing
    prompts: str
    arrivals: Path | None
    rate_scale: float
    scenario: Path | None
    dialect: Dialect
    model: str | None
    stream_every: int
    seed: int
    output: Path
    overwrite: bool
    """Whether results of another run that `output` holds may be replaced."""
    config: Path | None
    api_key_file: Path | None
    admin_api_key_file: Path | None
    as_json: bool
    run_id: str
    """Tells the leases of this run from those of another; see `holder_of`."""

    def options(self) -> dict[str, Any]:
        """What was asked for and how, as JSON; what was of no account for the load at hand is `None`."""
        sweep = self.arrivals is None and self.scenario is None
        paths = {
            name: None if (path := getattr(self, name)) is None else str(path)
            for name in ("arrivals", "scenario", "config", "api_key_file", "admin_api_key_file")
        }
        return {
            "arms": list(self.arms),
            "concurrency": list(self.concurrencies) if sweep else None,
            "rounds": self.rounds,
            "window_s": self.timing.window_s if sweep else None,
            "settle_s": self.timing.settle_s if sweep else None,
            "warm_up_s": self.timing.warm_up_s if sweep else None,
            "prompts": self.prompts,
            "rate_scale": self.rate_scale if self.arrivals is not None else None,
            "dialect": self.dialect.value,
            "model": self.model,
            "stream_every": self.stream_every if self.arrivals is None else None,
            "seed": self.seed,
            "output": str(self.output),
            "overwrite": self.overwrite,
            **paths,
        }
