"""Sections of language-model runs: loss, rates, speed, clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.telemetry.history import Array, client_table
from fedcore.telemetry.plots import BLUE, GREY, RED, draw_spread
from launcher.report.draw import Panel, Runs, inks, line, lines, name_runs, picture
from launcher.report.section import Picture, Section, Table
from launcher.report.stored import Record, Stored
from launcher.suite_plot import counted
from launcher.words import number

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

Curve = tuple[Array, Array]


def column(records: Sequence[Record], key: str, inside: str | None = None) -> Curve:
    """Steps [n] and the values of a key, or of a key in a mapping, where they are known."""
    pairs = [(r["step"], (r.get(inside) or {}).get(key) if inside else r.get(key)) for r in records]
    table = np.array([p for p in pairs if p[1] is not None], dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def steps(run: Stored, key: str, inside: str | None = None) -> Curve:
    """Of the lines of training."""
    return column(run.events("lm_step"), key, inside)


def evals(run: Stored, key: str) -> Curve:
    """A quantity of the evaluations on held-out text, over steps."""
    return column(run.events("lm_eval"), key)


def tokens_a_step(run: Stored) -> float:
    """Tokens trained on in a step."""
    known = [r for r in run.events("lm_step") if r.get("tokens") and r["step"]]
    return float(known[-1]["tokens"] / known[-1]["step"]) if known else 1.0


def over_steps(runs: Runs, key: str, own: str = BLUE) -> Callable[[Axes], None]:
    """Draws one number a line of every run."""
    return lambda axes: lines(axes, [steps(run, key) for run in runs], inks(runs), own)


# -- loss


def loss(runs: Runs) -> Section:
    """Training and held-out loss over the tokens trained on, and steps above."""
    if len(runs) == 1:
        panels = [Panel("Loss: training (mean between lines) and held-out", "nats", _both(runs[0]))]
    else:
        panels = [
            Panel("Held-out loss", "nats", partial(_over_tokens, runs, evals, "loss"), False),
            Panel(
                "Training loss, mean between lines",
                "nats",
                partial(_over_tokens, runs, steps, "loss"),
                False,
            ),
        ]
    norm = Panel(
        "Gradient norm before clipping", "norm", partial(_over_tokens, runs, steps, "gradient_norm")
    )
    about = (
        "Cross-entropy in nats per token over the tokens trained on; e to it is the perplexity, "
        "the number of tokens the model hesitates between. Bits per byte do not depend on the "
        "tokenizer. The last evaluation reads all held-out text, the others a part of it."
    )
    source = picture([*panels, norm], "tokens trained on", high=2.8)
    return Section(
        "loss", "Loss", about, [Picture("loss over tokens", source)], [_evaluations(runs)]
    )


def _both(run: Stored) -> Callable[[Axes], None]:
    each = tokens_a_step(run)

    def draw_both(axes: Axes) -> None:
        for curve, colour, label in ((steps, BLUE, "training"), (evals, RED, "held-out")):
            x, y = curve(run, "loss")
            line(axes, (x * each, y), colour, label)
        above = axes.secondary_xaxis("top", functions=(_scaled(1 / each), _scaled(each)))
        above.set_xlabel("steps", fontsize=8.5, color=GREY)
        above.tick_params(labelsize=8, colors=GREY, length=2)
        above.spines[:].set_visible(False)
        axes.xaxis.set_major_formatter(counted)

    return draw_both


def _scaled(by: float) -> Callable[[Any], Any]:
    return lambda values: by * np.asarray(values, dtype=np.float64)


def _over_tokens(runs: Runs, of: Callable[[Stored, str], Curve], key: str, axes: Axes) -> None:
    """The numbers of a key over tokens, of every run."""
    found = [(of(run, key), tokens_a_step(run)) for run in runs]
    lines(axes, [(x * each, y) for (x, y), each in found], inks(runs), BLUE)
    axes.xaxis.set_major_formatter(counted)


def _evaluations(runs: Runs) -> Table:
    titles = ["run", "step", "tokens", "training loss", "held-out loss", "best held-out (step)"]
    titles += ["perplexity", "bits per byte"]
    return Table(titles, [_evaluation(run) for run in runs], "Last line and last evaluation.")


def _evaluation(run: Stored) -> list[str]:
    last = run.events("lm_step")[-1]
    at, held = evals(run, "loss")
    best = f"{held.min():.4f} ({at[held.argmin()]:.0f})" if len(held) else "-"
    known = [evals(run, key)[1] for key in PER_TOKEN]
    ends = [number(values[-1]) if len(values) else "-" for values in known]
    losses = [_four(steps(run, "loss")[1]), _four(held)]
    return [run.name, f"{last['step']:,}", f"{last.get('tokens') or 0:,}", *losses, best, *ends]


PER_TOKEN = ("perplexity", "bits_per_byte")


def _four(values: Array) -> str:
    return f"{values[-1]:.4f}" if len(values) else "-"


# -- rates


def rates(runs: Runs) -> Section:
    """Learning rate and weight decay as used."""
    panels = [
        Panel("Learning rate η", "η", over_steps(runs, "learning_rate"), False, 0),
        Panel("Weight decay λ", "λ", over_steps(runs, "weight_decay", RED), False, 0),
    ]
    about = "As used in the last step before each line; the pull on the weights is their product."
    source = picture(panels, "step", across=2)
    return Section("rates", "Rates", about, [Picture("rates over steps", source)])


# -- speed and clients


def speed(runs: Runs) -> Section:
    """Tokens a second, and where the time of the whole run went."""
    rate = Panel(
        "Tokens a second, all ranks", "1/s", over_steps(runs, "tokens_per_second"), False, 0
    )
    source = picture([rate], "step")
    about = "Since the last line; evaluations and checkpoints are not in it."
    section = Section("speed", "Time", about, [Picture("tokens a second over steps", source)])
    phases = list(dict.fromkeys(k for run in runs for k in run.summary.get("phase_seconds") or {}))
    if phases:
        rows = [[run.name, *(_seconds(run, phase) for phase in phases)] for run in runs]
        section.tables.append(Table(["run", *phases], rows, "Seconds of the whole run by phase."))
    return section


def _seconds(run: Stored, phase: str) -> str:
    value = (run.summary.get("phase_seconds") or {}).get(phase)
    return "-" if value is None else f"{value:,.1f}"


def lm_clients(runs: Runs) -> Section | None:
    """Loss and drift of the clients of federated language models."""
    runs = [run for run in runs if run.events("lm_client")]
    if not runs:
        return None
    panels = [
        Panel("Loss of the clients: median and range", "nats", partial(_of_clients, runs, "loss")),
        Panel("Drift of the clients: median and range", "RMS", partial(_of_clients, runs, "drift")),
    ]
    about = (
        "Each client's mean loss in the round that ended at a step, on its own text; drift is the "
        "root mean square of its weights minus the global ones that it began the round with."
    )
    source = picture(panels, "step")
    return Section("clients", "Clients", about, [Picture("clients over steps", source)])


def _of_clients(runs: Runs, field: str, axes: Axes) -> None:
    for run, ink in zip(runs, inks(runs), strict=True):
        table = client_table(run.events("lm_client"), "step", lambda record: record.get(field))
        draw_spread(axes, *table, ink, BLUE, "-", field)
    name_runs(axes, runs)
