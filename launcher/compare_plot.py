"""A comparison as a picture: a dot a seed and the mean, one panel for each group."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.telemetry.plots import BLUE, GREY, LINE, frame, save
from launcher.compare import BEST, OWN, Group, mean_and_std

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

MARKERS = "osD^vPX*"
ACROSS = 3  # panels beside each other


def plot_comparison(groups: Sequence[Group], readout: str, out: Path) -> Path:
    """Draw the accuracies of all rows: `out`, a .png, .svg or .pdf."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    across = min(len(groups), ACROSS)
    down = -(-len(groups) // across)
    rows = max(len(group.rows) for group in groups)
    size = (2.2 + 4.2 * across, 0.9 + down * (1.0 + 0.42 * rows))
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes, group in zip(grid.flat, groups, strict=False):
        _draw(axes, group, readout)
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    words = {OWN: "own read-out", BEST: "best read-out of each row"}.get(readout, readout)
    figure.suptitle(f"Test accuracy, {words}", fontsize=13, fontweight="bold", x=0.01, ha="left")
    _legend(figure, groups)
    return save(figure, out)


def _draw(axes: Axes, group: Group, readout: str) -> None:
    """Rows from the top down; a thin line joins what has the same seed, hence the same data."""
    accuracies = [row.accuracy(readout) for row in group.rows]
    for seed, marker in _markers(group).items():
        at = [(100 * a.get(seed, nan), y) for y, a in enumerate(accuracies)]
        axes.plot(*zip(*at, strict=True), color=LINE, linewidth=0.8, zorder=1)
        dot: dict[str, Any] = {"s": 26, "facecolor": "white", "edgecolor": GREY, "linewidth": 1.1}
        axes.scatter(*zip(*at, strict=True), marker=marker, zorder=2, **dot)
    for y, (row, values) in enumerate(zip(group.rows, accuracies, strict=True)):
        _mean(axes, y, mean_and_std(values)[0], "; ".join(row.troubles()))
    _dress(axes, group)


def _mean(axes: Axes, y: int, mean: float | None, troubles: str) -> None:
    """A thick mark and its number above it; for a row without a result, what became of it."""
    if mean is None:
        words: dict[str, Any] = {"fontsize": 8, "color": GREY, "va": "center"}
        axes.text(0.02, y, troubles, transform=axes.get_yaxis_transform(), **words)
        return
    axes.plot([100 * mean] * 2, [y - 0.22, y + 0.22], color=BLUE, linewidth=3.2, zorder=3)
    ink: dict[str, Any] = {"fontsize": 8.5, "color": BLUE, "fontweight": "bold"}
    axes.text(100 * mean, y - 0.26, f"{100 * mean:.1f}", ha="center", va="bottom", **ink)


def _markers(group: Group) -> dict[int, str]:
    seeds = sorted({r.cell.config.seed for row in group.rows for r in row.results})
    return {seed: MARKERS[i % len(MARKERS)] for i, seed in enumerate(seeds)}


def _dress(axes: Axes, group: Group) -> None:
    frame(axes, group.data, grid="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_yticks(range(len(group.rows)), [row.label for row in group.rows])
    axes.set_ylim(len(group.rows) - 0.5, -0.65)
    axes.set_xlabel("test accuracy in %")
    axes.margins(x=0.08)


def _legend(figure: Any, groups: Sequence[Group]) -> None:
    from matplotlib.lines import Line2D

    seeds = {seed: marker for group in groups for seed, marker in _markers(group).items()}
    pen: dict[str, Any] = {"color": GREY, "linestyle": "", "markerfacecolor": "white"}
    keys = [Line2D([], [], marker=m, label=f"seed {s}", **pen) for s, m in seeds.items()]
    keys.append(Line2D([], [], color=BLUE, linewidth=3.2, label="mean"))
    where: dict[str, Any] = {"loc": "outside lower left", "ncols": 9, "frameon": False}
    figure.legend(handles=keys, fontsize=8.5, **where)
