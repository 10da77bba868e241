"""The two dashboards: one pod, and a fleet."""

from __future__ import annotations

import json
from collections.abc import Iterable

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from controller.benefit import Reference
from deploy.generate.panels import SOURCE, Frame, Query, figure, lines, rows, states

POD = '{instance="$instance"}'
W = "$__rate_interval"
POSITIONS = (1, 2, 3, 4)
DEEPEST = 64
STATE_MARKS = ((None, "transparent"), (1.0, "orange"))
DEPTH_MARKS = (
    (None, "#64717d"),
    (1.0, "#2a9d8f"),
    (2.0, "#1c7ea6"),
    (3.0, "#3a5fc0"),
    (4.0, "#6a45b8"),
    (5.0, "#9b2f9b"),
)
GAIN_MARKS = ((None, "red"), (-0.02, "text"), (0.02, "green"))


def dashboards() -> dict[str, models.Dashboard]:
    """By file name, without ending."""
    return {"specgov-pod": pod(), "specgov-fleet": fleet()}


def to_json(made: models.Dashboard) -> str:
    """As it is committed."""
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def pod() -> models.Dashboard:
    """Everything about one engine and its sidecar."""
    made = _new("specgov: one pod", "specgov-pod", "What one sidecar sees, decides and brings about.")
    instances = (
        dashboard.QueryVariable("instance")
        .label("Pod")
        .datasource(SOURCE)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    made = made.with_variable(
        instances.query("label_values(specgov_build_info, instance)").refresh(
            models.VariableRefresh.ON_TIME_RANGE_CHANGED
        )
    )
    for name, colour, expr in ANNOTATIONS:
        made = made.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(colour)
            .expr(expr)
        )
    for title, panels in (
        ("Now", _now()),
        ("Load and depth", _load_and_depth()),
        ("Throughput and what governing brought", _throughput()),
        ("Decisions", _decisions()),
        ("The sidecar itself", _itself()),
    ):
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    return made.build()


ANNOTATIONS = (
    ("Schedule changed", "purple", f"changes(specgov_schedule_switches_total{POD}[{W}]) > 0"),
    ("Override in force", "orange", f"specgov_override_active{POD} == 1"),
    ("Engine restarted", "red", f"changes(specgov_engine_restarts_total{POD}[{W}]) > 0"),
)
"""Name, colour and expression.  Events: they may well have no data."""


def _new(title: str, uid: str, text: str) -> dashboard.Dashboard:
    source = dashboard.DatasourceVariable("datasource").label("Source").type("prometheus")
    made = dashboard.Dashboard(title).uid(uid).description(text).tags(["specgov", "sglang"]).readonly()
    made = made.time("now-1h", "now").refresh("30s").timezone("browser").with_variable(source)
    return made.tooltip(models.DashboardCursorSync.CROSSHAIR)


def _gain(reference: str, window: str, matcher: str = POD, by: str = "") -> str:
    """Tokens more than the reference would have emitted, as a share of the reference's."""
    one = matcher.replace("}", f', against="{reference}"}}') if matcher else f'{{against="{reference}"}}'
    total = f"sum {by}" if by else "sum"
    compared = f"{total}(increase(specgov_compared_tokens_total{one}[{window}]))"
    return f"{compared} / ({total}(increase(specgov_reference_tokens_total{one}[{window}])) > 0) - 1"


def _gain_error(reference: str, window: str) -> str:
    one = POD.replace("}", f', against="{reference}"}}')
    error = f"sum(increase(specgov_reference_error_tokens_total{one}[{window}]))"
    return f"{error} / (sum(increase(specgov_reference_tokens_total{one}[{window}])) > 0)"


def _now() -> Iterable[object]:
    small = {"span": 4, "height": 4}
    yield figure(
        Frame("Mode", "What the operator wants.", **small),
        Query(f"specgov_mode{POD} == 1", "{{mode}}"),
        as_name=True,
    )
    yield figure(
        Frame("Depth in use", "Of the latest decode step; 0: no speculation.", **small),
        Query(f"specgov_depth_in_use{POD}"),
        marks=DEPTH_MARKS,
    )
    yield figure(
        Frame("Effect", "How far the wanted plan has come.", **small),
        Query(f"specgov_effect{POD} == 1", "{{effect}}"),
        as_name=True,
    )
    yield figure(
        Frame("Lease", "Whose plan the engine follows.", **small),
        Query(f"specgov_lease_state{POD} == 1", "{{state}}"),
        as_name=True,
    )
    for reference, title in (
        (Reference.ALWAYS_ON, "Against always on"),
        (Reference.ALWAYS_OFF, "Against always off"),
    ):
        text = "Tokens more than that would have emitted in the time shown. See docs/grafana.md."
        yield figure(
            Frame(title, text, unit="percentunit", decimals=1, **small),
            Query(_gain(reference, "$__range")),
            marks=GAIN_MARKS,
        )


