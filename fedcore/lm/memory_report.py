"""What a configuration will remember, before any training: numbers, sentences, JSON, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.checkpoint import write_atomically
from fedcore.config_lm import LMConfig
from fedcore.lm.memory import (
    Array,
    Memory,
    gradient_weights,
    long_run_std,
    moments,
    per_part,
    predicted_rms,
)
from fedcore.lm.monitors import forgetting
from fedcore.lm.scale import scaled
from fedcore.lm.schedules import main_lr, peak_step, rates
from fedcore.telemetry.plots import BLUE, GREEN, GREY, RED, frame, save

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes

POINTS = 1000  # drawn of a curve
WRITTEN = 200  # of a curve in JSON
UNEVEN = 2.0  # largest over smallest weight, above which it is said


@dataclass(frozen=True)
class Report:
    """The main group's run, seen from its end. Arrays are over the steps: [T]."""

    config: LMConfig
    memory: Memory
    eta: Array
    lam: Array
    uniform: Array  # weight of each step's gradient over its uniform share
    left: Array  # share of the initialisation after each step
    rms: Array | None  # predicted, for gradients without a mean; None = c is not known (sgdm)
    tenths: list[float]  # weight of each tenth of the data over its uniform share

    @classmethod
    def of(
        cls, config: LMConfig, gradient_std: float | None = None, epoch: int | None = None
    ) -> Report:
        """The report on a configuration, in O(T).

        The RMS starts at 1 / sqrt(width), that of a square matrix under Xavier's rule.

        gradient_std: of a single gradient entry, for sgdm; epoch: steps of one pass over the data.
        """
        optimizer, shares = scaled(config), rates(config)
        eta = main_lr(optimizer) * shares.eta_share
        lam = optimizer.weight_decay * shares.lam_share
        weights = gradient_weights(eta, lam, moments(optimizer)[0] or 0.0)
        width = config.model.width
        std = long_run_std(optimizer, (width, width), gradient_std)
        path = None if std is None else predicted_rms(eta.tolist(), lam.tolist(), std, width**-0.5)
        return cls(
            config=config,
            memory=Memory.of(eta, lam, moments(optimizer), peak_step(config.schedule)),
            eta=eta,
            lam=lam,
            uniform=weights / (weights.mean() or 1.0),
            left=np.cumprod(1 - lam * eta, dtype=np.float64),
            rms=None if path is None else np.asarray(path),
            tenths=per_part(weights, 10, epoch),
        )

    def sentences(self) -> Iterator[str]:
        """What the operator should know, a sentence each."""
        memory, schedule = self.memory, self.config.schedule
        if self.config.federated is not None:
            yield "federated: these numbers are of one client that trains alone, without the server"
        if self.config.monitor.target_rms is not None:
            yield "lm.monitor.target_rms: each layer gets a lam of its own, which is not shown here"
        yield from (words for _, words in forgetting(self.config, rates(self.config)))
        if memory.flatness_inner > UNEVEN:
            yield (
                "steps do not weigh the same: after the warm-up the largest weight is "
                f"{_times(memory.flatness_inner)} the smallest. With equal weights "
                f"{memory.effective_share:.0%} of the steps would average as well; "
                "ema_constant_wd and ema_coupled_wd make them equal"
            )
        if memory.t1 is not None and memory.t1 > 1:
            yield f"the last {memory.t1:.0f} steps count less: their gradients are still in m"
        if schedule.warmup:
            yield f"the {schedule.warmup:,} steps of the warm-up count in proportion to their eta"
        if self.config.data.order == "ordered" and memory.steps >= len(self.tenths):
            yield (
                "the data come in order: the last tenth weighs "
                f"{_times(self.tenths[-1] / self.tenths[0] if self.tenths[0] else math.inf)} "
                "the first"
            )

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values, and curves at `WRITTEN` steps."""
        at = _spread(self.eta.size, WRITTEN)
        curves = {"eta": self.eta, "lam": self.lam, "weight": self.uniform, "left": self.left}
        if self.rms is not None:
            curves["rms"] = self.rms
        values = {name: [float(v) for v in curve[at]] for name, curve in curves.items()}
        numbers = {k: _finite(v) for k, v in asdict(self.memory).items()}
        return {
            **numbers,
            "tenths": [_finite(v) for v in self.tenths],
            "warnings": list(self.sentences()),
            "curves": {"step": at.tolist(), **values},
        }

    def write(self, folder: Path) -> list[Path]:
        """memory.json and memory.png in `folder`, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.record(), indent=1, allow_nan=False) + "\n"
        write_atomically(folder / "memory.json", text)
        return [folder / "memory.json", draw(self, folder / "memory.png")]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if math.isfinite(ratio) else "infinitely many times"


