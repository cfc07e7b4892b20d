"""The curves of a list of experiments: held-out and training loss over the tokens trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.telemetry.plots import GREY, INKS, frame, save
from launcher.suite_results import Array, Row
from launcher.suite_state import COMPLETED

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

POINTS = 200  # to which curves of several seeds are brought
DOTS = 30  # evaluations up to which each is marked


def plot_curves(found: Sequence[Row], out: Path) -> Path:
    """Draw all experiments into `out`, a .png, .svg or .pdf."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    figure = Figure(figsize=(11, 8.5), dpi=130, layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    kinds = {"lm_eval": "Held-out loss", "lm_step": "Training loss, mean between lines"}
    for axes, (kind, title) in zip(panels, kinds.items(), strict=True):
        for number, row in enumerate(found):
            _draw(axes, row, kind, number)
        frame(axes, title)
        axes.set_ylabel("nats per token")
        _zoom(axes, found, kind)
    panels[1].set_xlabel("tokens trained on")
    panels[1].xaxis.set_major_formatter(counted)
    entries: dict[str, Any] = {"loc": "outside right upper", "frameon": False, "fontsize": 9}
    handles, labels = panels[1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, **entries)
    return save(figure, out)


def counted(value: float, position: float | None = None) -> str:
    """A number of tokens in short: 3.2M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _draw(axes: Axes, row: Row, kind: str, number: int) -> None:
    """The mean over seeds, and around it a band from the lowest to the highest."""
    # experiments beyond the colours take them again, dashed
    ink: dict[str, Any] = {"color": INKS[number % len(INKS)], "linewidth": 1.7}
    ink["linestyle"] = ("-", "--", ":", "-.")[number // len(INKS) % 4]
    done = all(trial.state.status == COMPLETED for trial in row.trials)
    name = row.name if done else f"{row.name}: {row.status()}"
    curves = [c for c in (trial.curve(kind) for trial in row.trials) if len(c[0])]
    if not curves:
        axes.plot([], [], label=name, **ink)
        return
    x, values = common(curves)
    marker = "o" if kind == "lm_eval" and len(x) <= DOTS else ""
    axes.plot(x, values.mean(0), label=name, marker=marker, markersize=3, **ink)
    if len(values) > 1:
        low, high = values.min(0), values.max(0)
        axes.fill_between(x, low, high, color=ink["color"], alpha=0.15, linewidth=0)


def common(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Tokens [n] and losses [S, n] of S seeds over the part that all of them have."""
    first = curves[0][0]
    if all(np.array_equal(x, first) for x, _ in curves):
        return first, np.stack([y for _, y in curves])
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    x = np.linspace(start, max(start, end), POINTS)
    return x, np.stack([np.interp(x, *curve) for curve in curves])


def _zoom(axes: Axes, found: Sequence[Row], kind: str) -> None:
    """Keep a curve that shoots up from flattening the others; where it leaves is still seen."""
    done = [t for row in found for t in row.trials if t.state.status == COMPLETED]
    losses = [y for y in (t.curve(kind)[1] for t in done) if len(y)]
    if not losses:
        return
    low, high = min(y.min() for y in losses), max(y.max() for y in losses)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low) + 1e-9)
    top = max(line.get_ydata().max(initial=0) for line in axes.get_lines())  # type: ignore[union-attr]
    if top > axes.get_ylim()[1]:
        words: dict[str, Any] = {"ha": "right", "va": "top", "color": GREY, "fontsize": 8.5}
        axes.text(0.99, 0.97, "some curves leave the picture", transform=axes.transAxes, **words)
