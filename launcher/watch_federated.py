"""A federated run as a live picture, from its events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nlargest

import numpy as np
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedcore.telemetry.events import ClientEvent, Event, ResumeEvent, RoundEvent
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
from launcher.words import number, size

SPREAD = {
    "lambda_effective": "lambda effective",
    "lambda_raw": "lambda raw",
    "lambda_equilibrium": "lambda equilibrium",
    "base_loss": "base loss",
    "align_loss": "align loss",
    "gradient_norm": "gradient norm",
}
FOREMOST = 5  # clients named when there are many


class FederatedWatch:
    """What is known of a federated run. readout: the one it reports; None = the file's first."""

    unit = "round"

    def __init__(self, rounds: int = 0, readout: str | None = None) -> None:
        self.pace, self.notes, self.readout = Pace(rounds), Notes(), readout
        self.last: RoundEvent | None = None
        self.clients: list[ClientEvent] = []  # of the last whole round
        self.values: dict[str, list[float]] = {}  # of its clients, by field, where known
        self.accuracy: dict[str, dict[int, float]] = {}  # by read-out and round
        self.medians: dict[str, dict[int, float]] = {name: {} for name in SPREAD}  # by round
        self._coming: dict[int, ClientEvent] = {}  # of the round whose line is to come

    def take(self, event: Event) -> None:
        """The next event of the file."""
        self.notes.take(event)
        if isinstance(event, ClientEvent):
            self._coming[event.client] = event
        elif isinstance(event, RoundEvent):
            self._round(event)
        elif isinstance(event, ResumeEvent):
            self._back_to(event.round)

    def _round(self, event: RoundEvent) -> None:
        self.pace.line(event.round + 1, event.rounds, event.time)
        self.last, self.clients, self._coming = event, [*self._coming.values()], {}
        for name, value in event.accuracy.items():
            self.accuracy.setdefault(name, {})[event.round] = value
        self.values = {name: self._known(name) for name in SPREAD}
        for name, values in self.values.items():
            self.medians[name][event.round] = float(np.median(values)) if values else math.nan

    def _back_to(self, round: int) -> None:
        """Forget what is done again: a resumed run repeats the rounds after its checkpoint."""
        self.pace.resumed(round)
        self._coming = {}
        for course in (*self.accuracy.values(), *self.medians.values()):
            for later in [r for r in course if r >= round]:
                del course[later]

    def _known(self, name: str) -> list[float]:
        """What is known of a field of the last round's clients."""
        found = (float(getattr(client, name)) for client in self.clients)
        return [value for value in found if math.isfinite(value)]

    def parts(self, width: int) -> list[RenderableType | None]:
        """What there is to show, what matters most first."""
        if self.last is None:
            return [self.notes.view()]
        accuracy = self._accuracy(width) if self.accuracy else None
        return [self._now(), self.notes.view(), accuracy, *self._clients(width), self._phases()]

    def _now(self) -> Columns:
        last = self.last
        assert last is not None
        found = {
            "s(p)": number(last.annealing_factor),
            "": f"{last.samples_per_second:,.0f} samples/s",
            "prototype std": number(last.prototype_std),
            "model variance": number(last.model_variance),
        }
        above = f"{last.lambda_exploded} clients above lambda_max"
        return row_of(found, Text(above, "bold red") if last.lambda_exploded else None)

    def _accuracy(self, width: int) -> Table:
        table = numbers("accuracy", "now", "best", "in round")
        own = self.readout or next(iter(self.accuracy))
        for name in sorted(self.accuracy, key=lambda name: name != own):
            course = self.accuracy[name]
            if course:
                best = max(course, key=lambda r: course[r])
                now, most = f"{[*course.values()][-1]:.4f}", f"{course[best]:.4f}"
                drawn = sparkline(course.values(), spark_width(width, 3))
                style = "bold" if name == own else None
                table.add_row(Text(printable(name)), now, most, str(best + 1), drawn, style=style)
        return table

    def _clients(self, width: int) -> list[RenderableType | None]:
        """The spread over the clients; then each of a few, or the foremost of many."""
        if not self.clients:
            return []
        table = numbers(f"{len(self.clients):,} clients", "min", "median", "max")
        for name, title in SPREAD.items():
            drawn = sparkline(self.medians[name].values(), spark_width(width, 3))
            spread_row(table, title, self.values[name], drawn)
        few = len(self.clients) <= IN_FULL
        return [table, each_client(self.clients) if few else foremost(self.clients)]

    def _phases(self) -> Columns:
        last = self.last
        assert last is not None
        spent = {printable(name): f"{number(value)} s" for name, value in last.seconds.items()}
        return row_of({**spent, "exchanged": size(last.bytes_communicated)})


def each_client(clients: Sequence[ClientEvent]) -> Table:
    """A row for each; the largest lambda is bold."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    shown = {"samples": "samples", "base": "base_loss", "align": "align_loss"}
    shown |= {"lambda": "lambda_effective", "equilibrium": "lambda_equilibrium"}
    shown |= {"gradient": "gradient_norm"}
    for name in ("client", *shown):
        table.add_column(name, justify="right", no_wrap=True)
    top = foremost_of(clients, 1)
    for client in sorted(clients, key=lambda c: c.client):
        values = [number(getattr(client, field)) for field in shown.values()]
        table.add_row(str(client.client), *values, style="bold" if client in top else None)
    return table


def foremost(clients: Sequence[ClientEvent]) -> Columns:
    """The clients with the largest lambda, in a line."""
    top = foremost_of(clients, FOREMOST)
    pairs = {f"client {c.client}": number(c.lambda_effective) for c in top}
    return row_of(pairs, Text("largest lambda:", "dim"))


def foremost_of(clients: Sequence[ClientEvent], count: int) -> list[ClientEvent]:
    """Those with the largest lambda that is known, the largest first."""
    known = [c for c in clients if math.isfinite(c.lambda_effective)]
    return nlargest(count, known, key=lambda c: c.lambda_effective)
