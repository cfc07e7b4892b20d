"""Accuracy by read-out."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.telemetry.events import VALIDATION
from fedcore.telemetry.plots import (
    BLUE,
    draw_accuracy,
)
from launcher.report.draw import (
    Panel,
    Runs,
    each,
    inks,
    lines,
    picture,
)
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Stored
from launcher.words import percent


def readouts(runs: Runs) -> list[str]:
    """Names of the read-outs of any run."""
    return list(dict.fromkeys(name for run in runs for name in run.history.readouts()))


def own_readout(run: Stored) -> str | None:
    """The read-out that is reported as test accuracy."""
    return run.algorithm.readout if run.algorithm else None


def accuracy(runs: Runs) -> Section | None:
    """The report's section on accuracy by read-out; None if no run has any."""
    names = readouts(runs)
    if not names:
        return None
    if len(runs) == 1:
        panels = [Panel("Accuracy by read-out", "accuracy", each(runs, draw_accuracy), False)]
        source = picture(panels, "round", high=3.6)
    else:
        panels = [_of_readout(runs, name) for name in names]
        source = picture(panels, "round", across=3, high=2.3)
    about = (
        "Share of the test set that each read-out gets right: the ensembles of all clients, the "
        "averaged model, and clients alone (mean, worst, best). The same models, read differently. "
        "The algorithm's own read-out is marked *; it is the run's test accuracy."
    )
    if any(name.startswith(VALIDATION) for name in names):
        about += " Read-outs on validation are of samples that clients set aside of their own data."
    alt = f"accuracy over rounds: {', '.join(names)}"
    return Section(
        "accuracy", "Accuracy", about, [Picture(alt, source)], [_accuracies(runs, names)]
    )


def _of_readout(runs: Runs, name: str) -> Panel:
    curves = [run.history.accuracy(name) for run in runs]
    draw = lambda axes: lines(axes, curves, inks(runs), BLUE)  # noqa: E731 - it is the panel
    return Panel(name.replace("_", " "), "accuracy", draw, False)


def _accuracies(runs: Runs, names: Sequence[str]) -> Table:
    """The last and the best of each read-out and run."""
    titles = ["read-out", *(f"{_of(runs, run)}{w}" for run in runs for w in ("last", "best"))]
    rows = [[name.replace("_", " "), *_last_and_best(runs, name)] for name in names]
    words = "Of the last evaluated round, and of the best one (its number). *: the own read-out."
    return Table(titles, rows, words)


def _of(runs: Runs, run: Stored) -> str:
    return f"{run.name}: " if len(runs) > 1 else ""


def _last_and_best(runs: Runs, name: str) -> list[str]:
    cells = []
    for run in runs:
        rounds, values = run.history.accuracy(name)
        if not len(values):
            cells += ["-", "-"]
            continue
        best = int(values.argmax())
        mark = " *" if name == own_readout(run) else ""
        cells += [percent(values[-1]) + mark, f"{percent(values[best])} ({rounds[best]:.0f})"]
    return cells
