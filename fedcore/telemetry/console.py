"""What rank 0 says: a progress bar on a terminal, sparse plain lines in a log, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedcore.telemetry.events import ClientEvent, Event, ResumeEvent, RoundEvent, WarningEvent

LINES = 20  # about as many lines a run leaves in a log


class ConsoleSink:
    """Rounds as they end."""

    def __init__(self, rounds: int, samples_per_round: int, readout: str, title: str) -> None:
        self.rounds, self.readout = rounds, readout
        self.console = Console(highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task(title, total=rounds * samples_per_round)
            self._bar.start()
        else:
            self.say(title)

    def say(self, words: str) -> None:
        """One plain line."""
        self.console.print(words, markup=False)

    def warn(self, words: str) -> None:
        """One line on standard error."""
        print(f"fedcore: warning: {words}", file=sys.stderr, flush=True)

    def trained(self, samples: int) -> None:
        """Move the bar by this rank's samples."""
        if self._bar:
            self._bar.advance(self._task, samples)

    def write(self, events: Sequence[Event]) -> None:
        """A line for the round, if this round has one."""
        clients = [e for e in events if isinstance(e, ClientEvent)]
        for event in events:
            if isinstance(event, WarningEvent):
                self.warn(event.message)
            elif isinstance(event, ResumeEvent):
                self.say(f"going on at round {event.round + 1} from {event.checkpoint}")
            elif isinstance(event, RoundEvent) and self._has_line(event.round):
                self.say(self._line(event, clients))

    def _has_line(self, round: int) -> bool:
        done, step = round + 1, -(-self.rounds // LINES)
        return done in (1, self.rounds) or done % step == 0

    def _line(self, event: RoundEvent, clients: Sequence[ClientEvent]) -> str:
        lam = sorted(e.lambda_effective for e in clients)
        parts = [
            f"round {event.round + 1:>{len(str(self.rounds))}}/{self.rounds}",
            f"base {median(e.base_loss for e in clients):.3f}",
            f"align {median(e.align_loss for e in clients):.4f}",
            f"lambda {median(lam):.3g} ({lam[0]:.3g}...{lam[-1]:.3g})",
            f"s {event.annealing_factor:.3f}",
        ]
        if event.accuracy:
            parts.append(f"{self.readout} {event.accuracy[self.readout]:.2%}")
        parts.append(f"{event.samples_per_second:,.0f} samples/s")
        return "  ".join(parts)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()


def accuracy_table(accuracy: Mapping[str, float], main: str) -> Table:
    """Test accuracy by read-out; the algorithm's own is marked."""
    table = Table("read-out", "test accuracy", title="Test accuracy by read-out")
    table.columns[1].justify = "right"
    for name, value in accuracy.items():
        table.add_row(f"{name} *" if name == main else name, f"{value:.2%}")
    return table
