"""Cost profiles: what one decode step costs, by batch size, for each way to run it.

A profile is a JSON file (`schema` 1):

    {"schema": 1, "name": "...",
     "step_ms": {"plain": {"1": 4.8, "32": 5.5}, "depth_0": {...}, "depth_2": {...}},
     "context": {"per_request_tokens": 350, "ms_per_million_tokens": {"plain": 27.0}},
     "prefill": {"fixed_ms": 3.0, "ms_per_1k_tokens": 25.0, "draft_ms_per_request": 0.5}}

`step_ms` maps a row to batch size to the milliseconds of one decode step.  Rows: `plain` (a server
without speculation), `off_warm` (the plugin's off and warm), `depth_0` (SGLang's own off),
`depth_0_skip_draft_extend`, `depth_0_plain_decode`, and `depth_K` for K >= 1.  `context` and `prefill`
are optional.  Other keys describe the measurement and are kept as they are.

Between two measured batch sizes the step time is interpolated by PCHIP in log(batch size) and log(ms):
smooth, positive, through every measured point, and monotone where the measurement is.  Outside of what a
row measured it keeps its last measured ratio to the row of the widest range; beyond the range of all
rows it grows with the straight line through the last two points (one point: in proportion).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from controller.simulation.pchip import interpolate

Floats: TypeAlias = npt.NDArray[np.float64]

PLAIN = "plain"
WARM = "off_warm"
OWN_OFF = "depth_0"
SKIP_DRAFT_EXTEND = "depth_0_skip_draft_extend"
PLAIN_DECODE = "depth_0_plain_decode"
OFF_ROWS = (PLAIN, WARM, OWN_OFF, SKIP_DRAFT_EXTEND, PLAIN_DECODE)
DRAFT_PREFILL_MS = 0.5
"""The draft model's prefill of one request, unless a profile states it: 0.2 to 0.9 ms where requests come one
by one, 0.3 to 0.5 ms in whole batches, on an H200 with a fast host (docs/results/h200-off.md)."""
_DEPTH_ROW = re.compile(r"depth_([1-9][0-9]?)$")


class InvalidProfileError(ValueError):
    """A cost profile that cannot be used; names the field, the rule and the value."""

    def __init__(self, where: str, rule: str, value: object) -> None:
        super().__init__(f"{where} {rule}, got {value!r:.80}")
        self.field = where


@dataclass(frozen=True, slots=True)
class CostRow:
    """Measured step times of one way to run a decode step."""

    batch_sizes: tuple[int, ...]
    """Strictly ascending."""
    step_ms: tuple[float, ...]

    def within(self, batch_size: Floats) -> Floats:
        """Step time in ms at batch sizes within the measured range (clipped to it)."""
        if len(self.batch_sizes) == 1:
            return np.full(len(batch_size), self.step_ms[0])
        knots = np.log(np.array(self.batch_sizes, dtype=np.float64))
        at = np.log(np.clip(batch_size, self.batch_sizes[0], self.batch_sizes[-1]))
        return np.exp(interpolate(knots, np.log(np.array(self.step_ms)), at))

    def beyond(self, batch_size: Floats) -> Floats:
        """Step time in ms, extended past the measured range by this row's own last slope."""
        last_batch, last_ms = self.batch_sizes[-1], self.step_ms[-1]
        slope = last_ms / last_batch
        if len(self.batch_sizes) > 1:
            rise = last_ms - self.step_ms[-2]
            slope = max(0.0, rise / (last_batch - self.batch_sizes[-2]))
        return self.within(batch_size) + slope * np.maximum(0.0, batch_size - last_batch)


@dataclass(frozen=True, slots=True)
class ContextCost:
    """How a step's time grows with the tokens that its batch holds in the KV cache."""

    per_request_tokens: float = 0.0
    """Mean context per request while `step_ms` was measured; only the excess over it is added."""
    ms_per_million_tokens: Mapping[str, float] = field(default_factory=dict)
    """By row; a row that is not there has no context term."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Milliseconds of one prefill batch: `fixed_ms + tokens / 1000 * ms_per_1k_tokens`.

    On top, unless the gear is frozen, `draft_ms_per_request` for each request whose prompt it completes.
    """

    fixed_ms: float = 3.0
    ms_per_1k_tokens: float = 25.0
    draft_ms_per_request: float = DRAFT_PREFILL_MS
    stated: bool = False
    """False: the profile says nothing of prefill.  The defaults are fitted so that the simulated closed loop
    of `h200_llama8b_triton` without speculation meets the measured one (docs/simulator.md)."""


