"""What the simulated engine shows over HTTP, in the shapes of SGLang 0.5.23: loads, metrics, server info.

As there: `/v1/loads` is a snapshot taken every 15 decode steps and at once on a prefill or when idle; the
gauges of `/metrics` are refreshed every 40 decode steps and then keep their last value, idle or not.
Series and fields of SGLang's that mean nothing here (grammars, disaggregation, ...) are left out.
"""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.simulation.engine import Request, VirtualEngine

SGLANG_VERSION = "0.5.23"
LOADS_EVERY_STEPS = 15
GAUGES_EVERY_STEPS = 40

_LATENCY_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_TOKEN_BUCKETS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08)
_LONG_TOKEN_BUCKETS = (*_TOKEN_BUCKETS, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8)


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        counts = self.counts or [0] * (len(self.bounds) + 1)
        names = [str(float(bound)) for bound in self.bounds]
        return list(zip([*names, "+Inf"], map(float, itertools.accumulate(counts)), strict=True))


@dataclass(frozen=True, slots=True)
class _Window:
    """Counters of the engine at one moment."""

    now_s: float
    decode_steps: int
    prefill_batches: int
    emitted_tokens: int
    request_steps: int
    proposed_drafts: int
    accepted_drafts: int

    @classmethod
    def of(cls, engine: VirtualEngine) -> _Window:
        return cls(
            engine.now_s,
            engine.decode_steps,
            engine.prefill_batches,
            engine.emitted_tokens,
            engine.request_steps,
            engine.proposed_drafts,
            engine.accepted_drafts,
        )


