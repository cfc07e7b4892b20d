"""`fedcore compare`: run the cells, and write the table in three forms."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fedcore.checkpoint import write_atomically
from fedcore.telemetry.screen import console_for
from launcher.compare import Group, as_json, check_words, groups
from launcher.compare_alpha import plot_over_alpha
from launcher.compare_plot import plot_comparison
from launcher.compare_tables import NOTE, latex, markdown, rich_tables
from launcher.grid import Cell
from launcher.rundir import storage
from launcher.sweep import STOPPED, finished, sweep

PICTURES = (".png", ".pdf")


def main(
    cells: Sequence[Cell],
    out: Path,
    jobs: int,
    readout: str,
    baseline: str | None,
    *,
    dry_run: bool = False,
) -> int:
    """The exit code: 0 if every cell completed or diverged, 1 if one failed, 75 if stopped."""
    check_words(cells, readout, baseline)
    if dry_run:
        list_cells(cells)
        return 0
    try:
        results = sweep(cells, out, jobs, sys.stdout)
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this ended", file=sys.stderr)
        return STOPPED
    found = groups(results, baseline)
    show(found, out, readout, write(found, out, readout))
    return int(any(result.status == "failed" for result in results))


def list_cells(cells: Sequence[Cell]) -> None:
    """Each cell, whether it is over, and its command."""
    for cell in cells:
        over = finished(cell)
        print(f"{cell.title()}: {over.words() if over else 'to run'}\n  {cell.shown()}")
    print(f"{len(cells)} runs. Nothing was run.")


def write(found: Sequence[Group], out: Path, readout: str) -> list[str]:
    """The names of the files of the comparison in `out`; those of alpha if there are several."""
    texts = {
        "table.md": markdown(found, readout),
        "table.tex": latex(found, readout),
        "table.json": json.dumps(as_json(found, readout), indent=1) + "\n",
    }
    with storage(out):
        for name, text in texts.items():
            write_atomically(out / name, text)
        pictures = [plot_comparison(found, readout, out / f"comparison{k}") for k in PICTURES]
        pictures += [
            p for k in PICTURES if (p := plot_over_alpha(found, readout, out / f"alpha{k}"))
        ]
    return [*texts, *(picture.name for picture in pictures)]


def show(found: Sequence[Group], out: Path, readout: str, names: Sequence[str]) -> None:
    """The tables, and where the files are."""
    console = console_for(sys.stdout)
    for table in rich_tables(found, readout):
        console.print(table)
    console.print(NOTE, highlight=False)
    console.print(f"{out}/{', '.join(names)}", highlight=False, soft_wrap=True)
