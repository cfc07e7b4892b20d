"""The clients: who holds which classes, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup

from fedcore.objective.weighting import label_entropy
from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import frame
from launcher.report.draw import WIDE, as_image, heat
from launcher.report.section import FOLDED, Picture, Section, Table
from launcher.report.stored import Record, Stored
from launcher.words import number

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

ORDERED = 60  # clients up to which they stand by id; more are sorted by their main class
WRITTEN = (20, 20)  # clients and classes up to which the counts are written into the cells
LISTED = 100  # rows of the table of clients


def clients(runs: Sequence[Stored]) -> Section:
    """Heat maps of clients and classes, and a table of the clients of each run."""
    about = (
        "How many samples of each class each client holds: white is none. The more uneven, the "
        "more a client alone forgets. Entropy is that of a client's labels, in bits: 0 is a single "
        "class."
    )
    section = Section("clients", "Clients and classes", about)
    for names, counts in _groups(runs):
        source = _map(counts)
        caption = f"{counts.shape[0]:,} clients, {counts.shape[1]} classes"
        if counts.shape[0] > ORDERED:
            caption += ", sorted by main class"
        caption += f": {', '.join(names)}" if len(runs) > 1 else ""
        section.pictures.append(Picture("samples by client and class", source, caption + "."))
    section.notes.extend(_missing(runs))
    section.tables.extend(_table(run, len(runs) > 1) for run in runs)
    return section


def _groups(runs: Sequence[Stored]) -> list[tuple[list[str], Array]]:
    """The names of the runs on the same data, and their label counts [N, C]."""
    found: list[tuple[list[str], list[list[int]]]] = []
    for run in runs:
        counts = _known(run)
        same = next((names for names, other in found if other == counts), None)
        if same is not None:
            same.append(run.name)
        elif counts:
            found.append(([run.name], counts))
    return [(names, np.array(counts, dtype=np.float64)) for names, counts in found]


def _known(run: Stored) -> list[list[int]] | None:
    """Label counts, if they are a table."""
    counts = run.label_counts
    return counts if counts and len({len(row) for row in counts}) == 1 and counts[0] else None


def _missing(runs: Sequence[Stored]) -> list[str]:
    """Why a run is not in the pictures."""
    words = "the run has no readable clients.json, which says how many samples of each class a "
    words += "client holds (runs of older versions have none)"
    names = [run.name for run in runs if _known(run) is None]
    return [f"No map of classes for {', '.join(names)}: {words}."] if names else []


def _map(counts: Array) -> Markup:
    """The heat map. counts: [N, C]."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    many, classes = counts.shape
    high = float(np.clip(0.9 + 0.22 * many, 2.2, 6.0))
    figure = Figure(figsize=(WIDE, high), dpi=110, layout="constrained")
    axes = figure.subplots()
    if many > ORDERED:
        counts = counts[np.lexsort((-counts.max(1), counts.argmax(1)))]
    from matplotlib.colors import PowerNorm

    top = max(float(counts.max()), 1.0)
    look: dict[str, Any] = {"cmap": "Blues", "norm": PowerNorm(0.5, 0, top)}
    small = many <= WRITTEN[0] and classes <= WRITTEN[1]
    image = heat(axes, np.where(counts > 0, counts, np.nan), ".0f" if small else None, **look)
    _ticks(axes, many, classes)
    figure.colorbar(image, ax=axes, label="samples", pad=0.01, aspect=30)
    return as_image(figure)


def _ticks(axes: Axes, many: int, classes: int) -> None:
    frame(axes, "Samples of each class that each client holds")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("class", fontsize=9)
    axes.set_ylabel("client" if many <= ORDERED else "clients, sorted", fontsize=9)
    if classes <= WRITTEN[1]:
        axes.set_xticks(range(classes))
    if many <= ORDERED:
        axes.set_yticks(range(0, many, 1 if many <= 24 else 5))
    else:
        axes.set_yticks([])


# -- the table


def last_of_clients(run: Stored) -> dict[int, Record]:
    """The last record of each client."""
    return {r["client"]: r for r in run.history.clients}


def _table(run: Stored, several: bool) -> Table:
    """A row for each client; of many, those whose lambda (or else base loss) is largest."""
    last = last_of_clients(run)
    ordered = sorted(last)
    by = "lambda_raw" if run.limit is not None else "base_loss"
    cut = len(last) > LISTED
    if cut:
        ordered = sorted(ordered, key=partial(_rank, last, by))[:LISTED]
    words = f"the {LISTED} of {len(last):,} clients with the largest "
    words = words + ("raw λ" if by == "lambda_raw" else "base loss") if cut else "all clients"
    name = f"{run.name}: " if several else ""
    rows = _rows(run, ordered, last)
    folded = f"{name}{words}" if len(rows) > FOLDED or several else ""
    caption = f"{name}{words[0].upper()}{words[1:]}, in the last round each of them took part in."
    return Table(TITLES, rows, caption, folded)


def _rank(last: dict[int, Record], by: str, client: int) -> float:
    value = last[client].get(by)
    return -np.inf if value is None else -value  # what is not finite comes first


TITLES = ["client", "samples", "classes", "entropy", "round", "raw λ", "effective λ", "equilibrium"]
TITLES += ["base loss", "align loss", "gradient norm"]
FIELDS = ("lambda_raw", "lambda_effective", "lambda_equilibrium", "base_loss", "align_loss")


def _rows(run: Stored, ordered: Sequence[int], last: dict[int, Record]) -> list[list[str]]:
    held = np.array(_known(run) or [], dtype=np.float64)
    entropy = label_entropy(torch.from_numpy(held)).abs().tolist()  # not -0
    rows = []
    for k in ordered:
        known = k < len(held)
        classes = f"{(held[k] > 0).sum():.0f}" if known else "-"
        fields = [number(last[k].get(name)) for name in (*FIELDS, "gradient_norm")]
        about = [str(k), f"{last[k].get('samples', 0):,}", classes]
        about += [number(entropy[k]) if known else "-", str(last[k]["round"] + 1)]
        rows.append([*about, *fields])
    return rows
