"""Sections of federated runs: accuracy, lambda, losses; None where one makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedcore.telemetry.history import Array, History, median, span
from fedcore.telemetry.plots import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    STYLES,
    Ink,
    draw_accuracy,
    draw_annealing,
    draw_clients,
    draw_losses,
    draw_raw,
    draw_spread,
)
from launcher.report.draw import Panel, line, lines, note, picture
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Stored
from launcher.words import number, percent

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

Runs = Sequence[Stored]
NEAR = 20.0  # times above what is drawn, up to which the limit of lambda is drawn as well


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


def readouts(runs: Runs) -> list[str]:
    """Names of the read-outs of any run."""
    return list(dict.fromkeys(name for run in runs for name in run.history.readouts()))


def own_readout(run: Stored) -> str | None:
    """The read-out that is reported as test accuracy."""
    return run.algorithm.readout if run.algorithm else None


# -- accuracy


def accuracy(runs: Runs) -> Section | None:
    """Test accuracy by read-out."""
    names = readouts(runs)
    if not names:
        return None
    if len(runs) == 1:
        panels = [Panel("Test accuracy by read-out", "accuracy", each(runs, draw_accuracy), False)]
        source = picture(panels, "round", high=3.6)
    else:
        panels = [_of_readout(runs, name) for name in names]
        source = picture(panels, "round", across=3, high=2.3)
    about = (
        "Share of the test set that each read-out gets right: the ensembles of all clients, the "
        "averaged model, and clients alone (mean, worst, best). The same models, read differently. "
        "The algorithm's own read-out is marked *; it is the run's test accuracy."
    )
    alt = f"test accuracy over rounds: {', '.join(names)}"
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


# -- lambda


def has_alignment(run: Stored) -> bool:
    """Whether an align loss had a weight in any round."""
    return any(r.get("lambda_effective") for r in run.history.clients)


def weights(runs: Runs) -> Section | None:
    """Lambda against its equilibrium and its limit, and as used beside s(p)."""
    runs = [run for run in runs if has_alignment(run)]
    if not runs:
        return None
    panels = [
        Panel("Raw λ: before annealing", "raw λ", partial(_raw, runs)),
        Panel("Effective λ: as used in the loss", "effective λ", partial(_effective, runs)),
    ]
    about = (
        "λ weighs the align loss against the base loss. Dashed: the closed form λ* at which a "
        "learned λ rests for the losses of that round; above the limit it counts as exploded. "
        "Dotted, right scale: the annealing factor s(p)."
    )
    source = picture(panels, "round", high=3.0)
    section = Section("lambda", "λ of the clients", about, [Picture("lambda over rounds", source)])
    section.tables.append(_lambdas(runs))
    return section


def _raw(runs: Runs, axes: Axes) -> None:
    each(runs, draw_raw)(axes)
    limits = sorted({run.limit for run in runs if run.limit is not None})
    drawn = [float(np.nanmax(line.get_ydata())) for line in axes.get_lines() if _seen(line)]
    for limit in limits:
        if limit <= NEAR * max(drawn, default=0):
            axes.axhline(limit, color=GREY, linewidth=1.2, linestyle=(0, (1, 2)), label="limit")
        else:
            note(axes, f"limit {limit:g}: far above")


def _seen(line: object) -> bool:
    values = np.asarray(line.get_ydata(), dtype=np.float64)  # type: ignore[attr-defined]
    return bool(np.isfinite(values).any())


def _effective(runs: Runs, axes: Axes) -> None:
    right = axes.twinx()
    for run, ink in zip(runs, inks(runs), strict=True):
        draw_clients(axes, run.history, "lambda_effective", "effective λ", ink)
        draw_annealing(axes, right, run.history, ink)


def _lambdas(runs: Runs) -> Table:
    titles = ["run", "round", "raw λ: min", "median", "max", "equilibrium: median"]
    titles += ["effective: min", "median", "max", "limit", "above it"]
    rows = [_lambda_row(run, place) for run in runs for place in _places(run)]
    return Table(titles, rows, "First and last round, over the clients that took part.")


def _places(run: Stored) -> list[int]:
    return [0, -1] if len(run.history.per_client("lambda_raw")[0]) > 1 else [-1]


def _lambda_row(run: Stored, place: int) -> list[str]:
    rounds, raw = run.history.per_client("lambda_raw")
    rest = median(run.history.per_client("lambda_equilibrium")[1])
    effective = run.history.per_client("lambda_effective")[1]
    above = "-" if run.limit is None else str(int((raw[place] > run.limit).sum()))
    words = [number(v) for v in (*three(raw, place), rest[place], *three(effective, place))]
    return [run.name, f"{rounds[place]:.0f}", *words, number(run.limit), above]


def three(values: Array, place: int) -> tuple[float, float, float]:
    """Smallest, median and largest over the clients in one round. values: [R, K]."""
    low, high = span(values)
    return float(low[place]), float(median(values)[place]), float(high[place])


# -- losses


def losses(runs: Runs) -> Section | None:
    """Base and align loss, terms, gradient norm and variances."""
    runs = [run for run in runs if run.history.clients]
    if not runs:
        return None
    both = draw_losses if any(map(has_alignment, runs)) else _base_loss
    panels = [Panel("Losses: median and range over clients", "loss", each(runs, both))]
    panels += _term_panels(runs)
    norm = partial(_spread, "gradient_norm", "gradient norm", GREEN, "-")
    panels.append(Panel("Gradient norm before clipping", "norm", each(runs, norm)))
    if any(run.limit is not None for run in runs):
        panels.append(Panel("Learned variances σ²", "σ²", each(runs, _variances)))
    about = (
        "Each client's mean over its last local epoch of the round. The base loss is what a client "
        "learns its own data by, the align loss pulls its prototypes to the shared anchors; terms "
        "are what they are sums of. A line is the median over clients, a band reaches from the "
        "smallest to the largest."
    )
    return Section(
        "losses", "Losses", about, [Picture("losses over rounds", picture(panels, "round"))]
    )


def _spread(
    field: str, label: str, own: str, style: str, axes: Axes, history: History, ink: Ink
) -> None:
    draw_spread(axes, *history.per_client(field), ink, own, style, label)


def _base_loss(axes: Axes, history: History, ink: Ink) -> None:
    _spread("base_loss", "base", BLUE, "-", axes, history, ink)


def _variances(axes: Axes, history: History, ink: Ink) -> None:
    _spread("sigma_sq_local", "σ² local", BLUE, "-", axes, history, ink)
    _spread("sigma_sq_align", "σ² align", ORANGE, "--", axes, history, ink)


def _term_panels(runs: Runs) -> list[Panel]:
    """One panel of all terms; of several runs, one a term."""
    names = list(dict.fromkeys(n for run in runs for n in run.history.terms()))
    if not names:
        return []
    if len(runs) == 1:
        return [Panel("Loss by term: median over clients", "loss", partial(_terms, runs[0], names))]
    return [Panel(f"{n.replace('_', ' ')}: median", "loss", partial(_term, runs, n)) for n in names]


def _terms(run: Stored, names: Sequence[str], axes: Axes) -> None:
    for i, name in enumerate(names):
        rounds, values = run.history.per_term(name)
        pen = {"linestyle": STYLES[i % len(STYLES)]}
        curve = rounds, median(values)
        line(axes, curve, COLOURS[i % len(COLOURS)], name.replace("_", " "), **pen)


def _term(runs: Runs, name: str, axes: Axes) -> None:
    tables = [run.history.per_term(name) for run in runs]
    lines(axes, [(rounds, median(values)) for rounds, values in tables], inks(runs), BLUE)


# -- prototypes between clients, which every round tells


def spread(runs: Runs) -> Panel:
    """How far the clients' prototypes lie apart."""
    return Panel("Standard deviation between clients", "std", partial(_stds, runs))


def _stds(runs: Runs, axes: Axes) -> None:
    kinds = (("prototype_std", BLUE, "-"), ("unit_prototype_std", RED, "--"))
    for field, own, style in kinds:
        for run, ink in zip(runs, inks(runs), strict=True):
            line(axes, run.history.per_round(field), ink.of(own), linestyle=style)
        label = "of unit prototypes" if field.startswith("unit") else "of prototypes"
        shared(runs).key(axes, own, style, label)
    name_runs(axes, runs)