def _load_and_depth() -> Iterable[object]:
    yield lines(
        Frame("Load", "Requests over all DP ranks; batch size: of the fullest rank.", unit="short"),
        Query(f"specgov_running_requests{POD}", "running"),
        Query(f"specgov_queue_requests{POD}", "waiting"),
        Query(f"specgov_batch_size{POD}", "batch size"),
        least=0,
    )
    yield lines(
        Frame("Depth in use", "Draft tokens per step of the latest decode step; 0: no speculation."),
        Query(f"specgov_depth_in_use{POD}", "depth"),
        stepped=True,
        least=0,
    )
    yield states(
        Frame("Schedule in force", "Depth by batch size (the bucket's smallest). Grey: off.", height=11),
        Query(f"sort(specgov_schedule_depth{POD})", "{{batch_bucket}}"),
        marks=DEPTH_MARKS,
    )
    yield lines(
        Frame("Decode steps by depth", "What was really run, per second.", height=11, unit="ops"),
        Query(
            f"sum by (depth, gear) (rate(specgov_engine_steps_total{POD}[{W}]))", "depth {{depth}} {{gear}}"
        ),
        stacked=True,
        least=0,
    )


def _throughput() -> Iterable[object]:
    yield lines(
        Frame(
            "Output tokens per second",
            "All DP ranks. Predicted: what the policy expects in decode steps, prefill left out.",
            unit="short",
        ),
        Query(f"sum(rate(specgov_engine_tokens_total{POD}[{W}]))", "emitted"),
        Query(f"specgov_predicted_decode_tokens_per_second{POD}", "predicted"),
        least=0,
    )
    against = [
        Query(expr, legend)
        for reference, name in ((Reference.ALWAYS_ON, "always on"), (Reference.ALWAYS_OFF, "always off"))
        for expr, legend in (
            (_gain(reference, "1h"), f"against {name}"),
            (f"{_gain(reference, '1h')} - {_gain_error(reference, '1h')}", f"against {name}, less its error"),
        )
    ]
    yield lines(
        Frame(
            "What governing brought",
            "Over the hour before, by measured speeds; below 0: it cost. Only at batch sizes at which the "
            "other choice ran too; see docs/grafana.md.",
            unit="percentunit",
        ),
        *against,
    )
    depth = f"sum by (depth, gear) (rate(specgov_engine_timed_seconds_total{POD}[{W}]))"
    steps = f"(sum by (depth, gear) (rate(specgov_engine_timed_steps_total{POD}[{W}])) > 0)"
    yield lines(
        Frame(
            "Time of a decode step", "Clean intervals only: no prefill, switch or idle gap between.", unit="s"
        ),
        Query(f"{depth} / {steps}", "depth {{depth}} {{gear}}"),
        least=0,
    )
    yield lines(
        Frame(
            "Acceptance by position",
            "Share of drafts that reached a position and were accepted there or beyond.",
            unit="percentunit",
        ),
        *(Query(_survival(position), f"position {position}") for position in POSITIONS),
        least=0,
    )


def _survival(position: int) -> str:
    """Of request-steps at least `position` deep, the share with at least `position` accepted drafts."""
    deep = "|".join(str(depth) for depth in range(position, DEEPEST + 1))
    metric = "specgov_engine_accepted_drafts_total"
    accepted = f'sum(rate({metric}{{instance="$instance", depth=~"{deep}", accepted=~"{deep}"}}[{W}]))'
    return f'{accepted} / (sum(rate({metric}{{instance="$instance", depth=~"{deep}"}}[{W}])) > 0)'


def _decisions() -> Iterable[object]:
    yield lines(
        Frame("Turns by reason", "Why each turn decided what it did.", unit="ops"),
        Query(f"sum by (action, reason) (rate(specgov_decisions_total{POD}[{W}]))", "{{action}}: {{reason}}"),
        stacked=True,
        least=0,
    )
    yield lines(
        Frame("Changes", "Of the schedule by the sidecar, and of the depth inside the engine, per hour."),
        Query(f"3600 * rate(specgov_schedule_switches_total{POD}[{W}])", "schedule"),
        Query(f"3600 * rate(specgov_engine_switches_total{POD}[{W}])", "depth, in the engine"),
        least=0,
    )
    yield lines(
        Frame("Probes", "Share of decode steps that were spent to learn.", unit="percentunit"),
        Query(
            f"rate(specgov_engine_probe_steps_total{POD}[{W}]) / "
            f"(rate(specgov_engine_decode_steps_total{POD}[{W}]) > 0)",
            "probes",
        ),
        least=0,
    )
    yield states(
        Frame("Conditions", "What is wrong or unusual; each has an entry in docs/runbook.md.", height=12),
        Query(f"specgov_condition{POD}", "{{condition}}"),
        marks=STATE_MARKS,
    )


