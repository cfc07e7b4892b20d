"""One panel drawn plainly: curves, numbers, bars, tables, with the units and colours of Grafana."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tests.deploy import boards, stack
from tests.deploy.boards import Moment, Panel

COLOURS = {"text": "#888888", "blue": "#1f60c4", "green": "#37872d", "yellow": "#e0a800"}
COLOURS |= {"red": "#c4162a"}


@dataclass(frozen=True)
class Source:
    """Whom to ask, for which variables and time."""

    stack: stack.Stack
    values: Mapping[str, str]
    moment: Moment

    def ask(self, target: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The series of a query."""
        return boards.ask(self.stack, target, self.values, self.moment)


def curves(axes: Axes, panel: Panel, source: Source) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    drawn: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    right = None
    for i, (name, times, values) in enumerate(_named(panel, source)):
        look = _look(panel, name)
        on = axes
        if look.get("custom.axisPlacement") == "right":
            on = right = right or axes.twinx()
            right.set_ylim(0, 1.05 * max(values))
            right.grid(visible=False)
        drawn[name] = (times, values)
        hidden = look.get("custom.hideFrom", {}).get("legend")
        fixed = look.get("color", {}).get("fixedColor")
        on.plot(
            times,
            values,
            color=COLOURS.get(fixed, fixed) or f"C{i % 10}",
            linestyle="--" if "custom.lineStyle" in look else "-",
            linewidth=0.6 * look.get("custom.lineWidth", custom["lineWidth"]) + 0.3,
            label="_" if hidden else name,
        )
    _fill(axes, panel, drawn)
    _scales(axes, defaults, custom)
    handles = [h for a in axes.figure.axes if a in (axes, right) for h in a.get_lines()]
    shown = [h for h in handles if not str(h.get_label()).startswith("_")]
    if shown:
        axes.legend(
            shown[:30],
            [h.get_label() for h in shown[:30]],
            loc="upper left",
            bbox_to_anchor=(-0.03, -0.09),
            ncols=min(len(shown), 8),
            fontsize=5.5,
            frameon=False,
            handlelength=1,
            columnspacing=0.8,
        )
    else:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color="#888888")


