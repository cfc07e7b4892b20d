"""The comparison at the end of a list: a table in three forms, and the curves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedcore.checkpoint import write_atomically
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.telemetry.screen import console_for
from launcher import comparing, suite_results
from launcher.compare import OWN, Group, mean_and_std
from launcher.compare import Row as AccuracyRow
from launcher.grid import Cell
from launcher.rundir import storage
from launcher.suite_plot import plot_curves
from launcher.suite_results import MEASURES, Row
from launcher.suite_state import COMPLETED, DIVERGED, FAILED
from launcher.sweep import Result

NOTE = (
    "Mean ± sample standard deviation over seeds, of completed runs. Losses in nats per token; the "
    "held-out loss is that of all held-out text after the last step. RMS drift: last over first "
    "measured RMS of the main parameter group."
)


def write_and_show(out: Path) -> None:
    """Write the table and the picture into the list's directory and print the table.

    Raises `ConfigError` if no list has been run there, `StorageError` if it cannot be written.
    """
    found, first = suite_results.rows(out), suite_results.read(out)[0]
    with FileLock(out / ".table.lock"):  # the last tasks of an array may end at once
        if first["kind"] == "lm":
            write(found, out)
            _show(found, out)
        else:
            group = accuracies(found)
            comparing.show([group], out, OWN, comparing.write([group], out, OWN))


def write(found: Sequence[Row], out: Path) -> None:
    """Write table.md, table.json and curves.png into `out`."""
    with storage(out):
        write_atomically(out / "table.md", markdown(found))
        write_atomically(
            out / "table.json", json.dumps(suite_results.as_json(found), indent=1) + "\n"
        )
        plot_curves(found, out / "curves.png")


def _show(found: Sequence[Row], out: Path) -> None:
    console = console_for(sys.stdout)
    if not console.is_terminal:
        console.width = WIDE
    for table in rich_tables(found):
        console.print(table)
    console.print(NOTE, highlight=False)
    console.print(f"{out}/table.md, table.json, curves.png", highlight=False, soft_wrap=True)


WIDE = 180  # columns of a log file, which nobody's window limits


def spread(values: dict[int, float], name: str) -> str:
    """Mean ± spread of one measure; without a spread for one seed, a dash for none."""
    mean, std = mean_and_std(values)
    text = MEASURES[name].text
    return "-" if mean is None else text(mean) if not std else f"{text(mean)} ± {text(std)}"


def differences(changes: dict[str, Any]) -> str:
    """Keys that differ from the first experiment; a dash for none."""
    words = [f"{key.removeprefix('lm.')}={json.dumps(v)}" for key, v in changes.items()]
    return ", ".join(words).replace('"', "") or "-"


def cells(row: Row) -> list[str]:
    """The row's columns as text."""
    numbers = [spread(row.numbers(name), name) for name in MEASURES]
    return [row.name, row.status(), *numbers, differences(row.changes)]


def titles(found: Sequence[Row]) -> list[str]:
    """The titles of the table's columns."""
    measures = [measure.title for measure in MEASURES.values()]
    return ["experiment", "status", *measures, f"differs from {found[0].name}"]


def markdown(found: Sequence[Row]) -> str:
    """The table as a page."""
    head = titles(found)
    lines = [head, ["---"] * len(head), *(cells(row) for row in found)]
    table = "\n".join(
        "| " + " | ".join(w.replace("|", r"\|") for w in line) + " |" for line in lines
    )
    return f"# Experiments\n\n{NOTE}\n\n{table}\n"


def rich_tables(found: Sequence[Row]) -> list[Table]:
    """The numbers, and what the experiments change: side by side they would be too wide."""
    head = titles(found)
    numbers, changes = Table(box=SIMPLE_HEAD), Table(head[0], head[-1], box=SIMPLE_HEAD)
    for number, title in enumerate(head[:-1]):
        short = title.replace(" ", "\n").replace("/", "/\n")
        numbers.add_column(short, justify="left" if number < 2 else "right", no_wrap=number > 1)
    for row in found:
        line = cells(row)
        numbers.add_row(*line[:-1])
        changes.add_row(line[0], line[-1])
    return [numbers, changes] if any(row.changes for row in found) else [numbers]


def accuracies(found: Sequence[Row]) -> Group:
    """The same of federated runs, as `fedcore compare` shows them."""
    rows = [
        AccuracyRow(row.name, tuple(r for t in row.trials if (r := _result(t)))) for row in found
    ]
    kept = tuple(row for row in rows if row.results)
    if not kept:
        raise ConfigError("RUN_DIR", None, "a list of which a run has begun", "again later")
    return Group("experiments", kept, kept[0])


def _result(trial: suite_results.Trial) -> Result | None:
    """The run as a cell of a sweep; None if it never began."""
    file = trial.run_dir / "config.yaml"
    if not file.is_file():
        return None
    cell = Cell(str(file), (), RunConfig.load(file), trial.run_dir)
    found = trial.state
    status = found.status if found.status in (COMPLETED, DIVERGED) else FAILED
    return Result(cell, status, found.code or 0, found.summary)
