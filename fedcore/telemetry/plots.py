"""How lambda, losses and accuracy went, drawn from metrics.jsonl alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedcore.errors import ConfigError
from fedcore.telemetry.history import Array, History, median, quantiles, span

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind eyes tell apart
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
COLOURS = (BLUE, RED, GREEN, "#CC79A7", ORANGE, "#56B4E9", "#000000")
INKS = (*COLOURS, "#8C564B", "#7F7F7F", "#BCBD22", "#6A3D9A", "#1B4965")
"""Twelve colours, where seven are not enough."""
STYLES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
GREY, LINE = "#5f6368", "#c8ccd0"
DASHED = (0, (4, 3))
WIDE = 20.0  # max / min above which a range is drawn on a log scale
FEW = 200.0  # max / min below which a log scale has labels between its decades
DOTS = 30  # evaluations up to which each is marked
MANY = 100  # clients above which a band stands for their lines


@dataclass(frozen=True)
class Ink:
    """What colour a run is drawn in: None = it is alone, and each quantity has its own."""

    run: str
    colour: str | None

    @classmethod
    def each(cls, names: Sequence[str]) -> list[Ink]:
        """An ink for each run; a run that is alone has no colour. Names may hold anything."""
        several = len(names) > 1
        return [
            cls(plain_text(name), INKS[i % len(INKS)] if several else None)
            for i, name in enumerate(names)
        ]

    def of(self, own: str) -> str:
        return self.colour or own

    def key(self, axes: Axes, own: str, style: Any, label: str) -> None:
        """A legend entry for a quantity; grey when colours stand for runs."""
        axes.plot([], [], color=GREY if self.colour else own, linestyle=style, label=label)


def plot_lambda(run_dirs: Path | Sequence[Path], out: Path) -> Path:
    """Draw lambda, s(p), losses and accuracy of runs into one picture (.png, .svg, .pdf): `out`.

    A single run: a line for each client and a colour for each quantity. Several: a colour for each
    run, and a band over its clients. Raises `ConfigError` for a run of which no round is recorded.
    """
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    folders = [run_dirs] if isinstance(run_dirs, Path) else run_dirs
    runs = [History.of(folder) for folder in folders]
    figure = Figure(figsize=(9, 12), dpi=130, layout="constrained")
    raw, effective, loss, accuracy = figure.subplots(4, 1, sharex=True, height_ratios=(5, 4, 4, 4))
    right = effective.twinx()
    for run, ink in zip(runs, Ink.each([run.name for run in runs]), strict=True):
        draw_raw(raw, run, ink)
        draw_clients(effective, run, "lambda_effective", "effective λ", ink)
        draw_annealing(effective, right, run, ink)
        draw_losses(loss, run, ink)
        draw_accuracy(accuracy, run, ink)
    for axes in (raw, effective, loss):
        scale(axes)
    dress(raw, "Weight of the align loss before annealing", "raw λ")
    dress(effective, "Weight as used in the loss, and the annealing factor", "effective λ")
    dress(loss, "Losses: median and range over clients", "loss")
    dress(accuracy, "Accuracy by read-out", "accuracy")
    accuracy.set_xlabel("round")
    accuracy.xaxis.get_major_locator().set_params(integer=True)
    figure.align_ylabels([raw, effective, loss, accuracy])
    figure.suptitle(_title(runs), fontsize=13, fontweight="bold", x=0.09, ha="left")
    try:
        return save(figure, out)
    except (OSError, ValueError) as error:
        want = f"a place for a .png, .svg or .pdf ({error})"
        raise ConfigError("--out", str(out), want, "RUN/lambda.png") from None


def _title(runs: Sequence[History]) -> str:
    names = [plain_text(run.name) for run in runs]
    if len(runs) > 1:
        return "  ·  ".join(names)
    clients = len({r["client"] for r in runs[0].clients})
    return f"{names[0]}: {clients} clients, {len(runs[0].rounds)} rounds"


def plain_text(name: str) -> str:
    """A name as matplotlib shows it unchanged: no formula between dollars, no hidden legend."""
    return "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$").lstrip("_")


def draw_raw(axes: Axes, run: History, ink: Ink) -> None:
    """Raw lambda of the clients, and dashed what it would rest at."""
    draw_clients(axes, run, "lambda_raw", "raw λ", ink)
    x, rest = run.per_client("lambda_equilibrium")
    if ink.colour:
        axes.plot(x, median(rest), color=ink.colour, linewidth=1.4, linestyle=DASHED)
    else:
        _threads(axes, x, rest, RED, DASHED)
    ink.key(axes, RED, DASHED, "equilibrium λ*")


def draw_clients(axes: Axes, run: History, field: str, label: str, ink: Ink) -> None:
    """The median over clients, and around it each client or, among other runs, a band."""
    x, values = run.per_client(field)
    if ink.colour:
        draw_band(axes, x, values, ink.colour)
    else:
        _threads(axes, x, values, BLUE, "-")
        each = "each client" if values.shape[1] <= MANY else "all clients, and half of them"
        axes.plot([], [], color=BLUE, linewidth=0.9, alpha=0.6, label=f"{label}, {each}")
    name = ink.run if ink.colour else f"{label}, median"
    axes.plot(x, median(values), color=ink.of(BLUE), linewidth=2.2, label=name)


def _threads(axes: Axes, x: Array, values: Array, colour: str, style: Any) -> None:
    """A thin line for each client, fainter the more there are; bands for many. values: [R, K]."""
    if values.shape[1] > MANY:
        draw_quartiles(axes, x, values, colour, style)
        return
    alpha = float(np.clip(6 / max(values.shape[1], 1), 0.15, 0.6))
    # a client drawn every few rounds has gaps: join what is there
    for line in values.T:
        seen = ~np.isnan(line)
        axes.plot(x[seen], line[seen], color=colour, linewidth=0.9, linestyle=style, alpha=alpha)


def draw_band(axes: Axes, x: Array, values: Array, colour: str) -> None:
    """Smallest to largest over clients. values: [R, K]."""
    low, high = span(values)
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)


def draw_quartiles(axes: Axes, x: Array, values: Array, colour: str, style: Any) -> None:
    """All clients as a light band, the middle half as a darker one. values: [R, K]."""
    draw_band(axes, x, values, colour)
    draw_band(axes, x, quantiles(values, (0.25, 0.75)), colour)
    axes.plot(x, median(values), color=colour, linewidth=0.9, linestyle=style)


def draw_annealing(axes: Axes, right: Axes, run: History, ink: Ink) -> None:
    """s(p), on a scale of its own at the right."""
    x, factor = run.per_round("annealing_factor")
    right.plot(x, factor, color=ink.of(GREY), linewidth=1.6, linestyle=":")
    right.set_ylim(-0.03, 1.08)
    right.set_ylabel("s(p)", color=GREY)
    right.tick_params(colors=GREY, length=0)
    right.spines[["top", "left", "bottom"]].set_visible(False)
    right.spines["right"].set_color(LINE)
    ink.key(axes, GREY, ":", "s(p), right scale")


def draw_losses(axes: Axes, run: History, ink: Ink) -> None:
    """Base and align loss: median and range over clients."""
    for kind, own, style in (("base", BLUE, "-"), ("align", ORANGE, "--")):
        draw_spread(axes, *run.per_client(f"{kind}_loss"), ink, own, style, kind)


def draw_spread(
    axes: Axes, x: Array, values: Array, ink: Ink, own: str, style: Any, label: str
) -> None:
    """Median over clients, and around it a band from the smallest to the largest. [R, K]."""
    draw_band(axes, x, values, ink.of(own))
    axes.plot(x, median(values), color=ink.of(own), linewidth=2, linestyle=style)
    ink.key(axes, own, style, label)


def draw_accuracy(axes: Axes, run: History, ink: Ink) -> None:
    """Draw a run's accuracy by read-out, a line each."""
    for number, name in enumerate(run.readouts()):
        x, values = run.accuracy(name)
        own, style = INKS[number % len(INKS)], STYLES[number % len(STYLES)]
        marker = "o" if len(x) <= DOTS else ""
        pen: dict[str, Any] = {"linewidth": 1.8, "marker": marker, "markersize": 3}
        axes.plot(x, values, color=ink.of(own), linestyle=style, **pen)
        ink.key(axes, own, style, name.replace("_", " "))


