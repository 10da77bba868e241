"""Panels with this project's defaults, on top of Grafana's own builders."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a panel stands and what it says about itself.  24 columns; height in grid rows."""

    title: str
    text: str
    span: int = 12
    height: int = 8
    unit: str = "short"
    decimals: int | None = None


def _target(query: Query, ref: str, *, instant: bool = False) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).datasource(SOURCE)
    )
    return target.instant() if instant else target.range()


def _framed(panel, frame: Frame, queries: tuple[Query, ...], *, instant: bool = False):  # noqa: ANN001, ANN202
    panel = panel.title(frame.title).description(frame.text).span(frame.span).height(frame.height)
    panel = panel.unit(frame.unit).datasource(SOURCE)
    if frame.decimals is not None:
        panel = panel.decimals(frame.decimals)
    for i, query in enumerate(queries):
        panel = panel.with_target(_target(query, chr(ord("A") + i), instant=instant))
    return panel


def lines(
    frame: Frame, *queries: Query, stacked: bool = False, stepped: bool = False, least: float | None = None
) -> timeseries.Panel:
    """Lines over time; gaps stay gaps."""
    panel = _framed(timeseries.Panel(), frame, queries).line_width(1.5).fill_opacity(30 if stacked else 8)
    panel = panel.show_points(common_models.VisibilityMode.NEVER).span_nulls(False)
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    panel = panel.legend(legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True))
    mode = common_models.TooltipDisplayMode.MULTI
    panel = panel.tooltip(common.VizTooltipOptions().mode(mode).sort(common_models.SortOrder.DESCENDING))
    if least is not None:
        panel = panel.min(least)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if stepped:
        panel = panel.line_interpolation(common_models.LineInterpolation.STEP_AFTER)
    return panel


def figure(
    frame: Frame, query: Query, *, as_name: bool = False, marks: tuple[tuple[float | None, str], ...] = ()
) -> stat.Panel:
    """One figure now; `as_name`: the legend is what is shown, for states; `marks`: (from, colour)."""
    panel = _framed(stat.Panel(), frame, (query,), instant=True)
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    mode = common_models.BigValueTextMode.NAME if as_name else common_models.BigValueTextMode.VALUE
    panel = panel.reduce_options(reduce).text_mode(mode).graph_mode(common_models.BigValueGraphMode.NONE)
    if marks:
        steps = [models.Threshold(value=value, color=colour) for value, colour in marks]
        panel = panel.thresholds(
            dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    else:
        panel = panel.color_mode(common_models.BigValueColorMode.NONE)
    return panel


def states(frame: Frame, *queries: Query, marks: tuple[tuple[float | None, str], ...]) -> statetimeline.Panel:
    """Bands of states over time; `marks`: (from, colour)."""
    steps = [models.Threshold(value=value, color=colour) for value, colour in marks]
    panel = _framed(statetimeline.Panel(), frame, queries)
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    panel = panel.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    return panel.show_value(common_models.VisibilityMode.AUTO).row_height(0.9).merge_values(True)


def rows(frame: Frame, *queries: Query) -> table.Panel:
    """A table of the labels and the values now, one row per pod."""
    panel = table.Panel().title(frame.title).description(frame.text).span(frame.span).height(frame.height)
    panel = panel.datasource(SOURCE)
    for i, query in enumerate(queries):
        target = _target(query, chr(ord("A") + i), instant=True)
        panel = panel.with_target(target.format(prometheus_models.PromQueryFormat.TABLE))
    return panel
