"""Traces and log events over OpenTelemetry, for those who run a collector; needs `specgov[otel]`.

A recorder like the others: it works after the turn, in the recorders' thread, so it can neither delay nor
fail a decision.  The SDK's batch processors send from threads of their own, out of queues that drop when
full.
Where to, how and with which headers: the standard `OTEL_*` environment variables.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from controller.errors import SettingsError
from controller.loop import TickResult
from controller.store import LogRow
from sglang_hooks import __version__

CLOSE_WITHIN_S = 3.0
"""For what waits to be sent at the end; a collector that hangs must not keep a pod from ending."""
MAX_ROWS = 256
"""Of the decision log between two turns; there are a handful."""
MAX_TEXT = 2000
"""Characters of an attribute."""
OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Value of `OTEL_EXPORTER_OTLP_PROTOCOL` to the entry point of the exporter that speaks it."""


class OtelRecorder:
    """A span for each turn that left a row in the decision log; of the others, one in `quiet_every_s`."""

    def __init__(self, traces: TracerProvider, logs: LoggerProvider, quiet_every_s: float) -> None:
        self._providers = (traces, logs)
        self._tracer: Tracer = traces.get_tracer("specgov", __version__)
        self._logger: Logger = logs.get_logger("specgov", __version__)
        self._quiet_every_s = quiet_every_s
        self._rows: deque[LogRow] = deque(maxlen=MAX_ROWS)
        self._traced_s = float("-inf")

    def note(self, row: LogRow) -> None:
        """Take note of a row of the decision log, from any thread; it is sent with its turn, or the next."""
        self._rows.append(row)

    def record(self, turn: TickResult) -> None:
        """Hand the turn to the SDK."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows and turn.now_s - self._traced_s < self._quiet_every_s:
            return
        self._traced_s = turn.now_s
        context = set_span_in_context(self._trace(turn), Context())
        for row in rows:
            self._logger.emit(
                timestamp=_ns(row.at_unix_s),
                context=context,
                severity_number=SeverityNumber.WARN if row.body.get("active") else SeverityNumber.INFO,
                body=str(row.body.get("detail", "")),
                event_name=f"specgov.{row.kind}",
                attributes={"specgov.reason": row.reason, **_flat(f"specgov.{row.kind}", row.body)},
            )

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Send what waits and end; leaves behind what takes longer."""
        threads = [threading.Thread(target=each.shutdown, daemon=True) for each in self._providers]
        until_s = time.monotonic() + within_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _trace(self, turn: TickResult) -> Span:
        """The turn and its parts, with the times that they had."""
        offset_s = turn.now_unix_s - turn.now_s
        read_s, end_s = turn.scrape.sample.at_s, turn.now_s + turn.duration_s
        whole = self._tracer.start_span(
            "specgov.tick", Context(), attributes=_known(_state(turn)), start_time=_ns(turn.now_unix_s)
        )
        inside = set_span_in_context(whole, Context())
        parts = [
            ("specgov.observe", turn.now_s, read_s, _readings(turn)),
            ("specgov.decide", read_s, turn.decided_s, _decided(turn)),
        ]
        if turn.steered.renewed or turn.steered.error:
            parts.append(("specgov.push", turn.decided_s, end_s, _pushed(turn)))
        for name, from_s, to_s, attributes in parts:
            self._trace_part(name, inside, from_s + offset_s, to_s + offset_s, attributes)
        whole.end(_ns(end_s + offset_s))
        return whole

    def _trace_part(
        self, name: str, inside: Context, from_unix_s: float, to_unix_s: float, attributes: Mapping[str, Any]
    ) -> None:
        part = self._tracer.start_span(
            name, inside, attributes=_known(attributes), start_time=_ns(from_unix_s)
        )
        error = attributes.get("specgov.error")
        if error:
            part.set_status(Status(StatusCode.ERROR, error[:MAX_TEXT]))
        part.end(_ns(to_unix_s))


