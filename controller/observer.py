"""Successive samples of an engine, made into observations.  Pure: times are handed in.

Counters become differences here, DP ranks become sums, and every signal gets an age.  A rank that is
missing makes a sum unknown.  Counters that go back, or a scheduler that started anew, begin another epoch:
differences start over, what a policy has learned is its own affair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.control_state import Cell, ControlState, RankTelemetry
from controller.exposition import LoadSample, RankLoad, ServerInfo
from policies.types import Arm, CellDelta, Observation

MAX_RANKS = 1024
"""More DP ranks than this are not believed."""

_CellKey = tuple[int, Arm]


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What was read from the engine in one turn; `None`: not asked, or no sound answer."""

    at_s: float
    """Monotonic seconds of the loop when the answers were complete."""
    loads: LoadSample | None = None
    metrics: LoadSample | None = None
    control: ControlState | None = None
    info: ServerInfo | None = None


@dataclass(frozen=True, slots=True)
class _Figures:
    """The load as an observation carries it."""

    running: int | None = None
    queue: int | None = None
    batch_size: int | None = None
    context_tokens: int | None = None
    token_usage: float | None = None
    age_s: float | None = None
    queue_age_s: float | None = None


class Observer:
    """Keeps what differences and ages need from one sample to the next."""

    def __init__(self) -> None:
        self.epoch = 0
        """Restarts of the engine that were seen."""
        self._load: LoadSample | None = None
        self._load_at_s = 0.0
        self._moved_at_s = 0.0
        self._control: ControlState | None = None
        self._control_at_s = 0.0
        self._info: ServerInfo | None = None
        self._baseline: dict[int, RankTelemetry] = {}
        self._ranks: set[int] = set()

    def observe(self, sample: EngineSample, now_s: float) -> Observation:
        """The observation at `now_s`, a time not before that of `sample`."""
        self._info = sample.info or self._info
        fresh = sample.control.telemetry if sample.control else ()
        restarted = self._restarted(fresh)
        if restarted:
            self._begin_epoch()
        self._take_load(sample)
        if sample.control is not None:
            self._control, self._control_at_s = sample.control, sample.at_s
        live = self._decoding(sample.control)
        cells, totals = self._differences(fresh)
        figures = self._load_figures(now_s)
        if live is not None:
            figures = replace(figures, running=sum(live), batch_size=max(live), age_s=now_s - sample.at_s)
        control = self._control
        return Observation(
            now_s=now_s,
            built=control.built if control and control.controllable else (),
            engine_epoch=self.epoch,
            running_reqs=figures.running,
            queue_reqs=figures.queue,
            batch_size=figures.batch_size,
            context_tokens=figures.context_tokens,
            token_usage=figures.token_usage,
            max_running_reqs=self._max_running_reqs(),
            load_age_s=figures.age_s,
            queue_age_s=figures.queue_age_s,
            cells=cells,
            decode_steps=totals["decode_steps"],
            prefill_batches=totals["prefill_batches"],
            switches=totals["switches"],
            probe_steps=totals["probe_steps"],
            telemetry_age_s=now_s - self._control_at_s if control and control.telemetry else None,
            in_force=control.plan.schedule if control and control.plan and control.lease_live else None,
            in_use=in_use(control),
            latest_arm=latest_arm(control),
            suspect=("running_zero_with_queue",) if figures.running == 0 and figures.queue else (),
        )

    @property
    def expected_ranks(self) -> set[int]:
        """The DP ranks that the engine says it has, and those seen in this epoch."""
        size = self._info.dp_size if self._info else None
        return self._ranks | set(range(min(size or 1, MAX_RANKS)))

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._baseline.clear()
        self._ranks.clear()
        self._load = None

    def _restarted(self, fresh: Iterable[RankTelemetry]) -> bool:
        return any(_went_back(self._baseline[r.dp_rank], r) for r in fresh if r.dp_rank in self._baseline)

    def _take_load(self, sample: EngineSample) -> None:
        """`/v1/loads` first; `/metrics` only while that gives nothing."""
        load = sample.loads or sample.metrics
        if load is None:
            return
        before = self._load
        if before is None or before.source != load.source or _moved(before, load):
            self._moved_at_s = sample.at_s
        self._load, self._load_at_s = load, sample.at_s
        self._ranks |= {rank.dp_rank for rank in load.ranks[:MAX_RANKS]}

    def _decoding(self, control: ControlState | None) -> list[int] | None:
        """The latest batch size of each DP rank, when each has decoded since the sample before.

        Fresher than `/v1/loads`, which is refreshed every 15 decode steps; a rank that stands still may be
        idle, prefilling or hung, and only `/v1/loads` can tell.
        """
        ranks = {rank.dp_rank: rank for rank in control.telemetry} if control else {}
        sizes = []
        for dp_rank in self.expected_ranks:
            old, new = self._baseline.get(dp_rank), ranks.get(dp_rank)
            if (
                old is None
                or new is None
                or not _minus(new.decode_steps, old.decode_steps)
                or not new.batch_size
            ):
                return None
            sizes.append(new.batch_size)
        return sizes

    def _load_figures(self, now_s: float) -> _Figures:
        load = self._load
        if load is None:
            return _Figures()
        ranks = {rank.dp_rank: rank for rank in load.ranks}
        whole = [ranks.get(r, RankLoad(r)) for r in self.expected_ranks]
        running = _sum(rank.running_reqs for rank in whole)
        queue = _sum(rank.queue_reqs for rank in whole)
        age_s = self._load_age_s(load, now_s)
        return _Figures(
            running=running,
            queue=queue,
            batch_size=max(r.running_reqs or 0 for r in whole) if running is not None else None,
            context_tokens=_sum(rank.context_tokens for rank in whole),
            token_usage=max((r.token_usage for r in whole if r.token_usage is not None), default=None),
            age_s=age_s if running is not None else None,
            queue_age_s=age_s if queue is not None else None,
        )

    def _load_age_s(self, load: LoadSample, now_s: float) -> float | None:
        """Since the figures were taken, or, from `/metrics`, since they last moved while busy.

        Its gauges carry no time and stay as they were when decoding stalls; idle figures need not move.
        """
        since_read_s = now_s - self._load_at_s
        if load.source == "metrics":
            idle = not any(rank.running_reqs or rank.queue_reqs for rank in load.ranks)
            return since_read_s if idle else now_s - self._moved_at_s
        ages = [rank.age_s for rank in load.ranks]
        return None if None in ages else since_read_s + max((a or 0.0 for a in ages), default=0.0)

    def _max_running_reqs(self) -> int | None:
        stated = [r.max_running_reqs for r in self._load.ranks if r.max_running_reqs] if self._load else []
        return min(stated) if stated else (self._info.max_running_reqs if self._info else None)

    def _differences(
        self, fresh: tuple[RankTelemetry, ...]
    ) -> tuple[tuple[CellDelta, ...], dict[str, int | None]]:
        names = ("decode_steps", "prefill_batches", "switches", "probe_steps")
        pairs = [(self._baseline[r.dp_rank], r) for r in fresh if r.dp_rank in self._baseline]
        complete = {r.dp_rank for _, r in pairs} >= self.expected_ranks | self._ranks
        totals = {
            name: _sum(_minus(getattr(new, name), getattr(old, name)) for old, new in pairs)
            if complete
            else None
            for name in names
        }
        self._baseline.update({r.dp_rank: r for r in fresh[:MAX_RANKS]})
        self._ranks |= {r.dp_rank for r in fresh[:MAX_RANKS]}
        return _cell_deltas(pairs), totals


