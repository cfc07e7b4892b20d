"""Where rank 0 shows a run: on a terminal lines above a progress bar, in a log lines alone."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Screen:
    """`stream` (standard output if None), with a bar of `total` if it is a terminal.

    task: stands before the bar; counted: how the bar's figures are written, as rich has it.
    """

    def __init__(self, stream: TextIO | None, task: str, total: int, counted: str) -> None:
        self._stream = stream or sys.stdout
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = _bar(self._stream, counted)
            self._task = self._bar.add_task(task, total=total, words="")
            self._bar.start()

    @property
    def has_bar(self) -> bool:
        """Whether there is a bar: else lines are all that is shown."""
        return self._bar is not None

    @property
    def done(self) -> float:
        """Where the bar stands; 0 without one."""
        return self._bar.tasks[self._task].completed if self._bar else 0.0

    def advance(self, done: float, words: str | None = None) -> None:
        """Move the bar, if there is one; words: stand after it (None: those that are there)."""
        if self._bar:
            fields: dict[str, Any] = {} if words is None else {"words": words}
            self._bar.update(self._task, completed=done, **fields)

    def say(self, words: str) -> None:
        """A line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(escape(words), highlight=False, soft_wrap=True)
        else:
            print(words, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar:
            self._bar.stop()


def console_for(stream: TextIO) -> Console:
    """A rich console that writes plain text unless `stream` is a terminal, whatever FORCE_COLOR."""
    if stream.isatty():
        return _Console(file=stream)
    return Console(file=stream, force_terminal=False, color_system=None, width=100)


class _Console(Console):
    """Leaves the cursor alone: this process may end in os._exit, which would not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


def _bar(stream: TextIO, counted: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(counted),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
        console=console_for(stream),
    )
