"""The records that pass between the loop and a policy: one in, one out.

Frozen, slotted, built from plain values, so that a recording of observations replays every decision.
`None` always means "not known"; it is never a zero.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Gear(StrEnum):
    """What the draft model does in a step.

    `ON` goes with depth > 0, the rest are gears of off (depth 0): `WARM` keeps the draft KV cache
    in step, `COLD` skips that, `FROZEN` also skips the draft prefill of new requests.
    """

    ON = "on"
    WARM = "warm"
    COLD = "cold"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """One way to run a decode step: a draft depth and the gear that goes with it."""

    depth: int
    gear: Gear = Gear.ON

    def __post_init__(self) -> None:
        """Raise `ValueError` unless the gear is `ON` exactly when depth > 0."""
        if self.depth < 0:
            msg = f"depth must be >= 0, got {self.depth!r}"
            raise ValueError(msg)
        if (self.depth > 0) != (self.gear is Gear.ON):
            msg = f"gear must be on exactly when depth > 0, got depth {self.depth} gear {self.gear!r}"
            raise ValueError(msg)

    def __hash__(self) -> int:
        """Arms are keys of what is learned, asked for thousands of times a tick: enums hash slowly."""
        return self.depth or hash(self.gear.value)

    def __str__(self) -> str:
        return str(self.depth) if self.depth else f"0 {self.gear}"


OFF_WARM = Arm(0, Gear.WARM)
OFF_COLD = Arm(0, Gear.COLD)


@dataclass(frozen=True, slots=True)
class Row:
    """From `min_batch_size` requests up, run `arm`."""

    min_batch_size: int
    arm: Arm


@dataclass(frozen=True, slots=True)
class Schedule:
    """A table from batch size (requests decoded together on one DP rank) to arm."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        """Raise `ValueError` unless rows start at batch size 1 and ascend strictly."""
        starts = [row.min_batch_size for row in self.rows]
        if not starts or starts[0] != 1 or any(b <= a for a, b in itertools.pairwise(starts)):
            msg = f"rows must start at min_batch_size 1 and ascend strictly, got {starts!r}"
            raise ValueError(msg)

    @classmethod
    def constant(cls, arm: Arm) -> Schedule:
        """The same arm at every batch size."""
        return cls((Row(1, arm),))

    def arm_for(self, batch_size: int) -> Arm:
        """The arm at `batch_size` (sizes below 1 get the first row)."""
        i = bisect.bisect_right([row.min_batch_size for row in self.rows], batch_size) - 1
        return self.rows[max(0, i)].arm

    def merged(self) -> Schedule:
        """The same table without rows that repeat the arm before them."""
        rows = [r for i, r in enumerate(self.rows) if i == 0 or r.arm != self.rows[i - 1].arm]
        return Schedule(tuple(rows))

    def __str__(self) -> str:
        return ", ".join(f"{row.min_batch_size}+: {row.arm}" for row in self.rows)


@dataclass(frozen=True, slots=True)
class Probe:
    """Every `every_steps` decode steps inside the batch-size range, `burst_steps` steps of `arm`.

    Counted in decode steps inside the engine.  At most `bursts` bursts under one plan.
    """

    arm: Arm
    every_steps: int
    burst_steps: int
    min_batch_size: int
    max_batch_size: int
    bursts: int


@dataclass(frozen=True, slots=True)
class CellDelta:
    """What one (batch bucket, arm) did since the last observation; differences of counters.

    Summed over DP ranks.  A decode step decodes a batch of one DP rank.
    """

    batch_bucket: int
    """Smallest batch size of the bucket."""
    arm: Arm
    steps: int
    """Decode steps whose result arrived."""
    request_steps: int
    """Sum of their batch sizes (unfinished requests)."""
    tokens: int
    """Tokens emitted, bonus tokens included."""
    accepted: tuple[int, ...]
    """accepted[i]: request-steps with exactly i accepted drafts, i = 0..depth; the last is censored
    ("at least").  Only requests whose draft KV cache is in step."""
    accepted_after_cold: tuple[int, ...]
    """The same for requests that lived through a cold or frozen step."""
    timed_steps: int
    """Steps whose interval since the result before was clean: no prefill, switch or idle between."""
    timed_seconds: float
    timed_seconds_sq: float
    """Sums of the clean intervals and of their squares, in s and s^2."""
    timed_request_steps: int
    """Sum of the batch sizes over the timed steps."""
    timed_context_tokens: int
    """Sum over the timed steps of the batch's total context tokens."""
    after_prefill_steps: int = 0
    after_prefill_seconds: float = 0.0
    """Steps right after a prefill and their time since its result, in s: rougher than the clean ones, and
    all there is where a prefill comes between nearly all steps."""
    skipped_prefill: int = 0
    skipped_prefill_seconds: float = 0.0
    """Steps whose interval held prefills, or the launch of one, and their whole time in s: the step, and what
    prefills add; 0 also where the hook does not say."""
    prefill_spells: int = 0
    prefilled_requests: int = 0
    prefilled_tokens: int = 0
    """Those of them that held prefills, however many batches; the requests in these (one that is prefilled
    in chunks counts for each), and the tokens computed."""


