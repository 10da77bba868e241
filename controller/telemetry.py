"""All metrics of the sidecar, on a registry that is handed in.

What decisions are made of stands beside what comes of them.  Label sets are closed: what the engine says
cannot add to them.  `docs/metrics.md` is made from this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

from controller.conditions import Condition
from controller.effect import Effect
from controller.link import Link
from controller.loop import TickResult
from controller.predicted import predicted_tok_s
from controller.scraper import ENDPOINTS
from controller.steering import Lease
from policies.types import Action, CellDelta, Gear, Mode, Observation, Reason, Schedule
from sglang_hooks import __version__

BATCH_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Smallest batch size of each bucket, as docs/protocol.md names them."""
_Metric = TypeVar("_Metric", bound=MetricWrapperBase)
SIGNALS = ("load", "queue", "telemetry")
_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_UNKNOWN = float("nan")


class Telemetry:
    """The metrics, and `record`, which moves them once a turn."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody reads
        self.registry = registry
        self.metrics: list[MetricWrapperBase] = []
        """All of them, in the order of the documentation."""
        self._define_outputs()
        self._define_inputs()
        self._define_engine()
        self._define_self()
        self._build.info({"version": __version__})

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return self._kept(Gauge(f"specgov_{name}", text, tuple(labels), registry=self.registry))

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return self._kept(Counter(f"specgov_{name}", text, tuple(labels), registry=self.registry))

    def _histogram(self, name: str, text: str, labels: Iterable[str] = ()) -> Histogram:
        made = Histogram(f"specgov_{name}", text, tuple(labels), registry=self.registry, buckets=_FAST_S)
        return self._kept(made)

    def _kept(self, metric: _Metric) -> _Metric:
        self.metrics.append(metric)
        return metric

    def _define_outputs(self) -> None:
        self._mode = self._gauge("mode", "1 for what the operator wants: auto, off, on or native", ["mode"])
        self._depth = self._gauge(
            "schedule_depth",
            "Draft depth in force by batch bucket (its smallest batch size); absent: SGLang chooses",
            ["batch_bucket"],
        )
        self._decisions = self._counter(
            "decisions_total", "Turns, by what was decided and why", ["action", "reason"]
        )
        self._switches = self._counter("schedule_switches_total", "Changes of the wanted schedule")
        self._override = self._gauge("override_active", "1 while an override is in force")
        self._override_end = self._gauge(
            "override_expiry_timestamp_seconds", "When the override ends by itself; NaN: none, or never"
        )
        self._lease = self._gauge("lease_state", "1 for the state of the lease", ["state"])
        self._lease_left = self._gauge(
            "lease_left_seconds", "Left of the live lease at the engine; NaN: none"
        )
        self._renewals = self._counter("lease_renewals_total", "Plans pushed or renewed with success")
        self._effect = self._gauge("effect", "1 for how far the wanted plan has come", ["effect"])
        self._condition = self._gauge("condition", "1 while the condition holds", ["condition"])
        self._predicted = self._gauge(
            "predicted_decode_tokens_per_second",
            "What the policy expects of its choice while it decodes, prefill left out; NaN: it does not say",
        )
        self._shadow = self._gauge("shadow_agrees", "1 when the shadow policy wants the same; NaN: no shadow")

    def _define_inputs(self) -> None:
        self._running = self._gauge("running_requests", "Running requests over all DP ranks; NaN: not known")
        self._queue = self._gauge("queue_requests", "Waiting requests over all DP ranks; NaN: not known")
        self._batch_size = self._gauge("batch_size", "Largest running count of one DP rank; NaN: not known")
        self._context = self._gauge(
            "context_tokens", "Tokens of running requests in the KV pool; NaN: not known"
        )
        self._usage = self._gauge("token_usage_ratio", "Use of the KV pool, fullest DP rank; NaN: not known")
        self._age = self._gauge(
            "signal_age_seconds", "Age of what was last read; NaN: never read", ["signal"]
        )
        self._depth_in_use = self._gauge(
            "depth_in_use", "Draft depth of the latest decode step; NaN: not known"
        )
        self._gear_in_use = self._gauge("gear_in_use", "1 for the gear of the latest decode step", ["gear"])

    def _define_engine(self) -> None:
        self._link = self._gauge("engine_link", "1 for what stands at the other end", ["link"])
        self._engine = self._kept(
            Info("specgov_engine", "The governed engine", registry=self.registry),
        )
        self._restarts = self._counter("engine_restarts_total", "Restarts of the engine that were seen")
        self._measured = self._gauge(
            "decode_tokens_per_second", "Tokens emitted over the latest turn, all DP ranks; NaN: not known"
        )
        self._steps = self._counter(
            "engine_decode_steps_total", "Decode steps seen in the engine's telemetry"
        )
        self._engine_switches = self._counter("engine_switches_total", "Changes of depth inside the engine")
        self._probe_steps = self._counter("engine_probe_steps_total", "Decode steps spent on probes")
        self._prefills = self._counter("engine_prefill_batches_total", "Prefill batches")
        arm = ["batch_bucket", "depth", "gear"]
        self._tokens = self._counter("engine_tokens_total", "Tokens emitted, by batch bucket and arm", arm)
        self._cell_steps = self._counter("engine_steps_total", "Decode steps, by batch bucket and arm", arm)
        self._request_steps = self._counter(
            "engine_request_steps_total", "Decode steps times their batch sizes, by batch bucket and arm", arm
        )
        self._timed_steps = self._counter(
            "engine_timed_steps_total", "Decode steps with a clean interval, by batch bucket and arm", arm
        )
        self._timed = self._counter(
            "engine_timed_seconds_total", "Sum of the clean intervals, by batch bucket and arm", arm
        )
        self._accepted = self._counter(
            "engine_accepted_drafts_total",
            "Requests times steps with exactly `accepted` accepted drafts, by depth",
            ["depth", "accepted"],
        )

    def _define_self(self) -> None:
        self._build = self._kept(Info("specgov_build", "This sidecar", registry=self.registry))
        self._tick = self._histogram("tick_duration_seconds", "Of one turn of the control loop")
        self._ticks = self._counter("ticks_total", "Turns of the control loop")
        self._last_tick = self._gauge("last_tick_timestamp_seconds", "When the latest turn began")
        self._scrape = self._histogram(
            "scrape_duration_seconds", "Of one request to the engine", ["endpoint"]
        )
        self._scrape_errors = self._counter(
            "scrape_errors_total", "Requests to the engine that failed", ["endpoint", "error"]
        )
        for endpoint in ENDPOINTS:
            self._scrape.labels(endpoint)
        self._last: TickResult | None = None

    def record(self, result: TickResult) -> None:
        """Move every metric by one turn."""
        before, self._last = self._last, result
        self._record_decision(result, before)
        self._record_steering(result, before)
        self._record_observation(result.observation)
        self._record_engine(result, before)
        self._tick.observe(result.duration_s)
        self._ticks.inc()
        self._last_tick.set(result.now_unix_s)
        for endpoint, seconds in result.scrape.durations_s.items():
            self._scrape.labels(endpoint).observe(seconds)
        for endpoint, error in result.scrape.errors.items():
            self._scrape_errors.labels(endpoint, error.label).inc()

    def _record_decision(self, result: TickResult, before: TickResult | None) -> None:
        decision, override = result.decision, result.override
        self._decisions.labels(str(decision.action), str(decision.reason)).inc()
        wanted = result.steered.wanted
        was = before.steered.wanted if before else None
        if wanted is not None and was is not None and wanted.schedule != was.schedule:
            self._switches.inc()
        _one_of(self._mode, Mode, override.mode if override else Mode.AUTO)
        self._override.set(override is not None)
        self._override_end.set(_or_nan(override.expires_unix_s if override else None))
        self._predicted.set(_or_nan(predicted_tok_s(decision)))
        if result.shadow is None:
            self._shadow.set(_UNKNOWN)
        else:
            agrees = (result.shadow.action, result.shadow.schedule) == (decision.action, decision.schedule)
            self._shadow.set(agrees)
        holding = {active.condition for active in result.conditions}
        for condition in Condition:
            self._condition.labels(condition).set(condition in holding)

    def _record_steering(self, result: TickResult, before: TickResult | None) -> None:
        steered = result.steered
        _one_of(self._lease, Lease, steered.lease)
        self._lease_left.set(_or_nan(steered.lease_left_s))
        self._renewals.inc(steered.renewed)
        _one_of(self._effect, Effect, result.effect.effect)
        if before is None or result.in_force != before.in_force:
            self._record_schedule(result.in_force)

    def _record_schedule(self, schedule: Schedule | None) -> None:
        for bucket in BATCH_BUCKETS:
            if schedule is not None:
                self._depth.labels(str(bucket)).set(schedule.arm_for(bucket).depth)
        if schedule is None:
            self._depth.clear()

    def _record_observation(self, seen: Observation) -> None:
        self._running.set(_or_nan(seen.running_reqs))
        self._queue.set(_or_nan(seen.queue_reqs))
        self._batch_size.set(_or_nan(seen.batch_size))
        self._context.set(_or_nan(seen.context_tokens))
        self._usage.set(_or_nan(seen.token_usage))
        for signal, age_s in zip(
            SIGNALS, (seen.load_age_s, seen.queue_age_s, seen.telemetry_age_s), strict=True
        ):
            self._age.labels(signal).set(_or_nan(age_s))
        self._depth_in_use.set(_or_nan(seen.in_use.depth if seen.in_use else None))
        _one_of(self._gear_in_use, Gear, seen.in_use.gear if seen.in_use else None)

    def _record_engine(self, result: TickResult, before: TickResult | None) -> None:
        seen = result.observation
        _one_of(self._link, Link, result.link.link)
        if before is not None and seen.engine_epoch > before.observation.engine_epoch:
            self._restarts.inc(seen.engine_epoch - before.observation.engine_epoch)
        self._steps.inc(seen.decode_steps or 0)
        self._engine_switches.inc(seen.switches or 0)
        self._probe_steps.inc(seen.probe_steps or 0)
        self._prefills.inc(seen.prefill_batches or 0)
        for cell in seen.cells:
            self._record_cell(cell)
        info, control = result.info, result.control
        self._engine.info(
            {
                "sglang_version": (info and info.version) or (control and control.sglang_version) or "",
                "plugin_version": (control and control.plugin_version) or "",
                "model": (info and info.model) or "",
                "attention_backend": (info and info.attention_backend) or "",
            }
        )
        elapsed_s = seen.now_s - before.observation.now_s if before else 0.0
        known = seen.decode_steps is not None and elapsed_s > 0
        self._measured.set(sum(c.tokens for c in seen.cells) / elapsed_s if known else _UNKNOWN)

    def _record_cell(self, cell: CellDelta) -> None:
        if cell.batch_bucket not in BATCH_BUCKETS:
            return
        arm = (str(cell.batch_bucket), str(cell.arm.depth), str(cell.arm.gear))
        self._tokens.labels(*arm).inc(cell.tokens)
        self._cell_steps.labels(*arm).inc(cell.steps)
        self._request_steps.labels(*arm).inc(cell.request_steps)
        self._timed_steps.labels(*arm).inc(cell.timed_steps)
        self._timed.labels(*arm).inc(cell.timed_seconds)
        for accepted, count in enumerate(cell.accepted):
            if count:
                self._accepted.labels(str(cell.arm.depth), str(accepted)).inc(count)


LABEL_VALUES = {
    "mode": [str(m) for m in Mode],
    "batch_bucket": [str(b) for b in BATCH_BUCKETS],
    "action": [str(a) for a in Action],
    "reason": [str(r) for r in Reason],
    "state": [str(x) for x in Lease],
    "effect": [str(e) for e in Effect],
    "condition": [str(c) for c in Condition],
    "signal": list(SIGNALS),
    "gear": [str(g) for g in Gear],
    "link": [str(x) for x in Link],
    "endpoint": list(ENDPOINTS),
    "error": [
        "unreachable",
        "timeout",
        "bad_answer",
        "refused",
        "not_found",
        "unauthorized",
        "conflict",
        "rejected",
        "impossible",
    ],
    "depth": ["a built depth"],
    "accepted": ["0 to the depth"],
}
"""Values that each label can take; the table in docs/metrics.md is made of it."""


def _one_of(gauge: Gauge, states: Iterable[str], now: str | None) -> None:
    """1 for the state that holds, 0 for the others."""
    for state in states:
        gauge.labels(str(state)).set(state == now)


def _or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else _UNKNOWN
