"""All versions of the study in one picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import COLOURS, DASHED, STYLES, frame, save
from launcher.study.measure import ENSEMBLES, Version, Versions

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

Curve = Callable[[Version], tuple[Array, Array]]


def plot_overview(versions: Versions, out: Path) -> Path:
    """Draw lambda raw and effective, the losses, accuracy and prototype spread: `out`."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    figure = Figure(figsize=(10, 10.5), dpi=110, layout="constrained")
    panels = figure.subplots(3, 2, sharex=True)
    raw, effective, base, align, accuracy, spread = panels.flat
    _lines(raw, versions, _over_clients("lambda_raw"), "Raw λ, dashed: equilibrium")
    _lines(raw, versions, _over_clients("lambda_equilibrium"), dashed=True)
    _lines(effective, versions, _over_clients("lambda_effective"), "Effective λ, as used")
    _lines(base, versions, _over_clients("base_loss"), "Base loss B")
    _lines(align, versions, _over_clients("align_loss"), "Align loss A")
    _lines(accuracy, versions, _accuracy, "Test accuracy in %, mean of the three ensembles")
    _lines(spread, versions, _spread, "Prototype spread between clients")
    for axes in (raw, effective, align):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")
    for axes in panels[-1]:
        axes.set_xlabel("round")
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = effective.get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside upper left", "ncols": 7, "frameon": False}
    figure.legend(handles, labels, fontsize=9.5, **where)
    return save(figure, out)


def _lines(
    axes: Axes, versions: Versions, curve: Curve, title: str = "", dashed: bool = False
) -> None:
    """A line for each version; colour and, unless dashed, style tell them apart."""
    for number, (name, version) in enumerate(versions.items()):
        if version:
            own = STYLES[number % len(STYLES)]
            pen: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": name}
            width = 0.9 if dashed else 2.0
            style = DASHED if dashed else own
            axes.plot(*curve(version), linestyle=style, linewidth=width, **pen)
    if title:
        frame(axes, title)


def _over_clients(field: str) -> Curve:
    """Rounds, and the median over the clients of all runs."""

    def curve(version: Version) -> tuple[Array, Array]:
        rounds, _ = next(iter(version.values())).per_client(field)
        values = np.concatenate([run.per_client(field)[1] for run in version.values()], axis=1)
        return rounds, np.nanmedian(values, axis=1)

    return curve


def _accuracy(version: Version) -> tuple[Array, Array]:
    """Evaluated rounds, and the mean over seeds and ensemble read-outs in percent."""
    runs = list(version.values())
    values = [run.accuracy(name)[1] for run in runs for name in ENSEMBLES]
    return runs[0].accuracy(ENSEMBLES[0])[0], 100 * np.mean(values, axis=0)


def _spread(version: Version) -> tuple[Array, Array]:
    """Rounds, and the mean over seeds."""
    rounds = next(iter(version.values())).per_round("prototype_std")[0]
    return rounds, np.mean([r.per_round("prototype_std")[1] for r in version.values()], axis=0)
