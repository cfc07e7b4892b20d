"""What rank 0 shows of a run: on a terminal a bar and a line a round, in a log sparse lines."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.table import Table

from fedcore.telemetry.events import (
    VALIDATION,
    ClientEvent,
    Event,
    ResumeEvent,
    RoundEvent,
    WarningEvent,
)
from fedcore.telemetry.screen import Screen, console_for

COUNTED = "round {task.completed:.1f}/{task.total}"
LINES = 20  # of rounds in a log; a run of no more rounds shows each


class ConsoleSink:
    """Shows rounds on `stream` (standard output if None). readout: the accuracy to show.

    per_round: samples this rank trains on in a round, so that the bar also moves within one.
    """

    def __init__(
        self,
        rounds: int,
        algorithm: str,
        readout: str,
        stream: TextIO | None = None,
        per_round: int = 0,
    ) -> None:
        self.rounds, self.algorithm, self.readout = rounds, algorithm, readout
        self._per_round, self._done = per_round, 0.0
        self._screen = Screen(stream, algorithm, rounds, COUNTED)

    def write(self, events: Sequence[Event]) -> None:
        """Show the round that these events are of; warnings and resumption at once."""
        clients = [e for e in events if isinstance(e, ClientEvent)]
        for event in events:
            if isinstance(event, RoundEvent):
                self._round(event, clients)
            elif isinstance(event, ResumeEvent):
                self._advance(event.round, "")
                self._screen.say(f"going on with round {event.round + 1} from {event.checkpoint}")
            elif isinstance(event, WarningEvent):
                self._screen.say(f"warning: {event.message}")

    def trained(self, samples: int) -> None:
        """Move the bar within the round; never beyond its end."""
        if self._screen.has_bar and self._per_round:
            share = self._screen.done - self._done + samples / self._per_round
            self._screen.advance(self._done + min(1.0, share))

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._screen.close()

    def _round(self, event: RoundEvent, clients: Sequence[ClientEvent]) -> None:
        if self._screen.has_bar or shown(event.round, self.rounds):
            self._screen.say(round_line(event, clients, self.readout))
        self._advance(event.round + 1, self._now(event, clients))

    def _now(self, event: RoundEvent, clients: Sequence[ClientEvent]) -> str:
        lam = statistics.median(e.lambda_effective for e in clients) if clients else math.nan
        return f"accuracy {_accuracy(event, self.readout)}  lambda {lam:.3g}"

    def _advance(self, done: int, words: str) -> None:
        self._done = done
        self._screen.advance(done, words)


def shown(round: int, rounds: int) -> bool:
    """Whether a log shows this round: the first, the last, and about LINES in all."""
    stride = max(1, math.ceil(rounds / LINES))
    return round in (0, rounds - 1) or (round + 1) % stride == 0


def round_line(event: RoundEvent, clients: Sequence[ClientEvent], readout: str) -> str:
    """A round in words: accuracy, lambda as used (min, median, max), mean losses, speed."""
    width = len(str(event.rounds))
    parts = [
        f"round {event.round + 1:>{width}}/{event.rounds}",
        f"accuracy {_accuracy(event, readout)}",
    ]
    if clients:
        used = [e.lambda_effective for e in clients]
        parts += [
            f"lambda {min(used):.3g} / {statistics.median(used):.3g} / {max(used):.3g}",
            f"base {statistics.fmean(e.base_loss for e in clients):.4f}",
            f"align {statistics.fmean(e.align_loss for e in clients):.4f}",
        ]
    return "  ".join([*parts, f"{event.samples_per_second:,.0f} samples/s"])


def _accuracy(event: RoundEvent, readout: str) -> str:
    value = event.accuracy.get(readout)
    return "-     " if value is None else f"{value:.4f}"


def final_table(
    accuracy: Mapping[str, float], readout: str, title: str = "", stream: TextIO | None = None
) -> None:
    """Print test accuracy by read-out, the best first; the run's own is marked.

    What was read out on clients' own validation samples stands below.
    """
    table = Table(title=title or None, title_justify="left", title_style="bold")
    table.add_column("read-out")
    table.add_column("test accuracy", justify="right")
    tested = {name: value for name, value in accuracy.items() if not name.startswith(VALIDATION)}
    for name, value in sorted(tested.items(), key=lambda pair: -pair[1]):
        own = name == readout
        table.add_row(f"{name} *" if own else name, f"{value:.4f}", style="bold" if own else None)
    words = [f"* {readout} is reported as test_accuracy"] if readout in tested else []
    words += [f"{name} {accuracy[name]:.4f}" for name in accuracy if name not in tested]
    table.caption, table.caption_justify = "\n".join(words), "left"
    console_for(stream or sys.stdout).print(table)
