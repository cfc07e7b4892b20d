"""Where the prototypes ended, from the newest checkpoint: against the anchors and each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import BLUE, GREY, ORANGE, RED, frame
from launcher.report.draw import (
    WIDE,
    Panel,
    Runs,
    as_image,
    heat,
    inks,
    line,
    name_runs,
    picture,
    shared,
    whole_numbers,
)
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Stored
from launcher.words import number

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

MARGIN = 0.02  # of cosine, around the histogram
SMALL = 12  # classes up to which the numbers are written into the cells


@dataclass(frozen=True)
class Geometry:
    """The global prototypes of C classes in numbers; NaN for a class that has none."""

    checkpoint: str
    norms: Array  # [C]
    gram: Array  # [C, C]: cosines among the prototypes
    to_anchors: Array | None  # [C, C]: cosines of prototypes (rows) with them; None = none
    anchors_apart: float | None  # mean cosine between two anchors
    anchor_norm: float | None  # mean

    @classmethod
    def of(cls, prototypes: Tensor, anchors: Tensor, checkpoint: str) -> Geometry:
        """From prototypes and anchors [C, D]."""
        own, other = unit(prototypes), unit(anchors)
        has_anchors = bool(np.isfinite(other).any()) and other.shape == own.shape
        norms = np.linalg.norm(prototypes.double().numpy(), axis=1)
        return cls(
            checkpoint,
            np.where(norms > 0, norms, np.nan),
            own @ own.T,
            own @ other.T if has_anchors else None,
            float(np.nanmean(apart(other @ other.T))) if has_anchors else None,
            float(np.linalg.norm(anchors.double().numpy(), axis=1).mean()) if has_anchors else None,
        )

    @property
    def ideal(self) -> float:
        """Cosine between any two of C points that are as far apart as can be."""
        return -1 / (len(self.norms) - 1)

    @property
    def to_own(self) -> Array:
        """Cosine of each prototype with the anchor of its class: [C]."""
        return np.diag(self.gram * np.nan if self.to_anchors is None else self.to_anchors)


def unit(points: Tensor) -> Array:
    """Rows of length 1; NaN for a row that is zero or not finite. [C, D]."""
    values = points.double().numpy()
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    good = (norms > 0) & np.isfinite(norms)
    rows: Array = np.divide(values, norms, out=np.full_like(values, np.nan), where=good)
    return rows


def apart(gram: Array) -> Array:
    """What stands off the diagonal of [C, C], as one row, without what is not known."""
    values: Array = gram[~np.eye(len(gram), dtype=bool)]
    return values[np.isfinite(values)]


def geometry(run: Stored) -> Geometry | str:
    """Of the newest good checkpoint; else why there is none."""
    held, found = run.server()
    pair = [held.get(name) for name in ("prototypes", "anchors")]
    if pair[0] is None or pair[1] is None:
        return found if not held else f"{found} holds none"
    if pair[0].ndim != 2 or len(pair[0]) < 2:
        return f"{found} holds prototypes of shape {tuple(pair[0].shape)}"
    return Geometry.of(pair[0], pair[1], found)


def prototypes(runs: Sequence[Stored], found: Sequence[Geometry | str]) -> Section:
    """The geometry of each run, and how the clients' prototypes came together."""
    about = (
        "Cosines of the global prototypes with the anchors: 1 on the diagonal is a class that "
        "reached its anchor. C directions are as far apart as can be when every two of them have a "
        "cosine of -1/(C-1) (dashed), as the anchors of a simplex have."
    )
    section = Section("prototypes", "Prototypes", about)
    known = [(r, g) for r, g in zip(runs, found, strict=True) if isinstance(g, Geometry)]
    for run, g in known:
        caption = f"{run.name}, {g.checkpoint}." if len(runs) > 1 else f"{g.checkpoint}."
        section.pictures.append(Picture("prototype geometry", draw(g), caption))
    over = picture([spread(runs)], "round", high=2.4)
    section.pictures.append(Picture("prototype spread between clients over rounds", over))
    for run, why in zip(runs, found, strict=True):
        if isinstance(why, str):
            section.notes.append(f"No geometry of {run.name}: {why}.")
    if known:
        section.tables.append(Table(TITLES, [_row(run, g) for run, g in known], ABOUT))
    return section