class Mode(StrEnum):
    """What an operator wants; `AUTO` leaves the choice to the policy."""

    AUTO = "auto"
    OFF = "off"
    """Depth 0 at every batch size."""
    ON = "on"
    """One depth at every batch size."""
    NATIVE = "native"
    """SGLang's own policy."""
    NO_DEEPER = "no_deeper"
    """The policy, but it may not draft deeper anywhere than what is in force when the order is given."""
    NO_SHALLOWER = "no_shallower"
    """The policy, but it may not draft shallower anywhere than what is in force when the order is given."""

    @property
    def leaves_policy(self) -> bool:
        """Whether the policy still decides, if in one direction only."""
        return self in (Mode.AUTO, Mode.NO_DEEPER, Mode.NO_SHALLOWER)


@dataclass(frozen=True, slots=True)
class Directive:
    """An operator's order, in force for as long as the loop puts it into the observation."""

    mode: Mode
    depth: int | None = None
    """Draft depth for `Mode.ON`; `None`: the deepest built."""
    reason: str = ""
    actor: str = ""
    limit: Schedule | None = None
    """What was in force when `NO_DEEPER` or `NO_SHALLOWER` was given; `None`: SGLang's own choice was, and
    the table that comes into force first is the limit."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a policy may look at, at one tick."""

    now_s: float
    """Monotonic seconds of the loop; only differences mean anything."""
    built: tuple[Arm, ...]
    """Arms that the engine can run now: built depths, and the gears of off that are in force there."""
    engine_epoch: int = 0
    """Counts restarts of the engine seen by the observer."""

    running_reqs: int | None = None
    """Running requests over all DP ranks."""
    queue_reqs: int | None = None
    """Waiting requests over all DP ranks."""
    batch_size: int | None = None
    """Largest running count of one DP rank: what the schedule is looked up by."""
    context_tokens: int | None = None
    """Tokens held in the KV pool by running requests, over all DP ranks."""
    token_usage: float | None = None
    """Share of the KV pool in use, 0..1, of the fullest DP rank."""
    max_running_reqs: int | None = None
    """Per DP rank."""
    load_age_s: float | None = None
    """Age of the running requests and the batch size."""
    queue_age_s: float | None = None
    """Age of the waiting requests, the context and the use of the KV pool."""

    cells: tuple[CellDelta, ...] = ()
    decode_steps: int | None = None
    """Decode steps since the last observation, over all DP ranks."""
    prefill_batches: int | None = None
    switches: int | None = None
    probe_steps: int | None = None
    telemetry_age_s: float | None = None
    """Age of the engine's telemetry."""

    in_force: Schedule | None = None
    """The schedule that the engine says it follows; `None`: native, or not known."""
    latest_arm: Arm | None = None
    """Of the latest decode step; before any, the one that the engine would begin with."""
    in_use: Arm | None = None
    """The arm of the latest decode step that telemetry shows."""
    directive: Directive | None = None
    """What an operator has ordered; `None`: nothing."""
    auto_orders: int = 0
    """Counts an operator's orders to let the policy govern again: one more ends a crash loop's pin."""
    pin_left_s: float | None = None
    """Seconds left of a crash loop's pin that an earlier run of the sidecar began; `None`: there is none."""
    resting: tuple[tuple[int, Arm], ...] = ()
    """Arms that failed, with the bucket of the telemetry (its smallest batch size) where they did: a guard
    lets none of them through there for now."""
    suspect: tuple[str, ...] = ()
    """Why this observation should not be acted on, e.g. `running_zero_with_queue`; empty: sound."""


class Action(StrEnum):
    """What the loop does with a decision."""

    GOVERN = "govern"
    """Put `schedule` (and `probe`) in force."""
    HOLD = "hold"
    """Keep and renew what is in force."""
    RELEASE = "release"
    """Hand back to SGLang's own policy."""


class Reason(StrEnum):
    """Why a decision is what it is; the same word in the log, the metric label and the API."""

    FIXED = "fixed"
    NATIVE = "native"
    THRESHOLD_UP = "threshold_up"
    THRESHOLD_DOWN = "threshold_down"
    THRESHOLD_STAY = "threshold_stay"
    GOODPUT_BETTER = "goodput_better"
    GOODPUT_STAY = "goodput_stay"
    GOODPUT_LEARNING = "goodput_learning"
    TPOT_OBJECTIVE = "tpot_objective"
    BANDIT = "bandit"
    EXTERNAL = "external"
    """A third party's policy."""
    OVERRIDE = "override"
    SUSPECT_INPUT = "suspect_input"
    STALE_INPUT = "stale_input"
    LOST_INPUT = "lost_input"
    DWELL = "dwell"
    SWITCH_BUDGET = "switch_budget"
    FREEZE = "freeze"
    ROLLED_BACK = "rolled_back"
    ARM_RESTING = "arm_resting"
    CRASH_LOOP = "crash_loop"
    NOT_BUILT = "not_built"
    NOT_CONTROLLED = "not_controlled"
    """Nothing is known to be built: the engine does not answer, or cannot be controlled."""
    POLICY_ERROR = "policy_error"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy proposes, with the reason and the numbers behind it."""

    action: Action
    reason: Reason
    detail: str
    """One sentence for a person."""
    schedule: Schedule | None = None
    """The table to follow; set exactly when action is `GOVERN`."""
    probe: Probe | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """JSON-ready numbers; keys carry their unit (`predicted_tok_s`)."""

    def __post_init__(self) -> None:
        """Raise `ValueError` unless a schedule is given exactly when governing."""
        if (self.action is Action.GOVERN) != (self.schedule is not None):
            msg = f"schedule must be given exactly when action is govern, got {self.action} {self.schedule!r}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a policy expects of an arm at a batch size."""

    arm: Arm
    batch_size: float
    tok_s: float
    """Tokens per second of the whole batch."""
    se_tok_s: float
    """Its standard error."""
