"""What SGLang's endpoints say, as records.  Pure: text and JSON in, records out, nothing fetched.

Absent, negative, NaN, infinite and renamed values are `None` and are listed in `problems`, never 0.
`sglang:spec_accept_rate` and `sglang:spec_accept_length` are not read at all: at depth 0 they say 0 and 1,
and in a window with a switch they are wrong; acceptance comes from the hook's own counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from controller.reading import mapping, number, rows, text, whole

GAUGES = {
    "sglang:num_running_reqs": "running_reqs",
    "sglang:num_queue_reqs": "queue_reqs",
    "sglang:num_used_tokens": "context_tokens",
    "sglang:token_usage": "token_usage",
}
"""Gauges of `/metrics` that stand in for `/v1/loads`, and the field of `RankLoad` that each fills."""
PROGRESS = "sglang:realtime_tokens_total"
"""Moves whenever the gauges are refreshed under load."""
MAX_LINES = 4096
"""Series that are read at most: 4 gauges of 256 DP ranks and their progress counters fit twice."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The load of one DP rank."""

    dp_rank: int
    running_reqs: int | None = None
    queue_reqs: int | None = None
    context_tokens: int | None = None
    """Tokens that running requests hold in the KV pool."""
    token_usage: float | None = None
    """Share of the KV pool in use, 0..1."""
    max_running_reqs: int | None = None
    age_s: float | None = None
    """Age when it was sent, by the engine's own clock; `None`: the source has no timestamp."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The load as one endpoint gave it."""

    source: Literal["loads", "metrics"]
    ranks: tuple[RankLoad, ...]
    problems: tuple[str, ...] = ()
    """What was absent or unsound, e.g. `dp_rank 1: num_running_reqs`."""
    accelerator: str | None = None
    """From `/v1/loads`: name of the GPU."""
    progress: float | None = None
    """From `/metrics`: a counter that moves with the gauges."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What `/server_info` says about how the server was started; `None`: it does not say."""

    version: str | None = None
    model: str | None = None
    draft_model: str | None = None
    speculative_algorithm: str | None = None
    """`None` when speculation is off."""
    topk: int | None = None
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    adaptive: bool | None = None
    adaptive_config: str | None = None
    overlap_disabled: bool | None = None
    metrics_enabled: bool | None = None
    attention_backend: str | None = None
    tp_size: int | None = None
    dp_size: int | None = None
    max_running_reqs: int | None = None
    dp_attention: bool | None = None
    pp_size: int | None = None
    tokenizer_workers: int | None = None
    frontend: str | None = None
    """What serves HTTP: `python` or another; releases before 0.5.21 do not say."""
    disaggregation: str | None = None
    """`prefill` or `decode`; `None` when the server does both, or does not say."""


def parse_loads(body: Any) -> LoadSample | None:
    """`GET /v1/loads`; `None` when it is not that."""
    loads = rows(mapping(body).get("loads"))
    if not loads:
        return None
    sent_s = _unix(mapping(body).get("timestamp"))
    problems: list[str] = []
    ranks: dict[int, RankLoad] = {}
    for i, load in enumerate(loads):
        rank = whole(load.get("dp_rank"))
        if rank is None:
            problems.append(f"loads[{i}]: dp_rank")
        elif rank in ranks:
            problems.append(f"dp_rank {rank}: twice")
            ranks[rank] = RankLoad(rank)
        else:
            ranks[rank] = _rank_load(rank, load, sent_s, problems)
    accelerator = text(mapping(body).get("accelerator"), 100)
    return LoadSample("loads", tuple(ranks.values()), tuple(problems), accelerator) if ranks else None


def _rank_load(rank: int, load: Mapping[str, Any], sent_s: float | None, problems: list[str]) -> RankLoad:
    fields = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_running_requests")
    running, queue, used, most = (whole(load.get(field)) for field in fields)
    usage, taken_s = number(load.get("token_usage")), number(load.get("timestamp"))
    read = zip(
        (*fields, "token_usage", "timestamp"), (running, queue, used, most, usage, taken_s), strict=True
    )
    problems += [f"dp_rank {rank}: {name}" for name, value in read if value is None]
    age_s = max(0.0, sent_s - taken_s) if sent_s is not None and taken_s is not None else None
    return RankLoad(rank, running, queue, used, usage, most, age_s)