def scale(axes: Axes) -> None:
    """A log scale if all drawn values are positive and span a wide range, else a linear one."""
    drawn = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()]
    bands = [path.vertices[:, 1] for part in axes.collections for path in part.get_paths()]  # type: ignore[index]
    values: npt.NDArray[np.float64] = np.concatenate([np.empty(0), *drawn, *bands])
    values = values[np.isfinite(values)]
    if values.size and values.min() > 0 and values.max() > WIDE * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        few = values.max() < FEW * values.min()  # decades: their ticks alone say little
        axes.yaxis.set_minor_formatter(_between_decades if few else "")


def _between_decades(value: float, _: float | None = None) -> str:
    """A label for 2 and 5 times a power of ten."""
    return f"{value:g}" if f"{value:.0e}"[0] in "25" else ""


def frame(axes: Axes, title: str, grid: Literal["x", "y"] = "y") -> None:
    """Title, quiet spines and grid lines: the frame of every panel."""
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.grid(axis=grid, color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(color=LINE, which="both")


def save(figure: Figure, out: Path) -> Path:
    """Write the picture, whole or not at all: a full disk must not cut the last good one short."""
    from matplotlib import rc_context

    part = out.with_name(f".{out.name}")
    try:
        with rc_context({"pdf.fonttype": 42}):  # fonts that publishers take: not type 3
            figure.savefig(part, format=out.suffix[1:])
        return part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def dress(axes: Axes, title: str, unit: str) -> None:
    """The frame of a panel, and its legend at the right of it."""
    frame(axes, title)
    axes.set_ylabel(unit)
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))  # several runs name a quantity each
    if once:
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.08, 1), "borderpad": 0}
        axes.legend(list(once.values()), list(once), fontsize=8.5, frameon=False, **beside)