def _spread(steps: int, points: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Step numbers from the first to the last, at most so many."""
    return np.unique(np.linspace(0, steps - 1, points).round().astype(np.int64))


def draw(report: Report, out: Path) -> Path:
    """Gradient weights, rates, what is left of the start, RMS, and tenths of the data: `out`."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    figure = Figure(figsize=(10.5, 8.5), dpi=130, layout="constrained")
    grid = figure.subplots(3, 2)
    at = _spread(report.eta.size, POINTS)
    _draw_weights(grid[0, 0], report, at)
    _draw_rates(grid[0, 1], report, at)
    _draw_left(grid[1, 0], report, at)
    _draw_rms(grid[1, 1], report, at)
    _draw_tenths(grid[2, 0], report)
    _write_numbers(grid[2, 1], report)
    for axes in (grid[0, 0], grid[0, 1], grid[1, 0], grid[1, 1]):
        axes.set_xlabel("step", fontsize=9)
    figure.suptitle(_title(report), fontsize=13, fontweight="bold", x=0.01, ha="left")
    return save(figure, out)


def _title(report: Report) -> str:
    config = report.config
    return f"{config.optimizer.name}, {config.schedule.name}: what {config.steps:,} steps remember"


def _draw_weights(axes: Axes, report: Report, at: Any) -> None:
    frame(axes, "Weight of a step's gradient in the final weights (1 = uniform)")
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    axes.plot(at, report.uniform[at], color=BLUE, linewidth=2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight × T")


def _draw_rates(axes: Axes, report: Report, at: Any) -> None:
    frame(axes, "Rates over their peaks")
    for values, colour, style, name in (
        (report.eta, BLUE, "-", "η"),
        (report.lam, RED, "--", "λ"),
    ):
        peak = float(values.max()) or 1.0
        axes.plot(at, values[at] / peak, color=colour, linestyle=style, label=f"{name}, {peak:.3g}")
    axes.set_ylim(0, 1.06)
    axes.legend(fontsize=8.5, frameon=False)


def _draw_left(axes: Axes, report: Report, at: Any) -> None:
    frame(axes, "Share of the initialisation that is left")
    axes.plot(at, report.left[at], color=GREEN, linewidth=2)
    axes.set_ylim(0, 1.06)


def _draw_rms(axes: Axes, report: Report, at: Any) -> None:
    frame(axes, "RMS of a square matrix under gradients without a mean")
    if report.rms is None:
        words: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "fontsize": 9}
        axes.text(0.5, 0.5, "needs the gradient's std: --gradient-std", **words)
        return
    axes.plot(at, report.rms[at], color=RED, linewidth=2)
    axes.set_ylim(0, 1.1 * float(report.rms.max()))


def _draw_tenths(axes: Axes, report: Report) -> None:
    frame(axes, "Weight of each tenth of the data (1 = uniform)")
    axes.bar(range(1, 11), report.tenths, color=BLUE, width=0.8)
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_xticks(range(1, 11))
    ordered = report.config.data.order == "ordered"
    axes.set_xlabel("tenth of the text" if ordered else "tenth in the order it is read", fontsize=9)


def _write_numbers(axes: Axes, report: Report) -> None:
    """The table, as text beside the curves."""
    axes.axis("off")
    for row, (name, value) in enumerate(rows(report.memory)):
        y = 1 - 0.105 * row
        axes.text(0.0, y, name, fontsize=8.5, color=GREY, va="top")
        axes.text(1.0, y, value, fontsize=8.5, va="top", ha="right")


def rows(memory: Memory) -> list[tuple[str, str]]:
    """The numbers in words, as (what, value)."""
    found = [
        ("x = lam eta_max T", f"{memory.x:.4g}"),
        ("left of the initialisation", f"{memory.initialisation_left:.3%}"),
        ("largest over smallest weight, warm-up and beta1 aside", _times(memory.flatness_inner)),
        ("effective sample size over T", f"{memory.effective_share:.3f}"),
        ("weight on the first half", f"{memory.first_half:.3f}"),
        ("T3, weights, at the peak (steps)", _steps(memory.t3)),
        ("T3 at the last step", _steps(memory.t3_last)),
    ]
    for name, steps in (("T1, first moment", memory.t1), ("T2, second moment", memory.t2)):
        found += [] if steps is None else [(name, _steps(steps))]
    return found


def _steps(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "endless"
