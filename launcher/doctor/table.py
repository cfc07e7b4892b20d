"""The findings of all ranks as one table, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.doctor.check import Check
from launcher.doctor.roll import ranks_in_words

COLOURS = {"ok": "green", "bad": "bold red", "-": "yellow"}
PIPE_WIDTH = 200  # characters, where no terminal says how wide it is
MOST = 3  # findings of one name that are fine, and differ a little


@dataclass(frozen=True)
class Row:
    """One finding, and the ranks that have it."""

    check: Check
    ranks: list[int]


def rows(found: Sequence[tuple[int, Check]]) -> list[Row]:
    """Equal findings of several ranks as one; those of one name stay together, bad ones first."""
    merged: dict[str, dict[tuple[str, str], Row]] = {}
    for rank, check in found:
        same = merged.setdefault(check.name, {})
        same.setdefault((check.mark, check.detail), Row(check, [])).ranks.append(rank)
    order = ("bad", "-", "ok")
    return [
        row
        for same in merged.values()
        for row in sorted(same.values(), key=lambda row: order.index(row.check.mark))
    ]


def code(found: Sequence[tuple[int, Check]]) -> int:
    """The exit code: 1 if something needed is missing anywhere."""
    return int(any(check.bad for _, check in found))


def render(found: Sequence[tuple[int, Check]], nodes: Sequence[str], out: IO[str]) -> None:
    """A table of what was found. nodes: of each rank."""
    many = len(nodes) > 1
    table = Table("", "check", *(["where"] if many else []), "found", "way out")
    fine: dict[str, int] = {}
    for row in rows(found):
        check = row.check
        fine[check.name] = fine.get(check.name, 0) + check.ok
        if check.ok and fine[check.name] > MOST:
            continue
        words = [check.detail, "" if check.ok else check.way_out]
        place = [where(row.ranks, nodes)] if many else []
        cells = [check.name, *place, *words]
        mark = f"[{COLOURS[check.mark]}]{check.mark}[/]"
        table.add_row(mark, *(escape(cell) for cell in cells))
    Console(file=out, width=None if out.isatty() else PIPE_WIDTH).print(table)
    bad = len({row.check.name for row in rows(found) if row.check.bad})
    verdict = f"{bad} to mend" if bad else "fit"
    print(f"{verdict} ({len(nodes)} ranks)" if many else verdict, file=out)


def where(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """`all`, or ranks and their nodes; one rank of each node speaks for it."""
    if len(ranks) == len(nodes):
        return "all"
    names = sorted({nodes[rank] for rank in ranks})
    if len(set(nodes)) == 1:
        return ranks_in_words(ranks)
    return f"{ranks_in_words(ranks)} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"


def as_json(found: Sequence[tuple[int, Check]], nodes: Sequence[str]) -> str:
    """All findings as a JSON text."""
    told = {
        "ok": code(found) == 0,
        "ranks": len(nodes),
        "nodes": list(dict.fromkeys(nodes)),
        "checks": [{**row.check.to_json(), "ranks": row.ranks} for row in rows(found)],
    }
    return json.dumps(told, indent=1)


def show(found: Sequence[tuple[int, Check]], nodes: Sequence[str], machine: bool) -> None:
    """Print the findings: a table, or JSON for a machine."""
    if machine:
        print(as_json(found, nodes))
    else:
        render(found, nodes, sys.stdout)
    sys.stdout.flush()