def make(engine_url: str, quiet_every_s: float) -> OtelRecorder:
    """A recorder as the `OTEL_*` environment says; raises `SettingsError` when that cannot be."""
    resource = _resource(engine_url)
    try:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in _exporters("traces"):
            traces.add_span_processor(BatchSpanProcessor(exporter))
        logs = LoggerProvider(resource, shutdown_on_exit=False)
        for exporter in _exporters("logs"):
            logs.add_log_record_processor(BatchLogRecordProcessor(exporter))
    except ValueError as error:
        raise SettingsError(f"the OTEL_* environment must suit the OpenTelemetry SDK: {error}") from None
    return OtelRecorder(traces, logs, quiet_every_s)


def _resource(engine_url: str) -> Resource:
    """Who sends; what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say counts more."""
    own = Resource(
        {"service.name": "specgov", "service.version": __version__, "specgov.engine.url": engine_url}
    )
    return Resource.create(own.merge(OTELResourceDetector().detect()).attributes)


def _exporters(signal: str) -> list[Any]:
    """What `OTEL_TRACES_EXPORTER` or `OTEL_LOGS_EXPORTER` names; `none` is nothing."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in (os.environ.get(variable) or "otlp").split(",")]
    return [_exporter(signal, variable, name) for name in names if name != "none"]


def _exporter(signal: str, variable: str, name: str) -> Any:
    group = f"opentelemetry_{signal}_exporter"
    wanted = _otlp(signal) if name == "otlp" else name
    found = next(iter(entry_points(group=group, name=wanted)), None)
    if found is None:
        installed = ", ".join(sorted({"otlp", "none", *entry_points(group=group).names}))
        raise SettingsError(
            f"{variable} must name an exporter that is installed ({installed}), got {wanted!r}: "
            f"pip install 'specgov[otel]' brings otlp over http/protobuf"
        )
    return found.load()()


def _otlp(signal: str) -> str:
    """The exporter for the protocol that is asked for; http/protobuf, as OpenTelemetry recommends."""
    variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get(variable)
    if (protocol or "http/protobuf") not in OTLP:
        raise SettingsError(f"{variable} must be one of {', '.join(OTLP)}, got {protocol!r}")
    return OTLP[protocol or "http/protobuf"]


def _state(turn: TickResult) -> dict[str, Any]:
    seen = turn.observation
    return {
        "specgov.mode": str(turn.override.mode) if turn.override else "auto",
        "specgov.link": str(turn.link.link),
        "specgov.lease": str(turn.steered.lease),
        "specgov.effect": str(turn.effect.effect),
        "specgov.running_reqs": seen.running_reqs,
        "specgov.queue_reqs": seen.queue_reqs,
        "specgov.batch_size": seen.batch_size,
        "specgov.depth_in_use": seen.in_use.depth if seen.in_use else None,
        "specgov.gear_in_use": str(seen.in_use.gear) if seen.in_use else None,
        "specgov.conditions": [str(active.condition) for active in turn.conditions],
    }


def _readings(turn: TickResult) -> dict[str, Any]:
    errors = "; ".join(f"{name}: {error}" for name, error in turn.scrape.errors.items())
    took_s = {f"specgov.{name}_s": seconds for name, seconds in turn.scrape.durations_s.items()}
    return {**took_s, "specgov.error": errors or None}


def _decided(turn: TickResult) -> dict[str, Any]:
    decision = turn.decision
    return {
        "specgov.action": str(decision.action),
        "specgov.reason": str(decision.reason),
        "specgov.detail": decision.detail,
    }


def _pushed(turn: TickResult) -> dict[str, Any]:
    steered = turn.steered
    return {
        "specgov.sequence": steered.sequence,
        "specgov.acknowledged": steered.acknowledged,
        "specgov.pending_ranks": steered.pending_ranks,
        "specgov.error": steered.error,
    }


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not known: an attribute that is absent is not zero."""
    return {
        key: value[:MAX_TEXT] if isinstance(value, str) else value
        for key, value in attributes.items()
        if value is not None
    }


def _flat(prefix: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a row: plain values as they are, the rest as JSON text."""
    return _known(
        {
            f"{prefix}.{key}": value
            if value is None or isinstance(value, str | bool | int | float)
            else json.dumps(value, default=str)
            for key, value in body.items()
        }
    )


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
