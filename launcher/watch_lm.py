"""A language-model run as a live picture, from its events."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedcore.telemetry.events import Event, LMClientEvent, LMEvalEvent, LMResumeEvent, LMStepEvent
from launcher.watch_parts import (
    IN_FULL,
    Notes,
    Pace,
    numbers,
    printable,
    row_of,
    spark_width,
    sparkline,
    spread_row,
)
from launcher.words import number

STEPS = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "weight_decay": "weight decay",
    "gradient_norm": "gradient norm",
    "tokens_per_second": "tokens/s",
}
HELD_OUT = {
    "loss": "held-out loss",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
LOWER_IS_BETTER = {"loss", *HELD_OUT.values()}
GROUPS = 8  # parameter groups shown
Course = dict[int, float]


class LMWatch:
    """What is known of a language-model run."""

    unit = "step"

    def __init__(self, steps: int = 0) -> None:
        self.pace, self.notes = Pace(steps), Notes()
        self.last: LMStepEvent | None = None
        self.weights: LMStepEvent | None = None  # the last line in which they were measured
        self.clients: dict[int, LMClientEvent] = {}  # of the newest round
        self.courses: dict[str, Course] = {t: {} for t in (*HELD_OUT.values(), *STEPS.values())}

    def take(self, event: Event) -> None:
        """The next event of the file."""
        self.notes.take(event)
        if isinstance(event, LMStepEvent):
            self._step(event)
        elif isinstance(event, LMEvalEvent):
            self._record(event.step, event, HELD_OUT)
        elif isinstance(event, LMClientEvent):
            if any(c.step != event.step for c in self.clients.values()):
                self.clients = {}
            self.clients[event.client] = event
        elif isinstance(event, LMResumeEvent):
            self._back_to(event.step)

    def _step(self, event: LMStepEvent) -> None:
        self.last = event
        self.pace.line(event.step, event.steps, event.time)
        self._record(event.step, event, STEPS)
        if event.weight_rms:
            self.weights = event

    def _record(self, step: int, event: Event, titles: Mapping[str, str]) -> None:
        for name, title in titles.items():
            self.courses[title][step] = float(getattr(event, name))

    def _back_to(self, step: int) -> None:
        """Forget what is done again: a resumed run repeats the steps after its checkpoint."""
        self.pace.resumed(step)
        self.clients = {}
        for course in self.courses.values():
            for later in [s for s in course if s > step]:
                del course[later]

    def parts(self, width: int) -> list[RenderableType | None]:
        """What there is to show, what matters most first."""
        warnings, clients = self.notes.view(), self._clients(width) if self.clients else None
        if self.last is None:
            return [warnings]
        measured = self._weights(self.weights) if self.weights else None
        return [self._now(self.last), warnings, self._courses(width), clients, measured]

    def _now(self, last: LMStepEvent) -> Columns:
        return row_of({"tokens": f"{last.tokens:,}", "": f"{last.tokens_per_second:,.0f} tokens/s"})

    def _courses(self, width: int) -> Table:
        table = numbers("", "now", "lowest", "at step")
        for title, course in self.courses.items():
            known = {step: value for step, value in course.items() if math.isfinite(value)}
            if known:
                now, low = [*course.values()][-1], min(known, key=lambda s: known[s])
                drawn = sparkline(course.values(), spark_width(width, 3))
                best = (digits(known[low]), f"{low:,}") if title in LOWER_IS_BETTER else ("", "")
                style = "bold" if title in ("loss", "held-out loss") else None
                table.add_row(title, digits(now), *best, drawn, style=style)
        return table

    def _weights(self, seen: LMStepEvent) -> Group:
        """Size of the weights against its prediction, and how long they remember."""
        table = numbers(f"weights, step {seen.step:,}", "RMS", "predicted", "ratio", "update")
        for name in list(seen.weight_rms)[:GROUPS]:
            now, due = seen.weight_rms[name], seen.weight_rms_predicted.get(name, math.nan)
            ratio = now / due if due else math.nan
            cells = number(now), number(due), number(ratio), number(seen.update_ratio.get(name))
            table.add_row(Text(printable(name)), *cells, "")
        memory = {printable(name): number(value) for name, value in seen.memory_steps.items()}
        left = number(seen.initialisation_left)
        words = ", ".join(f"{name} {value}" for name, value in memory.items())
        memory_words = f"memory in steps: {words}; of the initial weights left: {left}"
        return Group(table, Text(memory_words, "dim"))

    def _clients(self, width: int) -> RenderableType:
        """Each of a few clients, or the spread over many."""
        clients = sorted(self.clients.values(), key=lambda c: c.client)
        table = numbers(f"{len(clients):,} clients", "min", "median", "max")
        for name in ("loss", "drift"):
            spread_row(table, name, [float(getattr(c, name)) for c in clients], "")
        if len(clients) <= IN_FULL:
            each = {f"client {c.client}": digits(c.loss) for c in clients}
            return Group(table, row_of(each))
        return table


def digits(value: float) -> str:
    """Four digits after the point for what is near one, else as a reader wants it."""
    return f"{value:.4f}" if 0.1 <= abs(value) < 100 else number(value)
