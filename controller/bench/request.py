"""What `specgov bench` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
