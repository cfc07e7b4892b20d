"""What the tests run of each package, as a Markdown table, from the data of `make coverage`."""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).parent.parent


def lines() -> dict[str, tuple[int, int]]:
    """Of each file, relative to the root: its statements, and those that no test ran."""
    data = coverage.Coverage()
    data.load()
    found = {}
    for file in sorted(data.get_data().measured_files()):
        _, statements, _, missing, _ = data.analysis2(file)
        found[str(Path(file).relative_to(ROOT))] = (len(statements), len(missing))
    return found


def row(name: str, statements: int, missing: int) -> str:
    """A line of the table."""
    return f"| {name} | {statements:,} | {1 - missing / statements:.1%} |"


def table() -> str:
    """A row a package, and the sum."""
    packages: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for file, counts in lines().items():
        for name in (str(Path(file).parent), "all"):
            packages[name] = [a + b for a, b in zip(packages[name], counts, strict=True)]
    whole = packages.pop("all")
    rows = [row(f"`{name}`", *counts) for name, counts in sorted(packages.items()) if counts[0]]
    head = ["| package | statements | run by tests |", "|---|---|---|"]
    return "\n".join([*head, *rows, row("**all**", *whole)])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
