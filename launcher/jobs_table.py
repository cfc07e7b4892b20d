"""The table of `fedcore jobs`: on a terminal as wide as that is, in a pipe a line for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.telemetry.screen import console_for
from launcher.jobs import Row, shown
from launcher.watch_parts import printable

COLUMNS = ("job", "run", "queue", "status", "progress", "result", "resumed", "time", "where")
COLOURS = {"completed": "green", "running": "cyan", "failed": "red", "diverged": "red"}
WIDE = 10_000  # columns of a pipe: nothing is cut or folded there


def show(found: Sequence[Row], stream: TextIO) -> None:
    """Write the table; every cell is text, whatever a directory may be called."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    if not stream.isatty():
        for column in table.columns:
            column.no_wrap = True
    for row in found:
        table.add_row(*_cells(row))
    _console(stream).print(table)


def _cells(row: Row) -> list[Text]:
    words = [row.job, shown(row.run), row.queue, row.status, row.progress, row.result]
    words += [str(row.resumed or ""), row.time, row.where]
    cells = [Text(printable(word)) for word in words]
    cells[3].stylize(COLOURS.get(row.status, "yellow"))
    return cells


def _console(stream: TextIO) -> Console:
    """A pipe gets each run in one line, however long."""
    if stream.isatty():
        return console_for(stream)
    return Console(file=stream, force_terminal=False, color_system=None, width=WIDE)