def _unix(stamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def parse_metrics(exposition: str) -> LoadSample | None:
    """The gauges of `/metrics` that stand in for `/v1/loads`; `None` when none is there."""
    wanted = (*GAUGES, PROGRESS)
    lines = [line for line in exposition.splitlines() if line.startswith(wanted)]
    problems = [f"more than {MAX_LINES} series"] if len(lines) > MAX_LINES else []
    ranks: dict[int, dict[str, float | None]] = {}
    progress: float | None = None
    for line in lines[:MAX_LINES]:
        sample = _sample(line)
        if sample is None:
            problems.append(f"unreadable line: {line[:80]}")
            continue
        name, labels, raw = sample
        value = number(raw)
        if name == PROGRESS:
            progress = (progress or 0.0) + (value or 0.0)
        elif name in GAUGES:
            _keep(ranks, _dp_rank(labels), GAUGES[name], value, problems)
    if not ranks:
        return None
    problems += [f"{name}: absent" for name in GAUGES if not any(GAUGES[name] in r for r in ranks.values())]
    loads = tuple(_from_gauges(r, ranks[r]) for r in sorted(ranks))
    return LoadSample("metrics", loads, tuple(problems), progress=progress)


def _sample(line: str) -> tuple[str, Mapping[str, str], float] | None:
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                return sample.name, sample.labels, sample.value
    except (ValueError, IndexError, KeyError):
        return None
    return None


def _dp_rank(labels: Mapping[str, str]) -> int:
    rank = labels.get("dp_rank", "0")
    return int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 7 else 0


def _keep(
    ranks: dict[int, dict[str, float | None]], rank: int, field: str, value: float | None, problems: list[str]
) -> None:
    """Keep `value` unless the rank already gave another one: TP and PP ranks repeat the same figure."""
    kept = ranks.setdefault(rank, {})
    if value is None:
        problems.append(f"dp_rank {rank}: {field}")
    if field in kept and kept[field] != value:
        problems.append(f"dp_rank {rank}: {field} twice, {kept[field]} and {value}")
        value = None
    kept[field] = value


def _from_gauges(rank: int, values: Mapping[str, float | None]) -> RankLoad:
    return RankLoad(
        rank,
        running_reqs=whole(values.get("running_reqs")),
        queue_reqs=whole(values.get("queue_reqs")),
        context_tokens=whole(values.get("context_tokens")),
        token_usage=values.get("token_usage"),
    )


def parse_server_info(body: Any) -> ServerInfo | None:
    """`GET /server_info`; `None` when it is not that.  Keys and paths in it are not taken over."""
    info = mapping(body)
    if "speculative_algorithm" not in info and "version" not in info:
        return None
    return ServerInfo(
        version=text(info.get("version"), 64),
        model=text(info.get("served_model_name"), 200),
        draft_model=text(info.get("speculative_draft_model_path")),
        speculative_algorithm=text(info.get("speculative_algorithm"), 64),
        topk=whole(info.get("speculative_eagle_topk")),
        num_steps=whole(info.get("speculative_num_steps")),
        num_draft_tokens=whole(info.get("speculative_num_draft_tokens")),
        adaptive=_boolean(info.get("speculative_adaptive")),
        adaptive_config=text(info.get("speculative_adaptive_config")),
        overlap_disabled=_boolean(info.get("disable_overlap_schedule")),
        metrics_enabled=_boolean(info.get("enable_metrics")),
        attention_backend=text(info.get("attention_backend"), 64),
        tp_size=whole(info.get("tp_size")),
        dp_size=whole(info.get("dp_size")),
        max_running_reqs=whole(info.get("max_running_requests")),
        dp_attention=_dp_attention(info),
        pp_size=whole(info.get("pp_size")),
        tokenizer_workers=whole(info.get("tokenizer_worker_num")),
        frontend=text(info.get("frontend"), 64),
        disaggregation=mode if (mode := text(info.get("disaggregation_mode"), 64)) != "null" else None,
    )


def _dp_attention(info: Mapping[str, Any]) -> bool | None:
    """Since 0.5.22 the size decides; before there is only the flag."""
    size = whole(info.get("attn_dp_size"))
    return True if size is not None and size > 1 else _boolean(info.get("enable_dp_attention"))


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