def _named(panel: Panel, source: Source) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, seconds since the start, values of each line."""
    found = []
    for target in panel["targets"]:
        for series in source.ask(target):
            points = np.array(series["values"], dtype=float)
            name = _called(target["legendFormat"], series["metric"])
            found.append((name, points[:, 0] - source.moment.start, points[:, 1]))
    return found


def _called(legend: str, labels: Mapping[str, str]) -> str:
    if legend == "__auto":
        return next(iter(labels.values()), "value")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), legend)


def _look(panel: Panel, name: str) -> dict[str, Any]:
    """What overrides say of a line."""
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"].get("overrides") or []:
        matcher = override["matcher"]
        pattern = matcher["options"].strip("/")
        hit = re.search(pattern, name) if matcher["id"] == "byRegexp" else pattern == name
        if hit:
            found |= {p["id"]: p["value"] for p in override["properties"]}
    return found


def _fill(axes: Axes, panel: Panel, drawn: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    for name, (times, values) in drawn.items():
        below = _look(panel, name).get("custom.fillBelowTo")
        if below in drawn:
            common, here, there = np.intersect1d(times, drawn[below][0], return_indices=True)
            low = drawn[below][1][there]
            axes.fill_between(common, low, values[here], alpha=0.2, linewidth=0)


def _scales(axes: Axes, defaults: Mapping[str, Any], custom: Mapping[str, Any]) -> None:
    log = custom.get("scaleDistribution", {}).get("type") == "log"
    axes.set_yscale("log" if log else "linear")
    if not log and "axisSoftMin" in custom:
        axes.set_ylim(bottom=min(0, min((min(h.get_ydata()) for h in axes.get_lines()), default=0)))
        axes.set_ylim(top=max(axes.get_ylim()[1], custom.get("axisSoftMax", 0)))
    if "max" in defaults:
        axes.set_ylim(top=defaults["max"])
    unit = "short" if defaults["unit"].startswith("si:") else defaults["unit"]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: words(v, unit)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    if "thresholdsStyle" in custom:
        for step in defaults["thresholds"]["steps"][1:]:
            axes.axhline(step["value"], color=COLOURS[step["color"]], linestyle=":", linewidth=1)


def _last(panel: Panel, source: Source) -> list[tuple[str, float]]:
    return [(name, values[-1]) for name, _, values in _named(panel, source)]


def stat(axes: Axes, panel: Panel, source: Source) -> None:
    axes.axis("off")
    found = _last(panel, source)
    plain = panel["options"]["colorMode"] == "none"
    for i, (name, value) in enumerate(found[:6]):
        text, colour = mapped(panel["fieldConfig"]["defaults"], value)
        colour = "#222222" if plain else colour
        text = text if len(found) == 1 else f"{name}  {text}"
        at = 0.5 if len(found) == 1 else 1 - (i + 0.7) / len(found[:6])
        size = 17 if len(found) == 1 else 9
        axes.text(0.5, at, text, size=size, color=colour, ha="center", va="center")
    if not found:
        axes.text(0.5, 0.5, "No data", ha="center", color="#888888")


def mapped(defaults: Mapping[str, Any], value: float) -> tuple[str, str]:
    """The words and the colour for a value."""
    for mapping in defaults.get("mappings") or []:
        if hit := mapping["options"].get(f"{value:g}"):
            return hit["text"], COLOURS[hit["color"]]
    steps = (defaults.get("thresholds") or {}).get("steps") or [{"color": "text"}]
    over = [s for s in steps[1:] if value >= s["value"]]
    colour = over[-1]["color"] if over else steps[0]["color"]
    return words(value, defaults["unit"], defaults.get("decimals")), COLOURS[colour]


def bars(axes: Axes, panel: Panel, source: Source) -> None:
    found = _last(panel, source)[::-1]
    names, values = zip(*found, strict=True) if found else ((), ())
    defaults = panel["fieldConfig"]["defaults"]
    axes.barh(names, values, color=[mapped(defaults, v)[1] for v in values], height=0.7)
    axes.set_xlim(0, 1)
    axes.tick_params(axis="y", labelsize=5.5)
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: words(v, defaults["unit"])))
    for i, value in enumerate(values):
        axes.text(value + 0.01, i, words(value, defaults["unit"]), va="center", size=6)


def table(axes: Axes, panel: Panel, source: Source) -> None:
    axes.axis("off")
    columns = next(t for t in panel["transformations"] if t["id"] == "organize")["options"]
    merged: dict[str, dict[str, str]] = {}
    for target in panel["targets"]:
        for series in source.ask(target):
            labels = series["metric"]
            joined = labels if "alertname" in labels else {"run": labels["run"]}
            row = merged.setdefault(str(sorted(joined.items())), {})
            row |= {**labels, f"Value #{target['refId']}": series["value"][1]}
    order = columns["indexByName"]
    names = {key: columns["renameByName"][key] for key in sorted(order, key=order.get)}
    if not merged:
        axes.text(0.5, 0.5, "No data", ha="center", color="#888888")
        return
    cells = [[_cell(panel, names[k], row.get(k, "")) for k in names] for row in merged.values()]
    text = [[text for text, _ in row] for row in cells]
    drawn = axes.table(text, colLabels=list(names.values()), loc="upper left", cellLoc="left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    drawn.auto_set_column_width(range(len(names)))
    for (row, column), cell in drawn.get_celld().items():
        cell.set(edgecolor="#dddddd", height=0.09)
        cell.get_text().set_color(cells[row - 1][column][1] if row else "#222222")


def _cell(panel: Panel, name: str, value: str) -> tuple[str, str]:
    """The words in a cell and their colour."""
    look = {"unit": "short", **_look(panel, name)}
    try:
        text, colour = mapped(look, float(value))
    except ValueError:
        return value, "#222222"
    return text, colour if "mappings" in look else "#222222"


def words(value: float, unit: str, decimals: int | None = None) -> str:
    """A value as Grafana writes it, nearly."""
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f}%"
    if unit == "s":
        for limit, name in ((3600, "h"), (60, "min")):
            if value >= 2 * limit:
                return f"{value / limit:.3g} {name}"
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    suffix = {"bytes": " B", "Bps": " B/s"}.get(
        unit, unit.removeprefix("si:") if ":" in unit else ""
    )
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{suffix.strip()}"
    return f"{value:.3g}{' ' if suffix else ''}{suffix.strip()}"


KINDS = {"timeseries": curves, "stat": stat, "bargauge": bars, "table": table}
"""What draws a panel of each type."""
