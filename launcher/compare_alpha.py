"""A comparison over alpha as a figure for a paper: mean accuracy and its spread, a line a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.telemetry.plots import COLOURS, frame, plain_text, save
from launcher.compare import BEST, OWN, Group, mean_and_std

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

MARKERS = "os^DvPX"
APART = 1.05  # factor between the lines of two rows, so that error bars stand beside each other
COLUMN = (3.5, 2.6)  # inches: a column of a page with two

Point = tuple[float, float, float]
"""alpha, mean and sample standard deviation (0 of one seed) in percent."""


def curves(groups: Sequence[Group], readout: str) -> dict[str, list[Point]]:
    """The points of each row, alpha rising; empty unless the groups differ in alpha alone."""
    alphas = [_alpha(group) for group in groups]
    others = {group.data.replace(f"alpha {alpha:g}", "") for group, alpha in _dealt(groups)}
    if len(set(alphas)) < 2 or None in alphas or len(others) > 1:
        return {}
    found: dict[str, list[Point]] = {}
    for group, alpha in sorted(_dealt(groups), key=lambda pair: pair[1]):
        for row in group.rows:
            mean, std = mean_and_std(row.accuracy(readout))
            if mean is not None:
                point = (alpha, 100 * mean, 100 * (std or 0.0))
                found.setdefault(row.label, []).append(point)
    return found


def _alpha(group: Group) -> float | None:
    """The Dirichlet parameter of its partition; None for another kind of partition."""
    data = group.rows[0].results[0].cell.config.data
    return data.alpha if data.partition == "dirichlet" else None


def _dealt(groups: Sequence[Group]) -> list[tuple[Group, float]]:
    return [(group, alpha) for group in groups if (alpha := _alpha(group)) is not None]


def plot_over_alpha(groups: Sequence[Group], readout: str, out: Path) -> Path | None:
    """Draw accuracy over alpha (log scale) with error bars: `out`; None where nothing can be."""
    lines = curves(groups, readout)
    if not lines:
        return None
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    figure = Figure(figsize=COLUMN, dpi=200, layout="constrained")
    axes = figure.subplots()
    for number, (label, points) in enumerate(lines.items()):
        beside = APART ** (number - (len(lines) - 1) / 2)
        _draw(axes, label, [(alpha * beside, *rest) for alpha, *rest in points], number)
    _dress(axes, sorted({point[0] for points in lines.values() for point in points}), readout)
    return save(figure, out)


def _draw(axes: Axes, label: str, points: Sequence[Point], number: int) -> None:
    alpha, mean, std = zip(*points, strict=True)
    axes.errorbar(
        alpha,
        mean,
        yerr=std,
        label=plain_text(label),
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
    )


def _dress(axes: Axes, alphas: Sequence[float], readout: str) -> None:
    frame(axes, "", grid="y")
    axes.set_xscale("log")
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.minorticks_off()
    axes.set_xlabel("Dirichlet α", fontsize=8)
    words = {OWN: "", BEST: ", best read-out"}.get(readout, f", {readout.replace('_', ' ')}")
    axes.set_ylabel(f"test accuracy{words} (%)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
