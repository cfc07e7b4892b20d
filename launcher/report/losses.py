"""Losses of the clients, by term; gradient norm and learned variances."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedcore.telemetry.history import History, median
from fedcore.telemetry.plots import (
    BLUE,
    COLOURS,
    GREEN,
    ORANGE,
    STYLES,
    Ink,
    draw_losses,
    draw_spread,
)
from launcher.report.draw import (
    Panel,
    Runs,
    each,
    inks,
    line,
    lines,
    picture,
)
from launcher.report.lambdas import has_alignment
from launcher.report.section import Picture, Section
from launcher.report.stored import Stored

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes


def losses(runs: Runs) -> Section | None:
    """Base and align loss, terms, gradient norm and variances."""
    runs = [run for run in runs if run.history.clients]
    if not runs:
        return None
    both = draw_losses if any(map(has_alignment, runs)) else _base_loss
    panels = [Panel("Losses: median and range over clients", "loss", each(runs, both))]
    terms = _term_panels(runs)
    alone = len(runs) == 1
    panels += terms if alone else []
    norm = partial(_spread, "gradient_norm", "gradient norm", GREEN, "-")
    panels.append(Panel("Gradient norm before clipping", "norm", each(runs, norm)))
    if any(run.limit is not None for run in runs):
        panels.append(Panel("Learned variances σ²", "σ²", each(runs, _variances)))
    pictures = [Picture("losses over rounds", picture(panels, "round"))]
    if terms and not alone:
        small = picture(terms, "round", across=3, high=2.3)
        pictures.append(Picture("losses by term over rounds", small, "Medians over the clients."))
    return Section("losses", "Losses", ABOUT, pictures)


ABOUT = (
    "Each client's mean over its last local epoch of the round. The base loss is what a client "
    "learns its own data by, the align loss pulls its prototypes to the shared anchors; terms "
    "are what they are sums of. A line is the median over clients, a band reaches from the "
    "smallest to the largest."
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
    return [Panel(n.replace("_", " "), "loss", partial(_term, runs, n)) for n in names]


def _terms(run: Stored, names: Sequence[str], axes: Axes) -> None:
    for i, name in enumerate(names):
        rounds, values = run.history.per_term(name)
        pen = {"linestyle": STYLES[i % len(STYLES)]}
        curve = rounds, median(values)
        line(axes, curve, COLOURS[i % len(COLOURS)], name.replace("_", " "), **pen)


def _term(runs: Runs, name: str, axes: Axes) -> None:
    tables = [run.history.per_term(name) for run in runs]
    lines(axes, [(rounds, median(values)) for rounds, values in tables], inks(runs), BLUE)
