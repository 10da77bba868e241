"""The step policy that SGLang's adaptive controller asks before every decode step.

Pure: standard library only, no SGLang, no clock, no randomness.  What it answers depends on the batch
sizes asked for and the commands followed, in their order, and on nothing else, so every tensor-parallel
rank answers alike: ranks at different depths would run collectives of different shapes and hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from sglang_hooks.schedule import GEARS, Probe, Row, Schedule

_DIGEST_MODULUS = (1 << 31) - 1
_DIGEST_FACTOR = 48271  # a primitive root of the modulus (Park and Miller's "minimal standard")
_MAX_IN_FLIGHT = 16


class StepPolicy(Protocol):
    """SGLang's `AdaptiveSpecPolicy`: what `AdaptiveController.params` must offer."""

    @property
    def candidate_steps(self) -> list[int]:
        """Depths for which runtime states are built."""
        ...

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Take the batch sizes for which CUDA graphs are captured; `None`: no graphs."""
        ...

    def get_steps_for_batch(self, batch_size: int) -> int:
        """The depth of the decode step about to be launched."""
        ...

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Take the accepted drafts of a decode result; answers a depth to switch to, or `None`."""
        ...

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Batch sizes for which graphs of depth `step` are captured; `None`: no graphs."""
        ...


class Launch(NamedTuple):
    """How one decode step was launched."""

    depth: int
    gear: str
    governed: bool


class ProbePlan:
    """Counts decode steps and says which of them are probe steps.

    A cycle is `every_steps` steps inside the batch-size range; its last `burst_steps` run at the
    probe's depth.  A step outside the range is not counted and ends a burst.
    """

    __slots__ = ("_at", "_bursts", "_row", "probe")

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._row = Row(probe.min_batch_size, probe.depth, probe.gear)
        self._at = 0
        self._bursts = 0

    def row_for(self, batch_size: int) -> tuple[Row | None, bool]:
        """The probe's row if this step is a probe step, and whether a burst starts with it."""
        probe = self.probe
        first = probe.every_steps - probe.burst_steps
        if not probe.min_batch_size <= batch_size <= probe.max_batch_size:
            if self._at > first:
                self._at = 0
            return None, False
        at = self._at
        if at < first:
            self._at = at + 1
            return None, False
        if at == first:
            if self._bursts >= probe.bursts:
                return None, False
            self._bursts += 1
        self._at = (at + 1) % probe.every_steps
        return self._row, at == first


class GovernedStepPolicy:
    """Follows a schedule and its probes; delegates everything to `native` while there is none.

    `native` is SGLang's own policy.  `built_depths` are the depths with a runtime state, no other can
    ever come out of a schedule.  `depth`, `gear` and `batch_size` are those of the step decided last.
    `failed` is called, from an `except` block, when a schedule cannot be looked up; `native` rules then.
    """

    def __init__(
        self,
        native: StepPolicy,
        built_depths: Collection[int],
        initial_depth: int,
        failed: Callable[[str], None] = lambda _where: None,
    ) -> None:
        self.native = native
        self.built_depths = tuple(sorted(built_depths))
        self.depth = initial_depth
        self.gear = _native_gear(initial_depth)
        self.batch_size = 0
        self.decode_steps = 0
        self.switches = 0
        self.probe_steps = 0
        self.probe_bursts = 0
        self.digest = 0
        self._failed = failed
        self._schedule: Schedule | None = None
        self._probe: ProbePlan | None = None
        self._cuda_graph_bs: list[int] | None = None
        self._in_flight: deque[Launch] = deque(maxlen=_MAX_IN_FLIGHT)
        self._completing: Launch | None = None

    @property
    def governed(self) -> bool:
        """Whether a schedule is followed."""
        return self._schedule is not None

    def follow(self, schedule: Schedule | None, probe: Probe | None) -> None:
        """Follow `schedule` from the next step on; `None` hands back to `native`.

        The same probe again keeps its counters running.  Raises `ValueError` on a depth not built.
        """
        arms = [row.depth for row in schedule.rows] if schedule else []
        arms += [probe.depth] if probe else []
        missing = set(arms) - set(self.built_depths)
        if missing:
            msg = f"depth must be one of {self.built_depths}, got {sorted(missing)}"
            raise ValueError(msg)
        renewed = self._probe is not None and self._probe.probe == probe and self._schedule == schedule
        if not renewed:
            self._probe = ProbePlan(probe) if probe else None
        self._schedule = schedule

    # What SGLang's controller calls

    @property
    def candidate_steps(self) -> list[int]:
        """Depths for which runtime states are built."""
        return self.native.candidate_steps

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Remember the batch sizes that get graphs."""
        self._cuda_graph_bs = sorted(cuda_graph_bs) if cuda_graph_bs else None
        self.native.set_cuda_graph_bs(cuda_graph_bs)

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:  # noqa: ARG002  # SGLang's signature
        """Every batch size for every depth: a schedule may ask for any depth at any batch size."""
        return list(self._cuda_graph_bs) if self._cuda_graph_bs else None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """The depth of the decode step about to be launched with `batch_size` requests."""
        row = self._governed_row(batch_size)
        if row is None:
            depth = self.native.get_steps_for_batch(batch_size)
            gear = _native_gear(depth)
        else:
            depth, gear = row.depth, row.gear
        if depth != self.depth or gear != self.gear:
            self.switches += 1
            self.depth, self.gear = depth, gear
        self.batch_size = batch_size
        self.decode_steps += 1
        step = (batch_size << 10) + (depth << 2) + GEARS.index(gear) + 1
        self.digest = (self.digest * _DIGEST_FACTOR + step) % _DIGEST_MODULUS
        self._in_flight.append(Launch(depth, gear, row is not None))
        return depth

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Feed `native` with results of its own steps only, and only while it rules.

        Nothing is ever switched from here while governed: a result may arrive a step late.
        """
        launch, self._completing = self._completing, None
        if self._schedule is not None or (launch is not None and launch.governed):
            return None
        return self.native.on_verify_complete(num_correct_drafts_per_req, batch_size)

    # What the recorder's hook calls

    def result_of(self, depth: int) -> Launch:
        """How the step was launched whose result, of `depth`, is about to be processed.

        Results arrive in launch order, under overlap scheduling one step late.  Launches that do not
        match were lost (their batch died); with none left the gear is what SGLang itself would do.
        """
        while self._in_flight:
            launch = self._in_flight.popleft()
            if launch.depth == depth:
                break
        else:
            launch = Launch(depth, _native_gear(depth), self.governed)
        self._completing = launch
        return launch

    def gear_at(self, batch_size: int) -> str:
        """The gear that a step with `batch_size` requests would run in now, probes aside."""
        schedule = self._schedule
        return schedule.row_for(batch_size).gear if schedule else _native_gear(self.depth)

    def _governed_row(self, batch_size: int) -> Row | None:
        """What the probe or else the schedule says; `None`: `native` rules."""
        schedule = self._schedule
        if schedule is None:
            return None
        try:
            return self._probe_row(batch_size) or schedule.row_for(batch_size)
        except Exception:  # on every rank alike, since nothing here differs between ranks
            self._schedule = self._probe = None
            self._failed("looking up the schedule")
            return None

    def _probe_row(self, batch_size: int) -> Row | None:
        if self._probe is None:
            return None
        row, starts = self._probe.row_for(batch_size)
        if row is not None:
            self.probe_steps += 1
            self.probe_bursts += starts
        return row


def _native_gear(depth: int) -> str:
    return "on" if depth > 0 else "warm"