class Surface:
    """Snapshots of one engine; call `refresh` whenever time has passed."""

    def __init__(self, engine: VirtualEngine, unix_s: Callable[[], float], model: str) -> None:
        self._engine = engine
        self._unix_s = unix_s
        self._model = model
        self._window = _Window.of(engine)
        self._gen_throughput = 0.0
        self._accept: tuple[float, float] | None = None
        self._gauges: dict[str, float] = {}
        self._loads_window = self._window
        self._load = self._load_now()
        self._finished = _Finished()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Page(self))
        self._refresh_gauges()

    def refresh(self) -> None:
        """Take new snapshots where the engine would have."""
        engine = self._engine
        ran_dry = not engine.running and bool(self._gauges["num_running_reqs"])  # SGLang says so at once
        if ran_dry or engine.decode_steps - self._window.decode_steps >= GAUGES_EVERY_STEPS:
            self._refresh_gauges()
        before = self._loads_window
        moved = engine.decode_steps - before.decode_steps >= LOADS_EVERY_STEPS
        if moved or engine.prefill_batches != before.prefill_batches or not engine.running:
            self._loads_window = _Window.of(engine)
            self._load = self._load_now()

    def finished(self, request: Request) -> None:
        """A request ended: count it and its latencies."""
        self._finished.add(request)

    def loads(self) -> dict[str, Any]:
        """The body of `GET /v1/loads`."""
        now = dt.datetime.fromtimestamp(self._unix_s(), dt.UTC)
        return {
            "timestamp": now.isoformat(),
            "version": SGLANG_VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [self._load],
        }

    def metrics(self) -> str:
        """The body of `GET /metrics`."""
        return generate_latest(self._registry).decode()

    def _refresh_gauges(self) -> None:
        engine, before, now = self._engine, self._window, _Window.of(self._engine)
        elapsed_s = now.now_s - before.now_s
        if not engine.running:
            self._gen_throughput = 0.0
        elif elapsed_s > 0:
            self._gen_throughput = (now.emitted_tokens - before.emitted_tokens) / elapsed_s
        steps = now.request_steps - before.request_steps
        if steps:
            drafts = now.accepted_drafts - before.accepted_drafts
            proposed = now.proposed_drafts - before.proposed_drafts
            # At depth 0 SGLang says 1.0 and 0.0: known traps of these gauges, kept on purpose.
            self._accept = (1.0 + drafts / steps, drafts / proposed if proposed else 0.0)
        self._window = now
        depth = engine.last_arm[0] if engine.last_arm else max(depth for depth, _ in engine.arms)
        length, rate = self._accept or (0.0, 0.0)
        self._gauges = {
            "num_running_reqs": engine.running,
            "num_queue_reqs": engine.waiting,
            "num_used_tokens": engine.context_tokens,
            "token_usage": round(engine.context_tokens / engine.config.kv_tokens, 2),
            "gen_throughput": self._gen_throughput,
            "cache_hit_rate": 0.0,
            "spec_accept_length": length,
            "spec_accept_rate": rate,
            "spec_num_steps": depth,
            "spec_num_draft_tokens": depth + 1,
            "max_total_num_tokens": engine.config.kv_tokens,
            "num_retracted_reqs": 0,
        }

    def _load_now(self) -> dict[str, Any]:
        engine = self._engine
        used = engine.context_tokens
        load: dict[str, Any] = {
            "timestamp": self._unix_s(),
            "dp_rank": 0,
            "num_running_reqs": engine.running,
            "num_waiting_reqs": engine.waiting,
            "num_waiting_uncached_tokens": engine.waiting_tokens,
            "num_used_tokens": used,
            "num_total_tokens": used + engine.waiting_tokens,
            "num_active_tokens": used,
            "max_total_num_tokens": engine.config.kv_tokens,
            "max_running_requests": engine.config.max_running_requests,
            "token_usage": round(used / engine.config.kv_tokens, 4),
            "gen_throughput": round(self._gen_throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": engine.prefill_tokens,
            "total_prefill_busy_us": int(engine.prefill_seconds * 1e6),
            "queues": {"waiting": engine.waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }
        if self._accept is not None:
            load["speculative"] = dict(zip(("accept_length", "accept_rate"), self._accept, strict=True))
        return load

    def families(self) -> Iterator[Metric]:
        """Every series of `/metrics`."""
        scheduler = {
            "engine_type": "unified",
            "model_name": self._model,
            "moe_ep_rank": "0",
            "pp_rank": "0",
            "tp_rank": "0",
        }
        for name, value in self._gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", _HELP[name], labels=list(scheduler))
            gauge.add_metric(list(scheduler.values()), value)
            yield gauge
        tokens = {
            "prefill_compute": self._engine.prefill_tokens,
            "decode": self._engine.emitted_tokens,
        }
        moved = CounterMetricFamily(
            "sglang:realtime_tokens", "Tokens processed.", labels=["mode", *scheduler]
        )
        for mode, count in tokens.items():
            moved.add_metric([mode, *scheduler.values()], count)
        yield moved
        yield from self._finished.families(self._model, self._engine.request_steps)


class _Page(Collector):
    def __init__(self, surface: Surface) -> None:
        self._surface = surface

    def collect(self) -> Iterator[Metric]:
        return self._surface.families()


_HELP = {
    "num_running_reqs": "The number of running requests.",
    "num_queue_reqs": "The number of requests in the waiting queue.",
    "num_used_tokens": "The number of used tokens.",
    "token_usage": "The token usage.",
    "gen_throughput": "The generation throughput (token/s).",
    "cache_hit_rate": "The prefix cache hit rate.",
    "spec_accept_length": "Mean acceptance length of speculative decoding.",
    "spec_accept_rate": "Speculative acceptance rate (accepted drafts / proposed drafts in batch).",
    "spec_num_steps": "Currently active speculative_num_steps.",
    "spec_num_draft_tokens": "Currently active speculative_num_draft_tokens.",
    "max_total_num_tokens": "Maximum total number of tokens in the KV cache pool.",
    "num_retracted_reqs": "The number of retracted requests.",
}


class _Finished:
    """Counters and latencies of the requests that ended."""

    def __init__(self) -> None:
        self._counts = {"num_requests": 0, "prompt_tokens": 0, "generation_tokens": 0}
        first = (0.0, 0.001, 0.005, 0.01, 0.05, *_LATENCY_BUCKETS)
        self._latencies = {
            "time_to_first_token_seconds": _Histogram(first),
            "e2e_request_latency_seconds": _Histogram((*_LATENCY_BUCKETS, 600, 1200, 1800, 2400)),
            "request_time_per_output_token_seconds": _Histogram(_LONG_TOKEN_BUCKETS),
            "inter_token_latency_seconds": _Histogram(_LONG_TOKEN_BUCKETS),
        }

    def add(self, request: Request) -> None:
        if request.first_token_s is None or request.finish_s is None:
            return
        self._counts["num_requests"] += 1
        self._counts["prompt_tokens"] += request.prompt_tokens
        self._counts["generation_tokens"] += request.output_tokens
        ttft_s = request.first_token_s - request.arrival_s
        self._latencies["time_to_first_token_seconds"].observe(ttft_s)
        e2e_s = request.finish_s - request.arrival_s
        self._latencies["e2e_request_latency_seconds"].observe(e2e_s)
        gaps = request.output_tokens - 1
        if gaps > 0:
            tpot_s = (request.finish_s - request.first_token_s) / gaps
            self._latencies["request_time_per_output_token_seconds"].observe(tpot_s)
            # SGLang spreads the gap between two results evenly over the tokens in it; so do we, per request.
            self._latencies["inter_token_latency_seconds"].observe(tpot_s, gaps)

    def families(self, model: str, verify_calls: int) -> Iterator[Metric]:
        labels = {"engine_type": "unified", "is_streaming": "false", "model_name": model}
        for name, count in self._counts.items():
            counter = CounterMetricFamily(f"sglang:{name}", f"{name}.", labels=list(labels))
            counter.add_metric(list(labels.values()), count)
            yield counter
        verify = CounterMetricFamily(
            "sglang:spec_verify_calls", "Verification calls.", labels=["engine_type", "model_name"]
        )
        verify.add_metric(["unified", model], verify_calls)
        yield verify
        for name, histogram in self._latencies.items():
            family = HistogramMetricFamily(f"sglang:{name}", f"{name}.", labels=list(labels))
            family.add_metric(list(labels.values()), histogram.buckets(), histogram.total)
            yield family


def server_info(engine: VirtualEngine, model: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The body of `GET /server_info`: the launch flags that matter, and that this is a simulation."""
    deepest = max(depth for depth, _ in engine.arms)
    config = engine.config
    internal = {
        "max_running_requests": config.max_running_requests,
        "effective_max_running_requests_per_dp": config.max_running_requests,
        "memory_usage": {"token_capacity": config.kv_tokens},
    }
    return {
        "model_path": model,
        "served_model_name": model,
        "device": "simulated",
        "simulated_from": dict(about),
        "attention_backend": about.get("attention_backend"),
        "tp_size": 1,
        "dp_size": 1,
        "enable_dp_attention": False,
        "enable_metrics": True,
        "disable_overlap_schedule": False,
        "max_running_requests": config.max_running_requests,
        "chunked_prefill_size": config.chunked_prefill_tokens,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": f"{model}-draft",
        "speculative_num_steps": deepest,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": deepest + 1,
        "speculative_adaptive": True,
        "speculative_adaptive_config": None,
        "internal_states": [internal],
        "version": SGLANG_VERSION,
    }
