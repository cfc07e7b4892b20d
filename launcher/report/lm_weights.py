"""The weights of language models over the run, and what they remember of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedcore.errors import FedError
from fedcore.lm.memory_report import Report, draw
from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import BLUE, GREEN, GREY, ORANGE, RED, STYLES
from launcher.page import inlined
from launcher.report.draw import Panel, Runs, inks, line, name_runs, picture, shared
from launcher.report.language import over_steps, steps
from launcher.report.section import Picture, Section
from launcher.report.stored import Stored

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

GROUPS = (BLUE, RED, GREEN, ORANGE)


def keys(runs: Runs, inside: str) -> list[str]:
    """Names in a mapping of any run's lines, such as parameter groups."""
    found = (name for run in runs for r in run.events("lm_step") for name in r.get(inside) or {})
    return list(dict.fromkeys(found))


def by_key(runs: Runs, inside: str, names: Sequence[str]) -> Callable[[Axes], None]:
    """Draws what stands in a mapping: a style a name; a colour a name, or of several runs a run."""

    def all_of_them(axes: Axes) -> None:
        for i, name in enumerate(names):
            own, style = GROUPS[i % len(GROUPS)], STYLES[i % len(STYLES)]
            for run, ink in zip(runs, inks(runs), strict=True):
                line(axes, steps(run, name, inside), ink.of(own), linestyle=style)
            shared(runs).key(axes, own, style, name)
        name_runs(axes, runs)

    return all_of_them


def weights(runs: Runs) -> Section | None:
    """RMS of the weights by group against the prediction, update ratio, what is left, memory."""
    groups = keys(runs, "weight_rms")
    if not groups:
        return None
    panels = [_rms_panel(runs, group) for group in groups]
    ratios = by_key(runs, "update_ratio", keys(runs, "update_ratio"))
    panels.append(Panel("Update over weights, RMS", "ratio", ratios))
    if any(len(steps(run, "initialisation_left")[0]) for run in runs):
        left = over_steps(runs, "initialisation_left", GREEN)
        panels.append(Panel("Share of the initialisation that is left", "share", left, False))
    if names := keys(runs, "memory_steps"):
        panels.append(Panel("Memory", "steps", by_key(runs, "memory_steps", names)))
    about = (
        "RMS of the weights of each parameter group, dashed what gradients without a mean would "
        "make of it: far above means a mean that grows, far below a collapse. T1 and T2 are the "
        "memory of the optimiser's moments in steps, T3 = 1/(λη) that of the weights."
    )
    source = picture(panels, "step", high=2.2)
    return Section("weights", "Weights", about, [Picture("weights over steps", source)])


def _rms_panel(runs: Runs, group: str) -> Panel:
    def both(axes: Axes) -> None:
        for run, ink in zip(runs, inks(runs), strict=True):
            line(axes, steps(run, group, "weight_rms"), ink.of(BLUE))
            x, predicted = steps(run, group, "weight_rms_predicted")
            if predicted.any():  # 0 = no prediction for this group
                line(axes, (x, predicted), ink.of(RED), linestyle="--", linewidth=1.3)
        shared(runs).key(axes, BLUE, "-", "measured")
        shared(runs).key(axes, RED, "--", "predicted")
        name_runs(axes, runs)

    return Panel(f"Weight RMS: {group}", "RMS", both)


# -- memory


def memory(runs: Runs) -> Section | None:
    """How much each part of the run's gradients weighs in the final weights."""
    found = [(run, report) for run in runs if (report := memory_report(run)) is not None]
    if not found:
        return None
    about = (
        "Weight decay makes the final weights an average of all updates: how much each step's "
        "gradient weighs in them, as the configuration says (fedcore lm memory), over its uniform "
        "share. Where the curve is above 1, what the run read there counts more than its share."
    )
    section = Section("memory", "What the run remembers", about)
    if len(runs) == 1:
        source = inlined(partial(draw, found[0][1]))
        section.pictures.append(Picture("memory of the run", source))
    else:
        panels = [
            Panel(
                "Weight of a gradient (1 = uniform)",
                "weight × T",
                partial(_weights, found),
                False,
                0,
            )
        ]
        panels.append(
            Panel("Initialisation that is left", "share", partial(_left, found), False, 0)
        )
        source = picture(panels, "share of the run done", high=2.6)
        section.pictures.append(Picture("memory of the runs", source))
    several = len(runs) > 1
    for run, report in found:
        section.notes.extend(f"{run.name}: {s}" if several else s for s in report.sentences())
    return section


def memory_report(run: Stored) -> Report | None:
    """From the run's configuration; None if that is not known."""
    if run.config is None or run.config.lm is None:
        return None
    try:
        return Report.of(run.config.lm)
    except FedError:
        return None


SHOWN = 500  # points of a memory curve


def _weights(found: Sequence[tuple[Stored, Report]], axes: Axes) -> None:
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    _shares(axes, [(run, report.uniform) for run, report in found])


def _left(found: Sequence[tuple[Stored, Report]], axes: Axes) -> None:
    _shares(axes, [(run, report.left) for run, report in found])


def _shares(axes: Axes, found: Sequence[tuple[Stored, Array]]) -> None:
    chosen = [np.unique(np.linspace(0, v.size - 1, SHOWN).astype(int)) for _, v in found]
    curves = [((at + 1) / v.size, v[at]) for at, (_, v) in zip(chosen, found, strict=True)]
    for curve, ink in zip(curves, inks([run for run, _ in found]), strict=True):
        line(axes, curve, ink.of(BLUE), ink.run)
