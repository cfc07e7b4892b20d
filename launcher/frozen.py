"""A user's own files as they were when a sweep or a job was made: copies that nobody edits.

A copy has the name and the text of its file, so that runs of both have the same name and identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcore import extensions
from launcher.cli import LISTED
from launcher.experiment_sections import Experiment
from launcher.grid import Cell
from launcher.prepare import in_one_word
from launcher.rundir import make_private, storage

FOLDER = "extensions"


def keep(files: Iterable[Path], out: Path) -> list[Path]:
    """Copies of what was imported of the files, in their order: `out/extensions/SHA/NAME`."""
    return [_kept(file, out) for file in files]


def _kept(file: Path, out: Path) -> Path:
    copy = out / FOLDER / extensions.sha256(file)[:12] / file.name
    text = extensions.text(file)
    with storage(copy.parent):
        make_private(copy.parent)
        if not copy.is_file() or copy.read_bytes() != text:
            part = copy.with_name(f".{copy.name}.{os.getpid()}")
            part.write_bytes(text)
            part.replace(copy)  # another job may be importing it
    return copy


def cell_of_copies(cell: Cell, out: Path) -> Cell:
    """The same run, from copies of its extensions below `out`."""
    if not cell.config.extensions:
        return cell
    copies = keep(cell.config.extensions, out)
    others = [word for word in cell.overrides if word.partition("=")[0] != extensions.KEY]
    overrides = (*others, f"{extensions.KEY}={in_one_word(copies)}")
    config = cell.config.model_copy(update={extensions.KEY: tuple(copies)})
    return replace(cell, overrides=overrides, config=config)


def values_of_copies(values: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The same configuration, of one run or a list, from copies of its extensions below `out`."""
    found = _named(values, out)
    if LISTED in found:
        entries = (Experiment.model_validate(entry) for entry in found[LISTED])
        found[LISTED] = [row for entry in entries for row in _rows(entry, out)]
    return found


def _rows(entry: Experiment, out: Path) -> list[dict[str, Any]]:
    """The experiment, or one for each value if it tries several extensions; names stay."""
    if extensions.KEY not in entry.each:
        return [{**entry.model_dump(), "set": _named(entry.set, out)}]
    return [{"name": title, "set": _named(keys, out)} for title, keys in entry.variants()]


def _named(values: Mapping[str, Any], out: Path) -> dict[str, Any]:
    given = values.get(extensions.KEY)
    if not given:
        return dict(values)
    files = [given] if isinstance(given, str) else given
    return {**values, extensions.KEY: [str(copy) for copy in keep(map(Path, files), out)]}