TITLES = ["run", "to own anchor", "lowest", "between classes", "std", "highest", "-1/(C-1)"]
TITLES += ["of anchors", "norm", "of anchors"]
ABOUT = (
    "Cosines of prototypes with their own anchors (mean, lowest) and between classes (mean, std, "
    "highest), beside those of a simplex and between the anchors; mean norms."
)


def _row(run: Stored, g: Geometry) -> list[str]:
    own, others = g.to_own[np.isfinite(g.to_own)], apart(g.gram)
    near = [own.mean(), own.min()] if own.size else [np.nan] * 2
    away = [others.mean(), others.std(), others.max()] if others.size else [np.nan] * 3
    norms = g.norms[np.isfinite(g.norms)]
    norm = norms.mean() if norms.size else None
    last = [g.ideal, g.anchors_apart, norm, g.anchor_norm]
    words = [number(None if v is None else float(v)) for v in (*near, *away, *last)]
    return [run.name, *words]


def draw(g: Geometry) -> Markup:
    """Cosines with anchors and among each other, by class, and their distribution."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    figure = Figure(figsize=(WIDE, 7.2), dpi=110, layout="constrained")
    plan: Any = [["left"] * 3 + ["right"] * 3, ["near"] * 2 + ["norm"] * 2 + ["pairs"] * 2]
    panels = figure.subplot_mosaic(plan, height_ratios=(5, 3))
    left, right = panels["left"], panels["right"]
    if g.to_anchors is None:
        left.axis("off")
        left.text(0.5, 0.5, "this algorithm has no anchors", ha="center", color=GREY)
    else:
        _matrix(left, g.to_anchors, "Cosine of prototype and anchor", "anchor of class")
    _matrix(right, g.gram, "Cosine of prototype and prototype", "prototype of class")
    _by_class(panels["near"], g.to_own, BLUE, "Cosine with own anchor")
    panels["near"].set_ylim(min(0.0, float(np.nanmin(g.to_own, initial=0))) - 0.05, 1.05)
    _by_class(panels["norm"], g.norms, ORANGE, "Norm")
    panels["norm"].set_ylim(0, 1.1 * float(np.nanmax(g.norms, initial=0)) or 1.0)
    _distribution(panels["pairs"], g)
    return as_image(figure)


def _matrix(axes: Axes, values: Array, title: str, x: str) -> None:
    frame(axes, title)
    axes.grid(visible=False)
    look: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    image = heat(axes, values, ".2f" if len(values) <= SMALL else None, **look)
    axes.set_aspect("equal")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel("prototype of class", fontsize=9)
    if len(values) <= SMALL:
        axes.set_xticks(range(len(values)))
        axes.set_yticks(range(len(values)))
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=30, shrink=0.9)


def _by_class(axes: Axes, values: Array, colour: str, title: str) -> None:
    """A dot a class."""
    frame(axes, title)
    axes.plot(np.arange(len(values)), values, "o", color=colour, markersize=4)
    axes.set_xlabel("class", fontsize=9)
    whole_numbers(axes)


def _distribution(axes: Axes, g: Geometry) -> None:
    """Cosines between two classes, and what they would all be in a simplex."""
    frame(axes, f"Pairs of classes, -1/(C-1) = {g.ideal:.3g}")
    values = apart(g.gram)
    if values.size:
        # classes that are all as far apart as the anchors would leave no width for a bin
        span = (min(g.ideal, values.min()) - MARGIN, max(g.ideal, values.max()) + MARGIN)
        bins = min(40, max(8, len(values) // 4))
        axes.hist(values, bins, range=span, color=BLUE, alpha=0.8)
    axes.axvline(g.ideal, color=RED, linestyle="--")
    axes.set_xlabel("cosine between the two", fontsize=9)


# -- between clients, which every round tells


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