def _itself() -> Iterable[object]:
    third = {"span": 8}
    yield lines(
        Frame("Age of what decisions rest on", "Load, and the engine's telemetry.", unit="s", **third),
        Query(f"specgov_signal_age_seconds{POD}", "{{signal}}"),
        least=0,
    )
    yield lines(
        Frame("Lease left", "At 0 the engine falls back.", unit="s", **third),
        Query(f"specgov_lease_left_seconds{POD}", "left"),
        least=0,
    )
    yield lines(
        Frame("Duration of a turn", "", unit="s", **third),
        *(
            Query(
                f"histogram_quantile({q}, "
                f"sum by (le) (rate(specgov_tick_duration_seconds_bucket{POD}[{W}])))",
                f"p{q * 100:g}",
            )
            for q in (0.5, 0.99)
        ),
        least=0,
    )
    yield lines(
        Frame("Requests to the engine", "Mean duration by endpoint.", unit="s", **third),
        Query(
            f"sum by (endpoint) (rate(specgov_scrape_duration_seconds_sum{POD}[{W}])) / "
            f"(sum by (endpoint) (rate(specgov_scrape_duration_seconds_count{POD}[{W}])) > 0)",
            "{{endpoint}}",
        ),
        least=0,
    )
    yield lines(
        Frame("Requests to the engine that failed", "Per second.", unit="ops", **third),
        Query(f"sum(rate(specgov_scrape_errors_total{POD}[{W}])) or vector(0)", "failed"),
        least=0,
    )
    yield lines(
        Frame("Restarts of the engine", "Since the sidecar started.", **third),
        Query(f"specgov_engine_restarts_total{POD}", "restarts"),
        stepped=True,
        least=0,
    )


MODEL = 'on (instance) group_left (model) specgov_engine_info{model=~"$model"}'
"""Gives a pod's series its model."""


PODS = (
    "specgov_depth_in_use * on (instance) group_left (model, sglang_version, attention_backend) "
    'specgov_engine_info{model=~"$model"}'
)


def _by_model(expr: str, how: str = "sum") -> str:
    return f"{how} by (model) ({expr} * {MODEL})"


def fleet() -> models.Dashboard:
    """All pods, by model."""
    made = _new("specgov: fleet", "specgov-fleet", "All governed pods, by model.")
    which = (
        dashboard.QueryVariable("model")
        .label("Model")
        .datasource(SOURCE)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )
    which = which.query("label_values(specgov_engine_info, model)").sort(models.VariableSort.ALPHABETICAL_ASC)
    made = made.with_variable(which.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED))
    for panel in _fleet_panels():
        made = made.with_panel(panel)
    return made.build()


def _fleet_panels() -> Iterable[object]:
    small = {"span": 4, "height": 4}
    condition = 'specgov_condition{{condition="{}"}}'
    yield figure(Frame("Pods", "With a sidecar.", **small), Query(f"count(specgov_build_info * {MODEL})"))
    yield figure(
        Frame("Governed", "The plan is seen at work.", **small),
        Query(f'sum(specgov_effect{{effect="applied"}} * {MODEL})'),
    )
    yield figure(
        Frame("Off", "Depth 0 in use.", **small), Query(f"sum((specgov_depth_in_use == bool 0) * {MODEL})")
    )
    yield figure(
        Frame("Overrides", "Pods on which an operator decides.", **small),
        Query(f"sum(specgov_override_active * {MODEL})"),
    )
    yield figure(
        Frame("Inert", "Control is wanted and has no effect.", **small),
        Query(f"sum({condition.format('inert')} * {MODEL})"),
        marks=((None, "text"), (1.0, "red")),
    )
    yield figure(
        Frame("Stale", "Decisions rest on old figures.", **small),
        Query(f"sum({condition.format('stale_input')} * {MODEL})"),
        marks=((None, "text"), (1.0, "orange")),
    )
    yield lines(
        Frame("Share of pods that are off", "By model; depth 0 in use.", unit="percentunit"),
        Query(_by_model("(specgov_depth_in_use == bool 0)", "avg"), "{{model}}"),
        least=0,
    )
    yield lines(
        Frame("Output tokens per second", "By model."),
        Query(_by_model(f"sum by (instance) (rate(specgov_engine_tokens_total[{W}]))"), "{{model}}"),
        stacked=True,
        least=0,
    )
    yield lines(
        Frame("Against always on", "Over the hour before, by model.", unit="percentunit"),
        Query(_model_gain(Reference.ALWAYS_ON), "{{model}}"),
    )
    yield lines(
        Frame("Against always off", "Over the hour before, by model.", unit="percentunit"),
        Query(_model_gain(Reference.ALWAYS_OFF), "{{model}}"),
    )
    yield lines(
        Frame("Changes of the schedule", "Per hour and pod, by model."),
        Query(_by_model(f"3600 * rate(specgov_schedule_switches_total[{W}])", "avg"), "{{model}}"),
        least=0,
    )
    yield lines(
        Frame("Conditions", "Pods in each; only those that occur.", unit="short"),
        Query(f"sum by (condition) (specgov_condition * {MODEL})", "{{condition}}"),
        stacked=True,
        least=0,
    )
    yield rows(
        Frame("Pods", "Model, versions and depth in use of each.", span=24, height=10),
        Query(PODS),
    )


def _model_gain(reference: str) -> str:
    def total(metric: str) -> str:
        of_pod = f'sum by (instance) (increase(specgov_{metric}_tokens_total{{against="{reference}"}}[1h]))'
        return f"sum by (model) ({of_pod} * {MODEL})"

    return f"{total('compared')} / ({total('reference')} > 0) - 1"
