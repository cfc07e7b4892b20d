"""A comparison in words: for the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from launcher.compare import BEST, OWN, BySeed, Group, Row, mean_and_std

NOTE = (
    "Test accuracy in %, mean ± sample standard deviation over seeds. The best read-out is the one "
    "with the highest mean over seeds on the test set itself, so it is an upper bound and no "
    "choice that could be made in advance. Differences are paired by seed."
)


def percent(values: BySeed, signed: bool = False) -> str:
    """Mean ± spread in percent; without a spread for one seed."""
    mean, std = mean_and_std(values)
    if mean is None:
        return "-"
    text = f"{100 * mean:+.1f}" if signed else f"{100 * mean:.1f}"
    return text if std is None else f"{text} ± {100 * std:.1f}"


def header(group: Group, readout: str) -> list[str]:
    """The titles of a table's columns."""
    named = [] if readout in (OWN, BEST) else [readout]
    fixed = ["run", "own read-out", "best", "best read-out"]
    return [*fixed, *named, *_difference(group, readout), "seeds"]


def _difference(group: Group, readout: str) -> list[str]:
    """Title of the column; a group of one row has none."""
    of = {OWN: "own read-out", BEST: "best read-out"}.get(readout, readout)
    return [f"difference to {group.baseline.label} ({of})"] if len(group.rows) > 1 else []


def cells(group: Group, row: Row, readout: str) -> list[str]:
    """The row's columns as text."""
    named = [] if readout in (OWN, BEST) else [percent(row.accuracy(readout))]
    away = "" if row is group.baseline else percent(group.difference(row, readout), signed=True)
    difference = [away] * len(_difference(group, readout))
    best = [percent(row.accuracy(BEST)), row.best() or "-"]
    return [row.label, percent(row.accuracy(OWN)), *best, *named, *difference, seeds(row)]


def seeds(row: Row) -> str:
    """How many runs completed, and what became of the others."""
    troubles = row.troubles()
    total = len(row.results)
    if not troubles:
        return str(total)
    return "; ".join([f"{total - len(troubles)} of {total}", *troubles])


def rich_tables(groups: Sequence[Group], readout: str) -> list[Table]:
    """A table for each group, for a terminal."""
    tables = []
    for group in groups:
        table = Table(title=group.data, title_justify="left", title_style="bold")
        for number, title in enumerate(header(group, readout)):
            numeric = number in (1, 2) or title in (readout, *_difference(group, readout))
            table.add_column(title, justify="right" if numeric else "left")
        for row in group.rows:
            table.add_row(*cells(group, row, readout))
        tables.append(table)
    return tables


def markdown(groups: Sequence[Group], readout: str) -> str:
    """All groups as one Markdown page."""
    parts = ["# Comparison", NOTE]
    for group in groups:
        titles = header(group, readout)
        lines = [titles, ["---"] * len(titles)]
        lines += [cells(group, row, readout) for row in group.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts += [f"## {group.data}", table]
    return "\n\n".join(parts) + "\n"


SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "α": r"$\alpha$",
}
SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def latex(groups: Sequence[Group], readout: str) -> str:
    """One `tabular` to be `\\input` where `booktabs` is loaded: a row a run, a column a group.

    Of the compared read-out alone, as mean and spread; comments say what a caption has to say.
    """
    rows = list(dict.fromkeys(row.label for group in groups for row in group.rows))
    most = max(len(row.results) for group in groups for row in group.rows)
    of = {OWN: "each algorithm's own read-out", BEST: "best read-out of each row (an upper bound)"}
    lines = [
        f"% test accuracy in %, {of.get(readout, readout)}",
        f"% mean and sample standard deviation over up to {most} seed(s)",
        *(f"% column {number}: {group.data}" for number, group in enumerate(groups, 1)),
        rf"\begin{{tabular}}{{l{'r' * len(groups)}}}",
        r"\toprule",
        " & ".join(["", *map(_escaped, _columns(groups))]) + r" \\",
        r"\midrule",
        *(_latex_row(groups, label, readout) for label in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _columns(groups: Sequence[Group]) -> list[str]:
    """What the groups differ in, where they share the rest: alpha 0.1."""
    parts = [group.data.split(", ") for group in groups]
    shared = set.intersection(*map(set, parts)) if len(groups) > 1 else set()
    return [", ".join(p for p in part if p not in shared) or ", ".join(part) for part in parts]


def _latex_row(groups: Sequence[Group], label: str, readout: str) -> str:
    """A dash where a group has no such row, or none of its runs completed."""
    found = [{row.label: row for row in group.rows}.get(label) for group in groups]
    values = [percent(row.accuracy(readout)) if row else "-" for row in found]
    return " & ".join(map(_escaped, [label, *values])) + r" \\"


def _escaped(text: str) -> str:
    """Text as LaTeX prints it, on one line."""
    return "".join(SPECIAL.get(c, c) for c in " ".join(text.split()))
