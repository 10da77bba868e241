"""OpenTelemetry: what a collector receives, and that one which does not answer costs nothing."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from controller import settings as settings_module
from controller import wiring
from controller.errors import SettingsError
from controller.logs import Throttle

pytestmark = pytest.mark.slow


class Collector:
    """Receives OTLP over HTTP, as an OpenTelemetry Collector does."""

    def __init__(self):
        self.spans, self.events, self.resource, self.headers, self.raw = [], [], {}, [], b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, body)
                collector.raw += body
                collector.headers.append(dict(self.headers))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def take(self, path, body):
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = attributes(group.resource)
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for group in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.events += [event for scope in group.scope_logs for event in scope.log_records]

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(thing):
    """Key to plain value."""
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value") or "string_value")
        for entry in thing.attributes
    }


@pytest.fixture
def collector(monkeypatch):
    """A collector that the environment names, as an operator would name it."""
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.close()


async def test_a_turn_and_its_decision_reach_a_collector(make, collector):
    """A span with its parts and their times, and the decision as an event of the same trace."""
    bench = await make(otel__enabled=True)
    turn = await bench.run(1, batch_size=4)
    bench.assembly.otel.close()
    (tick,) = collector.named("specgov.tick")
    parts = {span.name for span in collector.spans if span.parent_span_id == tick.span_id}
    assert parts == {"specgov.observe", "specgov.decide", "specgov.push"}
    assert tick.start_time_unix_nano == int(turn.now_unix_s * 1e9)
    assert attributes(tick)["specgov.mode"] == "auto"
    assert attributes(collector.named("specgov.decide")[0])["specgov.reason"] == "fixed"
    assert attributes(collector.named("specgov.push")[0])["specgov.acknowledged"] is True
    (decision,) = [event for event in collector.events if event.event_name == "specgov.decision"]
    assert decision.trace_id == tick.trace_id
    assert decision.body.string_value == turn.decision.detail
    assert attributes(decision)["specgov.reason"] == "fixed"
    assert '"depth": 2' in attributes(decision)["specgov.decision.schedule"]
    assert collector.resource["service.name"] == "specgov"


async def test_an_order_is_an_event_with_its_reason_and_its_actor(make, collector):
    """Who, what, why, where other systems keep their events; that it ended, too."""
    bench = await make(otel__enabled=True)
    await bench.run(1)
    body = {"mode": "off", "reason": "incident 4711", "actor": "ann", "ttl_s": 5}
    await bench.api.put("/v1/override", json=body)
    await bench.run(1)
    await bench.run(1, seconds=10)
    bench.assembly.otel.close()
    told = [attributes(event) for event in collector.events if event.event_name == "specgov.override"]
    assert [(each["specgov.reason"], each["specgov.override.actor"]) for each in told] == [
        ("off", "ann"),
        ("expired", "ann"),
    ]
    decided = [attributes(e) for e in collector.events if e.event_name == "specgov.decision"]
    assert [each["specgov.reason"] for each in decided] == ["fixed", "override", "fixed"]


async def test_turns_without_news_are_traced_once_in_a_while(make, collector):
    """121 turns of a second, one in 60 s: after those with news, two of the quiet ones."""
    bench = await make(otel__enabled=True, otel__quiet_every_s=60)
    await bench.run(5, batch_size=4)
    bench.assembly.otel._providers[0].force_flush()
    with_news = len(collector.named("specgov.tick"))
    await bench.run(121, batch_size=4)
    bench.assembly.otel.close()
    assert 1 <= with_news <= 5
    assert len(collector.named("specgov.tick")) - with_news == 2


async def test_what_is_not_known_is_no_attribute(make, collector):
    """An engine that is away has no batch size, not one of 0; what failed is said on the span."""
    bench = await make(otel__enabled=True)
    refused = httpx.ConnectError("refused")
    bench.engine.fail = dict.fromkeys(("/v1/loads", "/speculation", "/metrics", "/server_info"), refused)
    await bench.run(1)
    bench.assembly.otel.close()
    known = attributes(collector.named("specgov.tick")[0])
    assert known["specgov.link"] == "unreachable"
    assert not {"specgov.batch_size", "specgov.depth_in_use"} & known.keys()
    (observed,) = collector.named("specgov.observe")
    assert observed.status.code == 2  # ERROR
    assert "speculation" in observed.status.message


async def test_the_standard_environment_is_followed(make, collector, monkeypatch):
    """Names, headers, samplers and exporters are OpenTelemetry's own settings, not ours."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "specgov-llama")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=llama-0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=inference")
    bench = await make(otel__enabled=True)
    await bench.run(1)
    bench.assembly.otel.close()
    assert collector.resource["service.name"] == "specgov-llama"
    assert collector.resource["k8s.pod.name"] == "llama-0"
    assert {headers["x-tenant"] for headers in collector.headers} == {"inference"}


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_TRACES_EXPORTER", "none")]
)
async def test_traces_can_be_left_out(make, collector, monkeypatch, variable, value):
    """Decisions still come."""
    monkeypatch.setenv(variable, value)
    bench = await make(otel__enabled=True)
    await bench.run(2)
    bench.assembly.otel.close()
    assert collector.spans == []
    assert collector.events != []


