"""What the live pictures are made of: sparklines, time left, grids of numbers, what to cut."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedcore.telemetry.events import (
    Event,
    LMResumeEvent,
    LMWarningEvent,
    ResumeEvent,
    WarningEvent,
)
from launcher.words import number

BLOCKS = "▁▂▃▄▅▆▇█"
LAST = 20  # lines that the pace is taken from
FEW = 3  # warnings shown
IN_FULL = 8  # clients with a row each; of more, the spread and the foremost


def sparkline(values: Iterable[float], width: int) -> str:
    """The course of the values in at most `width` characters; a gap where none is known.

    From the smallest to the largest; a character stands for the mean of its part.
    """
    known = np.array(list(values), dtype=np.float64)
    parts = [p[np.isfinite(p)] for p in np.array_split(known, min(width, len(known)) or 1)]
    means = [float(p.mean()) if len(p) else math.nan for p in parts]
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    heights = [(m - low) / span if span else 0.5 for m in means]
    return "".join(" " if math.isnan(h) else BLOCKS[round(h * (len(BLOCKS) - 1))] for h in heights)


def spark_width(width: int, columns: int) -> int:
    """Characters left for a sparkline beside a name and so many numbers."""
    return max(4, min(40, width - 22 - 9 * columns))


def clock(seconds: float) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """How far the run is, and how fast, from the times of its lines."""

    def __init__(self, total: int = 0) -> None:
        self.total, self.done = total, 0
        self._lines: deque[tuple[int, float]] = deque(maxlen=LAST)

    def line(self, done: int, total: int, time: float) -> None:
        """A line at `time` (unix seconds) says that so many are done."""
        self.done, self.total = done, total
        self._lines.append((done, time))

    def resumed(self, done: int) -> None:
        """It goes on from there; the pause says nothing of the pace."""
        self.done = done
        self._lines.clear()

    @property
    def seconds(self) -> float | None:
        """Seconds for one; None before there are two lines."""
        if len(self._lines) < 2 or self._lines[-1][0] <= self._lines[0][0]:
            return None
        (first, began), (last, now) = self._lines[0], self._lines[-1]
        return max(0.0, now - began) / (last - first)

    @property
    def between_lines(self) -> float:
        """Seconds from line to line; 0 before there are two."""
        count = len(self._lines)
        return (self._lines[-1][1] - self._lines[0][1]) / (count - 1) if count > 1 else 0.0

    def bar(self, unit: str, width: int, over: bool) -> Table:
        """The bar, how many are done, and the time left."""
        words = f"{unit} {self.done:,}/{self.total:,}" if self.total else f"{unit} {self.done:,}"
        left = "" if over or self.seconds is None else self._left(self.seconds)
        grid = Table.grid(padding=(0, 2))
        room = max(8, min(60, width - len(words) - len(left) - 6))
        bar = ProgressBar(max(1, self.total), self.done, width=room, complete_style="cyan")
        grid.add_row(bar, words, left)
        return grid

    def _left(self, seconds: float) -> str:
        return f"{clock(seconds * (self.total - self.done))} left"


class Notes:
    """Warnings, how often the run was resumed, and when its last line came."""

    def __init__(self) -> None:
        self.warnings: deque[str] = deque(maxlen=FEW)
        self.warned = self.resumed = 0
        self.last = math.nan  # unix seconds

    def take(self, event: Event) -> None:
        """Note the time of an event, and its words if it is a warning or a resume."""
        self.last = event.time
        if isinstance(event, WarningEvent | LMWarningEvent):
            self.warned += 1
            self.warnings.append(event.message)
        elif isinstance(event, ResumeEvent | LMResumeEvent):
            self.resumed += 1

    def age(self, now: float, usual: float) -> Text:
        """How long ago the last line was; in colour when it is overdue. usual: seconds."""
        if math.isnan(self.last):
            return Text("no line yet", "yellow")
        age = max(0.0, now - self.last)
        if age < max(30.0, 5 * usual):
            return Text(f"last line {age:.0f} s ago", "dim")
        return Text(f"no line for {age:,.0f} s", "bold red")

    def view(self) -> Text | None:
        """The number of warnings and the last of them; None without any."""
        if not self.warned:
            return None
        head = f"{self.warned} warnings, the last:" if self.warned > FEW else "warnings:"
        lines = [head, *(f"  {printable(w)}" for w in self.warnings)]
        return Text("\n".join(lines), "yellow", overflow="ellipsis")


def printable(words: str) -> str:
    """Words from a file without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in words)


def row_of(pairs: Mapping[str, str], first: Text | None = None) -> Columns:
    """`name value` side by side, in as many lines as the width needs."""
    words = [Text(f"{name} {value}".strip()) for name, value in pairs.items()]
    return Columns([*([first] if first else []), *words], padding=(0, 3))


def numbers(title: str, *columns: str) -> Table:
    """A table of numbers with a wide last column without a title, for a sparkline."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(title, no_wrap=True, max_width=20)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop", style="cyan")
    return table


def spread_row(table: Table, name: str, values: Sequence[float], course: str) -> None:
    """Smallest, middle and largest of the clients' values; nothing if none is known."""
    known = [v for v in values if math.isfinite(v)]
    if known:
        low, middle, high = np.quantile(known, [0, 0.5, 1])
        table.add_row(name, number(low), number(middle), number(high), course)


def fitting(
    parts: Sequence[RenderableType | None], console: Console, width: int, height: int
) -> Group:
    """As many of the parts as fit, in order, a blank line between; the first one always."""
    options = console.options.update(width=width, height=None)
    shown: list[RenderableType] = []
    used = 0
    for part in parts:
        if part is None:
            continue
        lines = len(console.render_lines(part, options, pad=False)) + bool(shown)
        if shown and used + lines > height:
            continue
        shown += ["", part] if shown else [part]
        used += lines
    return Group(*shown)
