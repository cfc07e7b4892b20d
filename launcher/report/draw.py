"""Figures of panels, inlined; a panel is a title, a unit and what draws into its axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from fedcore.telemetry.history import Array, History
from fedcore.telemetry.plots import BLUE, DOTS, GREY, Ink, dress, frame, plain_text, save, scale
from launcher.page import inlined
from launcher.report.stored import Stored

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Sequence[Stored]
POINTS = 15_000  # drawn in a figure, above which it is a PNG: it would be larger as an SVG
WIDE, HIGH = 9.6, 2.5  # inches: of a figure, and of a panel


@dataclass(frozen=True)
class Panel:
    """One panel of a figure."""

    title: str
    unit: str
    draw: Callable[[Axes], None]
    fits: bool = True  # its scale follows what is drawn: logarithmic over a wide range
    bottom: float | None = None  # where the scale begins, if it does not follow


def picture(
    panels: Sequence[Panel], x: str, *, across: int = 1, high: float = HIGH, alike: bool = False
) -> Markup:
    """The panels as one picture; x: what the shared axis counts. Across > 1: legends inside.

    alike: panels have the same vertical scale.
    """
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    across = min(across, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(WIDE, 0.5 + high * down), dpi=110, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=across == 1, sharey=alike)
    for panel, axes in zip(panels, grid.flat, strict=False):
        _fill(axes, panel, beside=across == 1)
        whole_numbers(axes)
        if across > 1 or panel is panels[-1]:
            axes.set_xlabel(x, fontsize=9)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    return as_image(figure)


def whole_numbers(axes: Axes) -> None:
    """Ticks of the x axis at whole numbers only."""
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True)


def _fill(axes: Axes, panel: Panel, beside: bool) -> None:
    title = plain_text(panel.title)  # the name of a run, perhaps
    panel.draw(axes)
    if panel.fits:
        scale(axes)
    if panel.bottom is not None:  # with room above a line that never moves
        top = axes.dataLim.y1  # not finite if nothing is drawn
        axes.set_ylim(panel.bottom, 1.06 * top if 0 < top < np.inf else 1.0)
    if beside:
        dress(axes, title, panel.unit)
        return
    frame(axes, title)
    axes.set_ylabel(panel.unit, fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def as_image(figure: Figure) -> Markup:
    """A data URI: SVG, or PNG if so much is drawn that it is the smaller one."""
    suffix = ".svg" if _points(figure) <= POINTS else ".png"
    return inlined(lambda out: save(figure, out), suffix)


def _points(figure: Figure) -> int:
    lines = (len(line.get_xdata()) for axes in figure.axes for line in axes.get_lines())  # type: ignore[arg-type]
    return sum(lines)


def line(
    axes: Axes, curve: tuple[Array, Array], colour: str, label: str | None = None, **pen: Any
) -> None:
    """A curve; few points of it are marked, so that a single one is seen."""
    x, y = curve
    marker = "o" if len(x) <= DOTS else ""
    look: dict[str, Any] = {"linewidth": 1.8, "marker": marker, "markersize": 3, **pen}
    axes.plot(x, y, color=colour, label=label, **look)


def lines(
    axes: Axes, curves: Sequence[tuple[Array, Array]], inks: Sequence[Ink], own: str, **pen: Any
) -> None:
    """The curve of each run, named if there are several."""
    for curve, ink in zip(curves, inks, strict=True):
        line(axes, curve, ink.of(own), ink.run if ink.colour else None, **pen)


def heat(axes: Axes, values: Array, write: str | None = None, **look: Any) -> Any:
    """A matrix as colours; write: the format of the numbers in its cells, if they have room."""
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **look)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    if write is not None:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                _write(axes, image, (row, column), value, write)
    return image


def _write(axes: Axes, image: Any, at: tuple[int, ...], value: float, form: str) -> None:
    """A number in its cell, white on dark."""
    red, green, blue, _ = image.cmap(image.norm(value))
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    axes.text(at[1], at[0], format(value, form), color="white" if dark else "#1f2328", **words)


def note(axes: Axes, words: str) -> None:
    """A grey remark in the corner."""
    look: dict[str, Any] = {"ha": "right", "va": "top", "color": GREY, "fontsize": 8.5}
    axes.text(0.99, 0.97, words, transform=axes.transAxes, **look)


# -- runs in the same axes


def inks(runs: Runs) -> list[Ink]:
    """A colour for each run; none for a run that is alone."""
    return Ink.each([run.name for run in runs])


def shared(runs: Runs) -> Ink:
    """For the legend entry of what all runs have."""
    return Ink("", GREY if len(runs) > 1 else None)


def name_runs(axes: Axes, runs: Runs) -> None:
    """Legend entries of the runs, if there are several."""
    for ink in inks(runs):
        if ink.colour:
            axes.plot([], [], color=ink.colour, linewidth=2.2, label=ink.run)


def each(runs: Runs, draw: Callable[[Axes, History, Ink], None]) -> Callable[[Axes], None]:
    """Draws every run's history into the same axes."""

    def all_of_them(axes: Axes) -> None:
        for run, ink in zip(runs, inks(runs), strict=True):
            draw(axes, run.history, ink)
        name_runs(axes, runs)

    return all_of_them


def over_rounds(runs: Runs, field: str, own: str = BLUE) -> Callable[[Axes], None]:
    """Draws one number a round of every run."""
    return lambda axes: lines(axes, [r.history.per_round(field) for r in runs], inks(runs), own)