async def test_the_sdk_can_be_disabled_from_outside(make, collector, monkeypatch):
    """`OTEL_SDK_DISABLED`, as a platform sets it for all its pods."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    bench = await make(otel__enabled=True)
    await bench.run(2)
    bench.assembly.otel.close()
    assert (collector.spans, collector.events) == ([], [])


async def test_no_key_or_token_goes_to_a_collector(make, collector):
    """Whatever is sent, in whatever field."""
    secrets = {"api__token": "s3cret-token", "engine__admin_api_key": "s3cret-key"}
    bench = await make(otel__enabled=True, **secrets)
    bench.engine.admin_key = "another"
    await bench.run(3, batch_size=4)
    bench.assembly.otel.close()
    assert b"unauthorized" in collector.raw
    assert b"s3cret" not in collector.raw


async def test_it_is_off_unless_turned_on(make, collector):
    """An endpoint in the environment alone sends nothing."""
    bench = await make()
    await bench.run(2)
    assert bench.assembly.otel is None


def test_without_the_extra_it_is_refused_with_the_remedy(monkeypatch):
    """Only when it is turned on."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "controller.otel", raising=False)
    monkeypatch.delattr("controller.otel", raising=False)
    tree = settings_module.load(flags={"otel": {"enabled": True}}, environ={})
    with pytest.raises(SettingsError, match=r"otel\.enabled must be false .* pip install 'specgov\[otel\]'"):
        wiring.make_otel(tree)
    assert wiring.make_otel(settings_module.load(environ={})) is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", r"must name an exporter .*otlp.*got 'zipkin'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", r"got 'otlp_proto_grpc': pip install"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke", r"must be one of http/protobuf, grpc, got 'smoke'"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", r"the OTEL_\* environment must suit"),
    ],
)
def test_an_environment_that_cannot_be_followed_stops_the_start(monkeypatch, variable, value, message):
    """With what would do."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        wiring.make_otel(settings_module.load(flags={"otel": {"enabled": True}}, environ={}))


async def test_a_collector_that_never_answers_delays_nothing(make, monkeypatch):
    """Turns take as long as without it, none fails, and the end does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
        monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
        bench = await make(otel__enabled=True, otel__quiet_every_s=0.5)
        began_s = time.monotonic()
        await bench.run(100, batch_size=4)
        assert time.monotonic() - began_s < 5
        assert bench.loop.failed_ticks == 0
        assert bench.assembly.records.problem is None
        began_s = time.monotonic()
        bench.assembly.otel.close(within_s=0.1)
        assert time.monotonic() - began_s < 1


def test_an_exporter_that_complains_at_every_batch_is_thinned_out():
    """Once a minute is enough to know that the collector is away."""
    throttle = Throttle(60, clock=lambda: 0.0)
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    records = [logging.LogRecord(name, logging.ERROR, "", 0, "no collector", (), None) for _ in range(3)]
    assert [throttle.filter(record) for record in records] == [True, False, False]
