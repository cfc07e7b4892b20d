"""Figures and where they are from: spread, turns, tables for a terminal and for docs, JSON.

Nothing here imports torch: a process that only watches others must not share their libraries.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Median, least and greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def told(self, form: str) -> str:
        """As `median [low..high]`."""
        return f"{self.median:{form}} [{self.low:{form}}..{self.high:{form}}]"


class Sheet(NamedTuple):
    """A table as it is printed and as the docs have it; JSON keeps it under `sheets`."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """A paragraph and a table."""
        lines = [self.title, "", _row(self.head), "|---" * len(self.head) + "|"]
        return "\n".join([*lines, *map(_row, self.rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def in_turns(arms: Mapping[str, Callable[[], float]], blocks: int) -> dict[str, list[float]]:
    """What each arm measures, block after block; the first turn is a warm-up.

    Every second time backwards, so that a drift of the machine favours nobody.
    """
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-1, blocks):
        for name in arms if number % 2 else reversed(arms):
            value = arms[name]()
            if number >= 0:
                found[name].append(value)
    return found


def ratio(these: Sequence[float], those: Sequence[float]) -> Spread:
    """Of neighbouring blocks."""
    return Spread.of([x / y for x, y in zip(these, those, strict=True)])


def told(found: Mapping[str, Any]) -> str:
    """The line under a table: where and under what load it was measured."""
    return (
        f"{found['device']}, {found['cores']} cores ({found['machine']}), {found['threads']} "
        f"thread(s), load {found['load'][0]:.1f}, torch {found['torch']}, "
        f"commit {(found['commit'] or 'unknown')[:8]}"
    )


def show(found: Mapping[str, Any]) -> None:
    """All tables of a bench, and where they were measured."""
    from rich.console import Console
    from rich.table import Table

    for sheet in found["sheets"]:
        table = Table(title=sheet["title"], title_justify="left")
        for number, head in enumerate(sheet["head"]):
            table.add_column(head, justify="right" if number else "left")
        for row in sheet["rows"]:
            table.add_row(*row)
        Console(width=140).print(table)
    print(told(found), flush=True)


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Written as JSON, and said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2, default=str) + "\n")
    print(f"written: {path}")
