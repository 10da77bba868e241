"""The default policy: the schedule that decodes the most tokens per second, learned while serving.

One `decide` is: learn from the telemetry of the last tick (`acceptance.py`, `step_cost.py`, `gears.py`,
`load.py`), put the models together (`surface.py`), choose the schedule (`selection.py`), and see whether
something unknown is worth a probe (`probing.py`).  The maths, with sources, is in docs/policies.md.

Everything is relative or counted in decode steps: no constant here knows a machine, a model or a trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from policies import unbuilt
from policies.acceptance import AcceptanceParams, Survival
from policies.bounds import Bound, NotNegative, Share, check_bounds
from policies.drift import DriftParams
from policies.explain import describe, explain, forecast
from policies.gears import ColdLedger
from policies.load import Load
from policies.prefill_cost import PrefillCost
from policies.probing import ProbeParams, Prober, Ran
from policies.selection import choose
from policies.soundness import MAX_COUNT, elapsed_s, finite, sound_cells
from policies.step_cost import KNOTS, StepCost, StepCostParams, bucket_index, ordered
from policies.surface import SIZES, STARTS, Indices, Models, Outlook, prospect, size_index, surface
from policies.types import (
    Action,
    Arm,
    CellDelta,
    Decision,
    Forecast,
    Gear,
    Observation,
    Probe,
    Reason,
    Schedule,
)

STATE_VERSION = 5
MAX_ARMS = 64
CLEAN_SHARE_PRIOR = 0.2
"""Share of requests in a probe from cold whose draft cache is in step, until measured."""
MAX_PREFILL_SHARE = 0.5
"""Prefill batches per decode step above which no probe is run, unless that is usual."""
STORM_S = 3.0
"""Half-life of what is usual; so a storm of prefills lasts a few seconds, then it is the load."""
CONTENT_FACTOR = 5.0
"""With the objective met, a change must bring this many times `min_gain`."""
MATERIAL, MATERIAL_AHEAD = 0.001, 0.005
"""What a changed schedule must bring: share of decode time saved, mean log-goodput at sizes to come."""


@dataclass(frozen=True, slots=True)
class GoodputParams:
    """Parameters of `goodput`.  None of them describes hardware, model or traffic."""

    min_gain: Share = 0.01
    """A change must promise at least this much more log-goodput (0.01: 1 %) ..."""
    confidence: NotNegative = 1.5
    """... plus this many standard errors of the difference."""
    tpot_objective_s: Annotated[float | None, Bound(above=0)] = None
    """Time per output token that a request should not exceed.  With no request waiting, an arm in
    force that meets it is kept, and one that misses it is left at once.  `None`: throughput only."""
    acceptance: AcceptanceParams = field(default_factory=AcceptanceParams)
    step_cost: StepCostParams = field(default_factory=StepCostParams)
    probe: ProbeParams = field(default_factory=ProbeParams)
    drift: DriftParams = field(default_factory=DriftParams)

    def __post_init__(self) -> None:
        """Raise `ValueError` for values out of range."""
        check_bounds(self)


class Goodput:
    """Learns and governs; see the module's docstring."""

    name = "goodput"

    def __init__(self, params: GoodputParams | None = None) -> None:
        self.params = p = params or GoodputParams()
        self.models = Models(
            Survival(p.acceptance), StepCost(p.step_cost, p.drift), ColdLedger(), Load(), PrefillCost()
        )
        self.prober = Prober(p.probe)
        self.outlook: Outlook | None = None
        self._current: Schedule | None = None
        self._clock_s = 0.0
        self._now_s: float | None = None
        self._tick_s = 0.0
        self._epoch: int | None = None
        self._batch_before = 0.0
        self._clean_share = CLEAN_SHARE_PRIOR
        self._ran = Ran(0.0, 0.0, 0.0)
        self._clean_steps = 0.5
        self._steps_seen = 2.0
        self._prefills_per_step: float | None = None

    def decide(self, observation: Observation) -> Decision:
        """Learn from `observation`, then propose."""
        arms = ordered(a for a in observation.built if isinstance(a, Arm))[:MAX_ARMS]
        if not arms:
            return unbuilt.hold("any depth", ())
        cells = sound_cells(observation.cells)
        self._learn(observation, cells)
        self.outlook = Outlook.of(self.models, arms, observation.resting)
        incumbent = self.outlook.indices(*self._in_force(observation, arms))
        regime = self._regime(observation, incumbent)
        chosen, saving = self._choose(regime, incumbent)
        chosen = settle(chosen, saving, incumbent, self.outlook, self.models.load)
        self._follow_probe(chosen)
        probe = self._probe(observation, cells, chosen)
        self._current = self.outlook.schedule(chosen)
        return self._decision(observation, regime, incumbent, chosen, probe)

    # ---- learning ----

    def _learn(self, observation: Observation, cells: Sequence[CellDelta]) -> None:
        if observation.engine_epoch != self._epoch:
            self._epoch = observation.engine_epoch
            self.prober.abandon()
        self._tick_s = dt_s = elapsed_s(self._now_s, observation.now_s)
        self._now_s = finite(observation.now_s, -MAX_COUNT) or self._now_s
        self._clock_s += dt_s
        seconds = [self.models.cost.seconds(cell) for cell in cells]
        self._account_probe(observation, cells, seconds)
        self.models.load.observe(cells, seconds, dt_s)
        self.models.prefill.observe(cells, self._step_s)
        self._learn_crossings(observation)
        self._learn_clean_share(cells)
        self._learn_clean_steps(cells)
        drifted = self.models.survival.observe(cells, dt_s)
        self.models.ledger.observe(cells, seconds, self.models.survival)
        if self.models.cost.observe(cells, dt_s) or drifted:
            self.prober.reset()

    def _account_probe(
        self, observation: Observation, cells: Sequence[CellDelta], seconds: Sequence[float]
    ) -> None:
        """Book the seconds of the pending probe's steps."""
        pending, decode_s = self.prober.pending, sum(seconds)
        busy_s = self._tick_s if cells else 0.0
        if pending is None:
            self.prober.account(0.0, decode_s, self._tick_s)
            self._ran = Ran(0.0, 0.0, busy_s)
            return
        probe = pending.probe
        mine = [
            (c.steps, s, c.timed_steps + c.after_prefill_steps)
            for c, s in zip(cells, seconds, strict=True)
            if c.arm == probe.arm and probe.min_batch_size <= c.batch_bucket <= probe.max_batch_size
        ]
        seen = sum(n for n, _, _ in mine)
        told = finite(observation.probe_steps)
        steps = seen if told is None else min(told, seen)
        probe_s = sum(s for _, s, _ in mine) * steps / seen if seen else 0.0
        self.prober.account(probe_s, decode_s, self._tick_s)
        self._ran = Ran(steps, sum(n for _, _, n in mine), busy_s)

    def _follow_probe(self, chosen: Indices) -> None:
        """See whether the pending probe is through, and whether it changed anything."""
        pending, outlook = self.prober.pending, self.outlook
        if pending is None or outlook is None:
            return
        g = size_index(KNOTS[pending.bucket])
        now, value = int(chosen[g]), dict(zip(outlook.arms, outlook.value[g].tolist(), strict=True))
        mean_s = 1.0 / self.models.survival.changes.per_s
        self.prober.progress(
            self._ran,
            self._clock_s,
            outlook.arms[now],
            mean_s / self.params.probe.looks_per_change,
            ahead=value.get(pending.probe.arm, -math.inf) > value[outlook.arms[now]],
        )

    def _learn_clean_steps(self, cells: Sequence[CellDelta]) -> None:
        steps = sum(cell.steps for cell in cells)
        if steps > 0:
            clean = min(1.0, sum(c.timed_steps + c.after_prefill_steps for c in cells) / steps)
            self._steps_seen = self._steps_seen * 2.0 ** (-steps / 20.0) + steps
            self._clean_steps += min(1.0, steps / self._steps_seen) * (clean - self._clean_steps)

    def _step_s(self, cell: CellDelta) -> float | None:
        """What a step of `cell` takes, as the field has it: what was timed beside prefills may hold some."""
        field = self.outlook.field if self.outlook else None
        if field is None or cell.arm not in field.arms or cell.steps <= 0:
            return None
        log_s, _ = field.at([max(1.0, cell.request_steps / cell.steps)])
        return math.exp(float(log_s[0, field.arms.index(cell.arm)]))

    def _learn_crossings(self, observation: Observation) -> None:
        switches = finite(observation.switches)
        if switches is not None and not self._ran.steps:
            self.models.load.observe_switches(observation.in_force, switches)

    def _learn_clean_share(self, cells: Sequence[CellDelta]) -> None:
        """While off is cold, few requests of a probe's batch have a draft cache in step: how many?"""
        if self._current is None or not self._ran.steps:
            return
        for cell in cells:
            cold = self._current.arm_for(cell.batch_bucket).gear in (Gear.COLD, Gear.FROZEN)
            total = sum(cell.accepted) + sum(cell.accepted_after_cold)
            if cell.arm.depth and cold and total > 0:
                self._clean_share += 0.2 * (sum(cell.accepted) / total - self._clean_share)

    # ---- choosing ----

    def _in_force(self, observation: Observation, arms: Sequence[Arm]) -> tuple[Schedule, Arm]:
        """The schedule that changes are measured against, and the arm for what in it is not built."""
        drafting = [arm for arm in arms if arm.depth]
        begins = observation.in_use or observation.latest_arm
        start = begins if begins in arms else (drafting or list(arms))[0]
        assert start is not None  # noqa: S101  (one of `arms`)
        return observation.in_force or self._current or Schedule.constant(start), start

    def _regime(self, observation: Observation, incumbent: Indices) -> npt.NDArray[np.bool_] | None:
        """Per size, whether the arm in force meets the objective; `None`: throughput is what counts."""
        objective = self.params.tpot_objective_s
        if objective is None or self.outlook is None or finite(observation.queue_reqs) != 0:
            return None
        g = np.arange(len(SIZES))
        tpot = np.exp(-self.outlook.log_rate + self.outlook.own_error)
        return np.asarray(tpot[g, incumbent] <= objective)

    def _choose(self, meets: npt.NDArray[np.bool_] | None, incumbent: Indices) -> tuple[Indices, float]:
        assert self.outlook is not None  # noqa: S101  (set by decide)
        scene = surface(self.models, self.outlook, incumbent)
        gain = np.full(len(SIZES), self.params.min_gain)
        confidence = np.full(len(SIZES), self.params.confidence)
        if meets is not None:
            gain = np.where(meets, CONTENT_FACTOR * gain, 0.0)
            confidence = np.where(meets, confidence, 0.0)
        return choose(scene, gain, confidence)

    # ---- probing ----

    def _probe(self, observation: Observation, cells: Sequence[CellDelta], chosen: Indices) -> Probe | None:
        load, outlook = self.models.load, self.outlook
        batch = self._batch(cells)
        calm = self._calm(observation, batch)
        self._batch_before = batch or self._batch_before
        pending = self.prober.pending
        if batch is None or outlook is None or not calm:
            return pending.probe if pending else None
        cold = outlook.arms[int(chosen[size_index(batch)])].gear in (Gear.COLD, Gear.FROZEN)
        clean = (self._clean_share if cold else 1.0, self._clean_steps)
        hurdle = (self.params.min_gain, self.params.confidence)
        waiting = bool(finite(observation.queue_reqs))
        horizons_s = self._horizons_s()
        view = prospect(
            self.models, outlook, chosen, batch, clean, horizons_s=horizons_s, hurdle=hurdle, waiting=waiting
        )
        bucket = load.current_bucket
        return self.prober.propose(view, self._clock_s, bucket_index(batch) if bucket is None else bucket)

    def _horizons_s(self) -> tuple[float, float]:
        """For how long what a probe finds of acceptance, and of step times, will be of use."""
        survival, longest_s = self.models.survival, self.params.probe.horizon_s
        acceptance_s = min(longest_s, 1.0 / survival.changes.per_s)
        return acceptance_s, max(acceptance_s, longest_s / (1 + len(survival.regimes.past)))

    def _batch(self, cells: Sequence[CellDelta]) -> float | None:
        """Mean batch size of the latest tick; `None` when nothing was decoded."""
        steps = sum(cell.steps for cell in cells)
        return sum(cell.request_steps for cell in cells) / steps if steps > 0 else None

    def _calm(self, observation: Observation, batch: float | None) -> bool:
        """Whether a probe may run: sound input, not draining, no prefill storm, not near the objective."""
        if observation.suspect or batch is None or batch <= 0:
            return False
        prefills, steps = finite(observation.prefill_batches), finite(observation.decode_steps)
        if prefills is not None and steps and self._prefill_storm(prefills / steps):
            return False
        running = finite(observation.batch_size)
        idle_queue = not finite(observation.queue_reqs)
        draining = running is not None and running < 0.5 * self._batch_before and self._batch_before >= 4
        return not (idle_queue and draining) and not self._near_objective(batch)

    def _prefill_storm(self, per_step: float) -> bool:
        """Far more prefills per decode step than of late; where they are always many, nothing is unusual."""
        usual = self._prefills_per_step
        share = 1.0 - 2.0 ** (-self._tick_s / STORM_S)
        self._prefills_per_step = per_step if usual is None else usual + share * (per_step - usual)
        return per_step > MAX_PREFILL_SHARE and usual is not None and per_step > 2 * usual

    def _near_objective(self, batch: float) -> bool:
        objective = self.params.tpot_objective_s
        if objective is None or self.outlook is None or self._current is None:
            return False
        arm = self._current.arm_for(int(batch))
        if arm not in self.outlook.arms:
            return False
        rate = self.outlook.log_rate[size_index(batch), self.outlook.arms.index(arm)]
        return math.exp(-rate) > 0.9 * objective

    # ---- telling ----

    def _decision(
        self,
        observation: Observation,
        meets: npt.NDArray[np.bool_] | None,
        incumbent: Indices,
        chosen: Indices,
        probe: Probe | None,
    ) -> Decision:
        assert self.outlook is not None  # noqa: S101  (set by decide)
        assert self._current is not None  # noqa: S101
        batch = finite(observation.batch_size, 1, 1 << 20) or max(1.0, self._batch_before)
        evidence = explain(self.outlook, self.models, chosen, batch)
        evidence["probing"] = self._probing_evidence(probe)
        if meets is not None:
            evidence["meets_tpot_objective"] = bool(meets[size_index(batch)])
        changed = bool((chosen != incumbent).any())
        if changed:
            reason = Reason.GOODPUT_BETTER if meets is None else Reason.TPOT_OBJECTIVE
        else:
            reason = Reason.GOODPUT_LEARNING if evidence["unknown_arms"] else Reason.GOODPUT_STAY
        detail = describe(evidence, batch, changed)
        return Decision(Action.GOVERN, reason, detail, self._current, probe, evidence)

    def _probing_evidence(self, probe: Probe | None) -> dict[str, Any]:
        prober = self.prober
        return {
            "arm": str(probe.arm) if probe else None,
            "probes": prober.probes,
            "probe_s": round(prober.spent_s, 6),
            "decode_s": round(prober.decode_s, 6),
        }

    def forecast(self) -> tuple[Forecast, ...]:
        """What is expected of every known arm at every batch size; empty before the first decision."""
        return () if self.outlook is None else forecast(self.outlook)

    # ---- knowledge that outlives the process ----

    def export_state(self) -> dict[str, Any]:
        """What was learned, JSON-ready, bounded by buckets times arms."""
        models = self.models
        return {
            "version": STATE_VERSION,
            "acceptance": models.survival.export_state(),
            "step_cost": models.cost.export_state(),
            "load": models.load.export_state(),
            "prefill": models.prefill.export_state(),
            "gears": models.ledger.export_state(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` (field, rule, value), and then has taken over nothing."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"version must be {STATE_VERSION}, got {state.get('version')!r}")
        names = ("acceptance", "step_cost", "load", "prefill", "gears")
        parts = {name: _part(state, name) for name in names}
        fresh = Goodput(self.params).models
        fresh.survival.import_state(parts["acceptance"])
        fresh.cost.import_state(parts["step_cost"])
        fresh.load.import_state(parts["load"])
        fresh.prefill.import_state(parts["prefill"])
        fresh.ledger.import_state(parts["gears"])
        self.models = fresh


def _part(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = state.get(name)
    if not isinstance(part, Mapping):
        raise ValueError(f"{name} must be an object, got {part!r:.80}")  # noqa: TRY004  (a bad value)
    return part


def settle(chosen: Indices, saving: float, incumbent: Indices, outlook: Outlook, load: Load) -> Indices:
    """`chosen`, or `incumbent` where the change would save next to nothing at the sizes that occur.

    Every change of the schedule counts against the dwell time and the switch budget of the guards.
    """
    if saving >= MATERIAL:
        return chosen
    g = np.arange(len(SIZES))
    gain = outlook.value[g, chosen] - outlook.value[g, incumbent]
    ahead = float(np.where(load.shares(STARTS) <= 0, gain, 0.0).mean())
    return chosen if ahead >= MATERIAL_AHEAD else incumbent
