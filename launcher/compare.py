"""The numbers of a comparison: rows of runs on the same data, mean over seeds, paired by seed.

Accuracies are shares of the test set; only completed runs have one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.errors import ConfigError
from fedcore.readouts import READOUTS, SINGLE, VALIDATED
from fedcore.registry import nearest
from fedcore.telemetry.events import VALIDATION
from launcher import cli, prepare
from launcher.grid import Cell
from launcher.sweep import Result

OWN, BEST = "own", "best"
BySeed = dict[int, float]
"""One accuracy, or a difference of two, for each seed."""


@dataclass(frozen=True)
class Row:
    """One configuration and algorithm on the data of its group."""

    label: str
    results: tuple[Result, ...]  # one a seed

    def accuracy(self, readout: str) -> BySeed:
        """By seed, of the completed runs. readout: a name, `own` or `best`."""
        name = self.best() if readout == BEST else readout
        key = "test_accuracy" if name == OWN else name
        found = {}
        for result in self.results:
            value = {**result.summary, **result.summary.get("accuracy", {})}.get(key)
            if result.status == "completed" and value is not None:
                found[result.cell.config.seed] = float(value)
        return found

    def best(self) -> str:
        """The read-out with the highest mean over seeds; empty if no run completed.

        Clients alone are left out: the best of them is no model that anyone could pick in advance.
        So is what was not read out on the test set.
        """
        done = [r.summary["accuracy"] for r in self.results if r.status == "completed"]
        names = [n for n in (done[0] if done else {}) if not n.startswith(("local_", VALIDATION))]
        mean = {n: statistics.fmean(a[n] for a in done) for n in names if all(n in a for a in done)}
        return max(mean, key=lambda name: mean[name], default="")

    def troubles(self) -> list[str]:
        """How the runs ended that did not complete."""
        bad = [r for r in self.results if r.status != "completed"]
        return [f"seed {r.cell.config.seed} {r.words()}" for r in bad]


@dataclass(frozen=True)
class Group:
    """The rows on one dataset and partition."""

    data: str
    rows: tuple[Row, ...]
    baseline: Row

    def difference(self, row: Row, readout: str) -> BySeed:
        """Accuracy above the baseline's, seed by seed: both have the same data and draws."""
        own, base = row.accuracy(readout), self.baseline.accuracy(readout)
        return {seed: own[seed] - base[seed] for seed in own if seed in base}


def groups(results: Sequence[Result], baseline: str | None = None) -> list[Group]:
    """Rows in the order of the cells, by data.

    baseline: the row to compare with, by label or algorithm; a group without it takes its first.
    """
    rows: dict[str, dict[str, list[Result]]] = {}
    names = labels([r.cell for r in results])
    for result, name in zip(results, names, strict=True):
        rows.setdefault(data_of(result.cell), {}).setdefault(name, []).append(result)
    return [
        _group(data, [Row(name, tuple(r)) for name, r in inner.items()], baseline)
        for data, inner in rows.items()
    ]


def _group(data: str, rows: list[Row], baseline: str | None) -> Group:
    named = [row for row in rows if baseline in (row.label, _algorithm(row))]
    return Group(data, tuple(rows), (named or rows)[0])


def _algorithm(row: Row) -> str:
    return row.results[0].cell.config.algorithm.name


def data_of(cell: Cell) -> str:
    """The dataset and how it was dealt out, in words; cells of the same words share a group."""
    chosen = prepare.settings(cell.config)
    detail = {k: f"{k} {chosen[k]:g}" for k in ("alpha", "labels_per_client") if k in chosen}
    source = cell.config.data.source + ("-" + chosen["content"][:8] if "content" in chosen else "")
    words = [source, chosen["name"], *detail.values(), f"{chosen['clients']} clients"]
    return ", ".join(words).replace("dirichlet, alpha", "dirichlet alpha")


def labels(cells: Sequence[Cell]) -> list[str]:
    """A name for the row of each cell: its algorithm, and the configuration if a group has two."""
    names: dict[str, set[str]] = {}
    for cell in cells:
        names.setdefault(data_of(cell), set()).add(cell.name)
    return [_label(cell, names[data_of(cell)]) for cell in cells]


def _label(cell: Cell, group: set[str]) -> str:
    """group: the configurations of the cell's group; two of one name are told apart by path."""
    algorithm = cell.config.algorithm.name
    if len(group) == 1:
        return algorithm
    alike = [name for name in group if cli.stem(name) == cli.stem(cell.name)]
    return f"{cell.name if len(alike) > 1 else cli.stem(cell.name)} {algorithm}"


def check_words(cells: Sequence[Cell], readout: str, baseline: str | None) -> None:
    """`ConfigError` for a read-out or a baseline that will not be there."""
    known = [OWN, BEST, *READOUTS.names(), *SINGLE, *VALIDATED]
    if readout not in known:
        raise ConfigError("--readout", readout, "own, best or a read-out", nearest(readout, known))
    rows = list(dict.fromkeys([*labels(cells), *(c.config.algorithm.name for c in cells)]))
    if baseline is not None and baseline not in rows:
        raise ConfigError("--baseline", baseline, "a row of the table", nearest(baseline, rows))


def mean_and_std(values: Mapping[int, float]) -> tuple[float | None, float | None]:
    """Mean, and sample standard deviation from two values on; None where there is none."""
    numbers = list(values.values())
    mean = statistics.fmean(numbers) if numbers else None
    return mean, statistics.stdev(numbers) if len(numbers) > 1 else None


def as_json(found: Sequence[Group], readout: str) -> dict[str, Any]:
    """All raw values, and for each run the command that repeats it."""
    return {
        "readout": readout,
        "groups": [
            {
                "data": group.data,
                "baseline": group.baseline.label,
                "rows": [_row_as_json(group, row, readout) for row in group.rows],
            }
            for group in found
        ],
    }


def _row_as_json(group: Group, row: Row, readout: str) -> dict[str, Any]:
    return {
        "label": row.label,
        "own": _numbers(row.accuracy(OWN)),
        "best_readout": row.best() or None,
        "best": _numbers(row.accuracy(BEST)),
        "compared": _numbers(row.accuracy(readout)),
        "difference": _numbers(group.difference(row, readout)),
        "runs": [_run_as_json(result) for result in row.results],
    }


def _numbers(values: BySeed) -> dict[str, Any]:
    mean, std = mean_and_std(values)
    return {"mean": mean, "std": std, "by_seed": {str(k): v for k, v in values.items()}}


def _run_as_json(result: Result) -> dict[str, Any]:
    cell, summary = result.cell, result.summary
    kept = ("test_accuracy", "accuracy", "lambda_effective", "prototypes_sha256", "wall_seconds")
    return {
        "configuration": cell.name,
        "algorithm": cell.config.algorithm.name,
        "seed": cell.config.seed,
        "status": result.words(),
        "exit_code": result.code,
        "run_dir": str(cell.run_dir),
        "command": cell.shown(),
        **{key: summary.get(key) for key in kept},
    }
