"""Lambda of the clients, against its equilibrium and its limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedcore.telemetry.history import Array, median, span
from fedcore.telemetry.plots import (
    GREY,
    draw_annealing,
    draw_clients,
    draw_raw,
)
from launcher.report.draw import (
    Panel,
    Runs,
    each,
    inks,
    note,
    picture,
)
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Stored
from launcher.words import number

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

NEAR = 20.0  # times above what is drawn, up to which the limit of lambda is drawn as well


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