@dataclass(frozen=True, slots=True)
class CostProfile:
    """A validated profile; see the module's docstring."""

    name: str
    rows: Mapping[str, CostRow]
    context: ContextCost = field(default_factory=ContextCost)
    prefill: PrefillCost = field(default_factory=PrefillCost)
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the file says about its measurement: gpu, model, attention_backend, notes, ..."""

    @property
    def depths(self) -> tuple[int, ...]:
        """The draft depths above 0 that have a row, ascending."""
        matches = (_DEPTH_ROW.fullmatch(name) for name in self.rows)
        return tuple(sorted(int(m.group(1)) for m in matches if m))

    def step_seconds(self, row: str, max_batch_size: int) -> Floats:
        """Seconds of one step at batch size 0..`max_batch_size` (index 0 repeats 1), without context.

        Raises `KeyError` for a row that the profile does not have.
        """
        sizes = np.maximum(1.0, np.arange(max_batch_size + 1, dtype=np.float64))
        own, widest = self.rows[row], self._widest()
        if own is widest:
            return own.beyond(sizes) / 1000.0
        first, last = own.batch_sizes[0], own.batch_sizes[-1]
        nearest = np.clip(sizes, first, last)
        ratio = own.within(nearest) / widest.beyond(nearest)
        outside = widest.beyond(sizes) * ratio
        inside = (sizes >= first) & (sizes <= last)
        return np.where(inside, own.within(sizes), outside) / 1000.0

    def context_seconds_per_token(self, row: str) -> float:
        """Seconds that one token of context above the measured mean adds to a step."""
        return self.context.ms_per_million_tokens.get(row, 0.0) * 1e-9

    def _widest(self) -> CostRow:
        """The row that covers the largest range of batch sizes, with the most points."""
        return max(
            self.rows.values(),
            key=lambda row: (row.batch_sizes[-1] / row.batch_sizes[0], len(row.batch_sizes)),
        )


def load_profile(source: str | Path) -> CostProfile:
    """Read a profile from a file, or by the name of one that is shipped (see `shipped_profiles`).

    Raises `InvalidProfileError`; `FileNotFoundError` when there is neither.
    """
    path = Path(source)
    if path.exists():
        text = path.read_text(encoding="utf-8")
    elif str(source) in shipped_profiles():
        text = (_shipped() / f"{source}.json").read_text(encoding="utf-8")
    else:
        known = ", ".join(shipped_profiles())
        raise FileNotFoundError(f"no profile file {str(source)!r}; shipped profiles: {known}")
    try:
        return parse_profile(json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidProfileError(str(source), "must be JSON", str(error)) from error


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    files = (entry.name for entry in _shipped().iterdir())
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


def _shipped() -> Any:
    return resources.files("controller.simulation") / "profiles"


def parse_profile(data: object) -> CostProfile:
    """A profile from its JSON form; raises `InvalidProfileError` naming the field."""
    if not isinstance(data, Mapping):
        raise InvalidProfileError("profile", "must be an object", data)
    if data.get("schema") != 1:
        raise InvalidProfileError("schema", "must be 1", data.get("schema"))
    steps = data.get("step_ms")
    if not isinstance(steps, Mapping) or not steps:
        raise InvalidProfileError("step_ms", "must be an object with at least one row", steps)
    if set(steps) == {PLAIN}:
        raise InvalidProfileError(
            "step_ms", f"must have a row beside {PLAIN!r}, which cannot speculate", [PLAIN]
        )
    rows = {str(name): _row(str(name), row) for name, row in steps.items()}
    known = {"schema", "name", "step_ms", "context", "prefill"}
    return CostProfile(
        name=str(data.get("name", "unnamed")),
        rows=rows,
        context=_context(data.get("context"), rows),
        prefill=_prefill(data.get("prefill")),
        about={key: value for key, value in data.items() if key not in known},
    )


def _row(name: str, data: object) -> CostRow:
    where = f"step_ms.{name}"
    if name not in OFF_ROWS and not _DEPTH_ROW.fullmatch(name):
        raise InvalidProfileError(where, f"must be one of {', '.join(OFF_ROWS)} or depth_K (1..99)", name)
    if not isinstance(data, Mapping) or not data:
        raise InvalidProfileError(where, "must map at least one batch size to milliseconds", data)
    points = {}
    for size, ms in data.items():
        if not re.fullmatch(r"[1-9][0-9]{0,5}", str(size)):
            raise InvalidProfileError(f"{where}.{size}", "must be named by a batch size 1..999999", size)
        points[int(size)] = _number(f"{where}.{size}", ms, above=0.0)
    sizes = tuple(sorted(points))
    return CostRow(sizes, tuple(points[size] for size in sizes))


def _context(data: object, rows: Mapping[str, CostRow]) -> ContextCost:
    if data is None:
        return ContextCost()
    if not isinstance(data, Mapping):
        raise InvalidProfileError("context", "must be an object", data)
    mean = _number("context.per_request_tokens", data.get("per_request_tokens", 0))
    slopes = data.get("ms_per_million_tokens", {})
    where = "context.ms_per_million_tokens"
    if not isinstance(slopes, Mapping):
        slopes = dict.fromkeys(rows, _number(where, slopes))
    for name in slopes:
        if name not in rows:
            raise InvalidProfileError(f"{where}.{name}", "must name a row of step_ms", name)
    return ContextCost(mean, {str(n): _number(f"{where}.{n}", v) for n, v in slopes.items()})


def _prefill(data: object) -> PrefillCost:
    if data is None:
        return PrefillCost()
    if not isinstance(data, Mapping):
        raise InvalidProfileError("prefill", "must be an object", data)
    fixed = _number("prefill.fixed_ms", data.get("fixed_ms"))
    per_1k = _number("prefill.ms_per_1k_tokens", data.get("ms_per_1k_tokens"))
    draft = data.get("draft_ms_per_request", DRAFT_PREFILL_MS)
    return PrefillCost(fixed, per_1k, _number("prefill.draft_ms_per_request", draft), stated=True)


def _number(where: str, value: object, above: float | None = None) -> float:
    """`value` as a float: finite, >= 0 (and above `above` when given)."""
    bound = "must be a finite number >= 0" if above is None else f"must be a finite number > {above:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidProfileError(where, bound, value)
    if value < 0 or (above is not None and value <= above):
        raise InvalidProfileError(where, bound, value)
    return float(value)
