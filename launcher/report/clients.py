"""The clients: who holds which classes, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from fedcore.objective.weighting import label_entropy
from fedcore.telemetry.history import Array
from launcher.report.draw import as_image
from launcher.report.section import FOLDED, Picture, Section, Table
from launcher.report.stored import Record, Stored
from launcher.rundir import RunDir
from launcher.shard_plot import ORDERED, class_map
from launcher.words import number, percent

LISTED = 100  # rows of the table of clients


def clients(runs: Sequence[Stored]) -> Section:
    """Heat maps of clients and classes, and a table of the clients of each run."""
    about = (
        "How many samples of each class each client holds: white is none. The more uneven, the "
        "more a client alone forgets. Entropy is that of a client's labels, in bits: 0 is a single "
        "class."
    )
    section = Section("clients", "Clients and classes", about)
    for of_data, counts in _groups(runs):
        names = [run.name for run in of_data]
        classes = RunDir(of_data[0].run_dir).read_class_names(counts.shape[1])
        title = "Samples of each class that each client holds"
        source = as_image(class_map(counts, title, classes))
        caption = f"{counts.shape[0]:,} clients, {counts.shape[1]} classes"
        if counts.shape[0] > ORDERED:
            caption += ", sorted by main class"
        caption += f": {', '.join(names)}" if len(runs) > 1 else ""
        section.pictures.append(Picture("samples by client and class", source, caption + "."))
    section.notes.extend(_missing(runs))
    section.tables.extend(_table(run, len(runs) > 1) for run in runs)
    return section


def _groups(runs: Sequence[Stored]) -> list[tuple[list[Stored], Array]]:
    """The runs on the same data, and their label counts [N, C]."""
    found: list[tuple[list[Stored], list[list[int]]]] = []
    for run in runs:
        counts = _known(run)
        same = next((group for group, other in found if other == counts), None)
        if same is not None:
            same.append(run)
        elif counts:
            found.append(([run], counts))
    return [(group, np.array(counts, dtype=np.float64)) for group, counts in found]


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
    titles = [*TITLES, "validation"] if _are_validated(last) else TITLES
    return Table(titles, rows, caption, folded)


def _are_validated(last: dict[int, Record]) -> bool:
    """Whether clients were evaluated on samples of their own in their last round."""
    return any("validation_accuracy" in record for record in last.values())


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
        if _are_validated(last):
            fields.append(percent(last[k].get("validation_accuracy")))
        rows.append([*about, *fields])
    return rows
