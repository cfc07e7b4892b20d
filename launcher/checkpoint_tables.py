"""What `fedcore checkpoint show` prints: the checkpoints of a run, and the inside of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedcore.checkpoint import Checkpoint, pointed_at
from fedcore.config_text import flatten
from fedcore.errors import FedError
from fedcore.export import Tensors, read_tensors
from fedcore.files import inside
from launcher.checkpoint_stored import problem
from launcher.words import count, number, size

SHORT = 8  # entries of a long list that are shown
IDENTITY = "config"  # the facts that every line of config.yaml says already


def listed(folders: Sequence[Path]) -> Table:
    """A row for each checkpoint: when, how large, of how many clients, how good, whether whole."""
    table = Table("checkpoint", "written", "size", "files", "clients", "score", "", "", box=None)
    for column in (table.columns[0], table.columns[-1]):
        column.no_wrap = True  # names to copy, also where the line is short
    for folder in folders:
        near, own = folder.parent, folder.name
        marks = [name for name in ("latest", "best") if pointed_at(near, name) == own]
        table.add_row(folder.name, _written(folder), *_row(folder), " ".join(marks))
    return table


def _written(folder: Path) -> str:
    try:
        at = (folder / "index.json").stat().st_mtime
    except OSError:
        return "-"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _row(folder: Path) -> tuple[str, str, str, str, str]:
    """Size, files, clients, score and whether all is as it was written."""
    bad = "[red]bad[/]"
    try:
        held = Checkpoint(folder)
        there = [folder / str(e["file"]) for e in held.files if not problem(folder, e)]
        total = size(sum(path.stat().st_size for path in there))
    except (FedError, OSError):  # or gone: the run keeps the newest ones only
        return "-", "-", "-", "-", bad
    whole = "[green]good[/]" if len(there) == len(held.files) else bad
    score = held.facts.get("score")
    shown = f"{score:.4f}" if isinstance(score, int | float) else "-"
    return total, str(len(held.files)), str(len(held.clients)), shown, whole


def facts(folder: Path) -> Table:
    """What a checkpoint says of itself, without the configuration."""
    held = Checkpoint(folder)
    table = Table(show_header=False, box=None, title=escape(str(folder)))
    said = {k: v for k, v in held.facts.items() if k not in (IDENTITY, "run")}
    for key, value in flatten(said).items():
        table.add_row(escape(key), escape(_short(value)))
    table.add_row("clients", _short(held.clients))
    return table


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > SHORT:
        return f"{', '.join(map(str, value[:SHORT]))}, ... ({len(value)})"
    return str(value)


def tensors(folder: Path) -> Table:
    """Name, shape, type and norm of every tensor; `ShardError` for the first bad file."""
    held = Checkpoint(folder)
    held.verify()
    table = Table(box=None)
    for column in ("file", "tensor", "shape", "type", "norm"):
        table.add_column(column, overflow="fold")  # a name that is cut off names nothing
    for entry in held.files:
        for name, shape, kind, norm in _described(read_tensors(inside(folder, entry["file"]))):
            table.add_row(escape(str(entry["file"])), escape(name), shape, kind, norm)
    table.caption = count(table.row_count, "tensor")
    return table


def _described(found: Tensors) -> Iterator[tuple[str, str, str, str]]:
    for name, value in sorted(found.items()):
        kind = str(value.dtype).removeprefix("torch.")
        yield name, str(list(value.shape)), kind, number(float(value.double().norm()))
