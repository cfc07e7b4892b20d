"""Panels in the house style: what a reading means stands beside it, and the runbook one click on.

Thin shorthands for the builders of grafana-foundation-sdk; what they say of a panel in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models import common as choices
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)

DOCS = "/public/fedcore-docs"
"""Where the folder docs/ is to be read; deploy/compose.yml has Grafana itself serve it."""

SOURCE = DataSourceRef("prometheus", "${datasource}")
GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "text"
STATUSES = {"running": BLUE, "completed": GREEN, "stopped": YELLOW, "diverged": RED, "failed": RED}
"""Statuses of a run and their colours, in the order of their numbers from 1 on."""

Steps = dict[float, str]
"""Colours from a value on. Below the first it is green."""

Panel = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel


@dataclass(frozen=True)
class Query:
    """An expression and what its lines are called."""

    expr: str
    legend: str = ""


def lines(
    title: str,
    meaning: str,
    *queries: Query,
    unit: str = "short",
    width: int = 8,
    log: bool = False,
    zero: bool = True,
    steps: Steps | None = None,
    page: str = "operations.md#dashboards",
) -> timeseries.Panel:
    """Curves over time. zero: the axis begins at 0; steps: lines at limits that mean something."""
    panel = timeseries.Panel().height(8).line_width(1).fill_opacity(0).span_nulls(True)
    panel = panel.legend(_legend()).tooltip(_tooltip()).show_points(choices.VisibilityMode.AUTO)
    _common(panel, title, meaning, queries, unit, width, page)
    scale = common.ScaleDistributionConfig()
    if log:
        panel.scale_distribution(scale.type(choices.ScaleDistribution.LOG).log(10))
    elif zero:
        panel.axis_soft_min(0)
    if steps:
        dashed = choices.GraphTresholdsStyleMode.DASHED
        panel.thresholds(thresholds(steps, below=GREY))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(dashed))
    return panel


def number(
    title: str,
    meaning: str,
    *queries: Query,
    unit: str = "short",
    width: int = 3,
    steps: Steps | None = None,
    page: str = "operations.md#dashboards",
) -> stat.Panel:
    """The last reading in large letters, of a run that is over too."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = stat.Panel().height(4).reduce_options(last).graph_mode(choices.BigValueGraphMode.NONE)
    panel = panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    _common(panel, title, meaning, queries, unit, width, page)
    colour = choices.BigValueColorMode.VALUE if steps else choices.BigValueColorMode.NONE
    return panel.color_mode(colour).thresholds(thresholds(steps or {}))


def bars(
    title: str,
    meaning: str,
    *queries: Query,
    unit: str,
    steps: Steps,
    width: int = 8,
    page: str = "operations.md#dashboards",
) -> bargauge.Panel:
    """A bar for each line's last reading, from 0 to 1."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = bargauge.Panel().height(8).reduce_options(last).min(0).max(1)
    panel = panel.orientation(choices.VizOrientation.HORIZONTAL)
    panel = panel.display_mode(choices.BarGaugeDisplayMode.BASIC).thresholds(thresholds(steps))
    panel = panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    _common(panel, title, meaning, queries, unit, width, page)
    return panel


def rows(
    title: str,
    meaning: str,
    columns: dict[str, str],
    *queries: Query,
    width: int = 24,
    height: int = 8,
    page: str = "operations.md#dashboards",
) -> table.Panel:
    """Queries of one moment joined into a table. columns: what a label, or `Value #A` of the first
    query, is called; what is not in it is left out."""
    panel = table.Panel().height(height).cell_height(choices.TableCellHeight.SM)
    _common(panel, title, meaning, (), "short", width, page)
    panel.targets([_target(q, i).instant().format("table") for i, q in enumerate(queries)])
    chosen = {"include": {"names": list(columns)}}
    order = {name: i for i, name in enumerate(columns)}
    organised = {"indexByName": order, "renameByName": columns, "excludeByName": {}}
    return (
        panel.with_transformation(DataTransformerConfig("merge", options={}))
        .with_transformation(DataTransformerConfig("filterFieldsByName", options=chosen))
        .with_transformation(DataTransformerConfig("organize", options=organised))
    )


def dashed(panel: timeseries.Panel, pattern: str, colour: str = GREY) -> timeseries.Panel:
    """The panel with lines whose names match dashed; the grey ones are not in the legend."""
    look = [
        DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 4]}),
        DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour}),
    ]
    if colour == GREY:
        hidden = {"legend": True, "tooltip": False, "viz": False}
        look.append(DynamicConfigValue("custom.hideFrom", hidden))
    return panel.override_by_regexp(f"/{pattern}/", look)


def band(panel: timeseries.Panel) -> timeseries.Panel:
    """The panel with the room between the lines `max` and `min` filled, and `median` strong."""
    edge = [
        DynamicConfigValue("custom.lineWidth", 0),
        DynamicConfigValue("color", {"mode": "fixed", "fixedColor": BLUE}),
    ]
    fill = [DynamicConfigValue("custom.fillBelowTo", "min"), *edge]
    fill.append(DynamicConfigValue("custom.fillOpacity", 20))
    strong = [DynamicConfigValue("custom.lineWidth", 2), edge[1]]
    panel.override_by_name("max", fill).override_by_name("min", edge)
    return panel.override_by_name("median", strong)


def thresholds(steps: Steps, below: str = GREEN) -> ThresholdsConfig:
    """Colours by value."""
    found = [Threshold(None, below), *(Threshold(v, c) for v, c in sorted(steps.items()))]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def status_names() -> ValueMap:
    """Numbers of statuses as words."""
    named = enumerate(STATUSES.items(), 1)
    return ValueMap({str(i): ValueMappingResult(s, c, index=i) for i, (s, c) in named})


def _common(
    panel: Panel,
    title: str,
    meaning: str,
    queries: Sequence[Query],
    unit: str,
    width: int,
    page: str,
) -> None:
    panel.title(title).datasource(SOURCE).span(width).unit(unit)
    panel.description(f"{meaning}\n\n[{page.partition('#')[0]}]({DOCS}/{page})")
    panel.targets([_target(query, i).range() for i, query in enumerate(queries)])


def _target(query: Query, index: int) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id("ABCDEFGHIJ"[index])
    return target.legend_format(query.legend or "__auto").datasource(SOURCE)


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(True).placement(choices.LegendPlacement.BOTTOM)
    return legend.display_mode(choices.LegendDisplayMode.LIST)


def _tooltip() -> common.VizTooltipOptions:
    tooltip = common.VizTooltipOptions().mode(choices.TooltipDisplayMode.MULTI)
    return tooltip.sort(choices.SortOrder.DESCENDING)