def in_use(control: ControlState | None) -> Arm | None:
    """The arm of the latest decode step, on the DP rank with the largest batch.

    A scheduler that has decoded nothing names the arm that it would begin with, which is not in use.
    """
    return _largest([r for r in control.telemetry if r.decode_steps != 0] if control else [])


def latest_arm(control: ControlState | None) -> Arm | None:
    """The same, or before any step the arm that the scheduler would begin with."""
    return _largest(control.telemetry if control else ())


def _largest(telemetry: Iterable[RankTelemetry]) -> Arm | None:
    ranks = [r for r in telemetry if r.arm is not None]
    return max(ranks, key=lambda r: (r.batch_size or 0, -r.dp_rank)).arm if ranks else None


def _moved(before: LoadSample, after: LoadSample) -> bool:
    return before.ranks != after.ranks or before.progress != after.progress


def _went_back(old: RankTelemetry, new: RankTelemetry) -> bool:
    started = {old.started_unix_s, new.started_unix_s} - {None}
    if len(started) > 1:
        return True
    if old.decode_steps is not None and new.decode_steps is not None and new.decode_steps < old.decode_steps:
        return True
    before = {(c.batch_bucket, c.arm): c.steps for c in old.cells}
    return any(c.steps < before.get((c.batch_bucket, c.arm), 0) for c in new.cells)


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum, unknown when a term is, or when there is none."""
    known = list(values)
    return None if not known or any(v is None for v in known) else sum(v or 0 for v in known)


def _minus(new: int | None, old: int | None) -> int | None:
    return None if new is None or old is None else max(0, new - old)


def _cell_deltas(pairs: list[tuple[RankTelemetry, RankTelemetry]]) -> tuple[CellDelta, ...]:
    """Differences per cell, summed over the DP ranks that were seen twice; idle cells are left out."""
    sums: defaultdict[_CellKey, list[CellDelta]] = defaultdict(list)
    for old, new in pairs:
        before = {(c.batch_bucket, c.arm): c for c in old.cells}
        for cell in new.cells:
            key = (cell.batch_bucket, cell.arm)
            sums[key].append(_delta(cell, before.get(key)))
    merged = (_merged(deltas) for _, deltas in sorted(sums.items()))
    return tuple(delta for delta in merged if delta.steps > 0)


def _delta(new: Cell, old: Cell | None) -> CellDelta:
    def less(name: str) -> int:
        return max(0, int(getattr(new, name)) - (int(getattr(old, name)) if old else 0))

    return CellDelta(
        batch_bucket=new.batch_bucket,
        arm=new.arm,
        steps=less("steps"),
        request_steps=less("request_steps"),
        tokens=less("tokens"),
        accepted=_histogram_delta(new.accepted, old.accepted if old else ()),
        accepted_after_cold=_histogram_delta(new.accepted_after_cold, old.accepted_after_cold if old else ()),
        timed_steps=less("timed_steps"),
        timed_seconds=max(0.0, new.timed_seconds - (old.timed_seconds if old else 0.0)),
        timed_seconds_sq=max(0.0, new.timed_seconds_sq - (old.timed_seconds_sq if old else 0.0)),
        timed_request_steps=less("timed_request_steps"),
        timed_context_tokens=less("timed_context_tokens"),
        after_prefill_steps=less("after_prefill_steps"),
        after_prefill_seconds=max(
            0.0, new.after_prefill_seconds - (old.after_prefill_seconds if old else 0.0)
        ),
        skipped_prefill=less("skipped_prefill"),
        skipped_prefill_seconds=max(
            0.0, new.skipped_prefill_seconds - (old.skipped_prefill_seconds if old else 0.0)
        ),
        prefill_spells=less("prefill_spells"),
        prefilled_requests=less("prefilled_requests"),
        prefilled_tokens=less("prefilled_tokens"),
    )


def _histogram_delta(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(0, n - (old[i] if i < len(old) else 0)) for i, n in enumerate(new))


def _merged(deltas: list[CellDelta]) -> CellDelta:
    def total(name: str) -> int:
        return sum(getattr(delta, name) for delta in deltas)

    def histogram(name: str) -> tuple[int, ...]:
        columns = [getattr(delta, name) for delta in deltas]
        return tuple(sum(c[i] for c in columns if i < len(c)) for i in range(max(map(len, columns))))

    return CellDelta(
        batch_bucket=deltas[0].batch_bucket,
        arm=deltas[0].arm,
        steps=total("steps"),
        request_steps=total("request_steps"),
        tokens=total("tokens"),
        accepted=histogram("accepted"),
        accepted_after_cold=histogram("accepted_after_cold"),
        timed_steps=total("timed_steps"),
        timed_seconds=sum(delta.timed_seconds for delta in deltas),
        timed_seconds_sq=sum(delta.timed_seconds_sq for delta in deltas),
        timed_request_steps=total("timed_request_steps"),
        timed_context_tokens=total("timed_context_tokens"),
        after_prefill_steps=total("after_prefill_steps"),
        after_prefill_seconds=sum(delta.after_prefill_seconds for delta in deltas),
        skipped_prefill=total("skipped_prefill"),
        skipped_prefill_seconds=sum(delta.skipped_prefill_seconds for delta in deltas),
        prefill_spells=total("prefill_spells"),
        prefilled_requests=total("prefilled_requests"),
        prefilled_tokens=total("prefilled_tokens"),
    )
