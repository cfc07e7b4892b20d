"""Where the time went: phases of the rounds, throughput and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import COLOURS, ORANGE
from launcher.report.draw import Panel, over_rounds, picture
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Stored
from launcher.words import duration, number, percent, size

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

BARS = 60  # rounds up to which each is a bar


def phases(runs: Sequence[Stored]) -> list[str]:
    """Names of the phases of any run."""
    rounds = (r for run in runs for r in run.history.rounds)
    return list(dict.fromkeys(name for r in rounds for name in r.get("seconds") or {}))


def by_phase(run: Stored, names: Sequence[str]) -> tuple[Array, Array]:
    """Rounds [R], counted from 1, and seconds of each phase [P, R]; 0 = it had none."""
    rounds = run.history.rounds
    table = [[(r.get("seconds") or {}).get(name) or 0.0 for r in rounds] for name in names]
    values = np.array(table, dtype=np.float64).reshape(len(names), len(rounds))
    return np.array([r["round"] + 1 for r in rounds], dtype=np.float64), values


def speed(runs: Sequence[Stored]) -> Section | None:
    """Stacked bars of the phases, samples a second and bytes a round; totals as a table."""
    runs = [run for run in runs if run.history.rounds]
    names = phases(runs)
    if not names:
        return None
    alone = len(runs) == 1
    bars = [
        Panel("Seconds by phase" if alone else run.name, "s", partial(_bars, run, names), False, 0)
        for run in runs
    ]
    rates = [
        Panel(
            "Samples a second, all ranks", "1/s", over_rounds(runs, "samples_per_second"), False, 0
        ),
        Panel("Bytes a round, all ranks", "bytes", partial(_bytes, runs), False, 0),
    ]
    pictures = [
        Picture("bytes and samples a second over rounds", picture(rates, "round", high=2.2))
    ]
    stacked = picture(bars, "round", across=1 if alone else 2, high=2.4, alike=True)
    pictures.insert(0, Picture("seconds by phase over rounds", stacked))
    about = (
        "Where a round's time goes on rank 0: order (the server's word to the clients), train, "
        "collect (waiting for other ranks included), evaluate. Samples a second count training and "
        "collecting; checkpoints are written between rounds."
    )
    return Section("speed", "Time and traffic", about, pictures, [_totals(runs, names)])


def _bars(run: Stored, names: Sequence[str], axes: Axes) -> None:
    rounds, seconds = by_phase(run, names)
    if len(rounds) > BARS:
        axes.stackplot(rounds, seconds, labels=names, colors=COLOURS, linewidth=0, step="mid")
        return
    below = np.zeros(len(rounds))
    for i, name in enumerate(names):
        axes.bar(rounds, seconds[i], bottom=below, color=COLOURS[i % len(COLOURS)], label=name)
        below += seconds[i]


def _bytes(runs: Sequence[Stored], axes: Axes) -> None:
    over_rounds(runs, "bytes_communicated", ORANGE)(axes)
    axes.yaxis.set_major_formatter(lambda value, _: size(value))


def _totals(runs: Sequence[Stored], names: Sequence[str]) -> Table:
    titles = ["run", "rounds", *names, "all phases", "samples/s, median", "bytes"]
    return Table(titles, [_total(run, names) for run in runs], "Sums over the rounds on this page.")


def _total(run: Stored, names: Sequence[str]) -> list[str]:
    rounds, seconds = by_phase(run, names)
    parts, whole = seconds.sum(axis=1), float(seconds.sum())
    rate = run.history.per_round("samples_per_second")[1]
    shares = [f"{duration(p)} ({percent(p / whole if whole else None)})" for p in parts.tolist()]
    middle = number(float(np.median(rate))) if len(rate) else "-"
    traffic = size(float(run.history.per_round("bytes_communicated")[1].sum()))
    return [run.name, str(len(rounds)), *shares, duration(whole), middle, traffic]
