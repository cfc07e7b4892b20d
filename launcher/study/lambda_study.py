"""`fedcore study lambda`: run the versions that learn lambda, and write the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

from fedcore.algorithms import ALGORITHMS, resolve
from fedcore.checkpoint import write_atomically
from fedcore.config import RunConfig
from fedcore.objective.guards import Hinge, InverseVariance
from fedcore.telemetry.history import History
from fedcore.telemetry.plots import plot_lambda
from launcher.grid import Cell, grid
from launcher.page import inlined, write_page
from launcher.rundir import storage
from launcher.study.finding import Finding
from launcher.study.findings import all_findings
from launcher.study.measure import Versions
from launcher.study.numbers import accuracy_rows, facts, lambda_rows
from launcher.study.overview import plot_overview
from launcher.sweep import STOPPED, Result, sweep
from launcher.words import number

VERSIONS = ("v10", "v11_linear", "v11_cosine", "v12", "v12_log", "v13", "v14")
CONFIG = "study_lambda"
QUICK = ("data.source=digits", "rounds=4", "model.feature_dim=256", "evaluate.every=1")


def cells(
    seeds: int, out: Path, overrides: Sequence[str] = (), *, quick: bool = False
) -> list[Cell]:
    """The runs of the study; quick: one seed of a small dataset, for a look at the page."""
    more = [*QUICK, *overrides] if quick else list(overrides)
    return grid([CONFIG], out, algorithms=VERSIONS, seeds=1 if quick else seeds, overrides=more)


def main(chosen: Sequence[Cell], out: Path, jobs: int, command: str) -> int:
    """The exit code: 0 with a report, 1 if a run failed (the report says which), 75 if stopped."""
    try:
        results = sweep(chosen, out, jobs, sys.stdout)
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this ended", file=sys.stderr)
        return STOPPED
    found = report(results, out, command)
    for finding in found:
        print(f"{finding.verdict:>8}  {finding.title}: {finding.told}")
    print(out / "index.html")
    return int(any(result.status == "failed" for result in results))


def report(results: Sequence[Result], out: Path, command: str) -> list[Finding]:
    """Write index.html and findings.json into `out`; the findings."""
    versions = histories(results)
    found = all_findings(versions, *_guards(results))
    with storage(out):
        text = json.dumps(as_json(found, versions, results, command), indent=1, ensure_ascii=False)
        write_atomically(out / "findings.json", text + "\n")
    values = _values(found, versions, results, command)
    write_page("study_lambda.html.j2", out / "index.html", **values)
    return found


def histories(results: Sequence[Result]) -> Versions:
    """The completed runs by version and seed, every version in its place."""
    found: dict[str, dict[int, History]] = {}
    for result in results:
        config = result.cell.config
        version = found.setdefault(config.algorithm.name, {})
        if result.status == "completed":
            version[config.seed] = History.of(result.cell.run_dir)
    return found


def as_json(
    found: Sequence[Finding], versions: Versions, results: Sequence[Result], command: str
) -> dict[str, Any]:
    """Verdicts, all numbers and the commands."""
    return {
        "command": command,
        "findings": [asdict(finding) | {"verdict": finding.verdict} for finding in found],
        "versions": {name: facts(version) for name, version in versions.items()},
        "runs": [{"command": r.cell.shown(), "status": r.words()} for r in results],
    }


def _values(
    found: Sequence[Finding], versions: Versions, results: Sequence[Result], command: str
) -> dict[str, Any]:
    """What the template asks for."""
    config = results[0].cell.config
    return {
        "title": "What a learned λ does",
        "subtitle": _subtitle(config, versions),
        "findings": found,
        "number": number,
        "overview": inlined(partial(plot_overview, versions)),
        "lambdas": lambda_rows(versions),
        "accuracies": accuracy_rows(versions),
        "troubles": [f"{r.cell.title()}: {r.words()}" for r in results if r.status != "completed"],
        "figures": _figures(results),
        "command": command,
        "settings": _settings(config),
        "runs": [result.cell.shown() for result in results],
    }


def _subtitle(config: RunConfig, versions: Versions) -> str:
    seeds = len({seed for version in versions.values() for seed in version})
    return (
        f"{config.data.source}, {config.clients.count} clients, alpha {config.data.alpha:g}, "
        f"{config.rounds} rounds, {seeds} seed(s)"
    )


def _settings(config: RunConfig) -> dict[str, Any]:
    """The keys of all runs that are not as everywhere."""
    usual = RunConfig().decisive() | {"algorithm.name": config.algorithm.name}
    return {key: value for key, value in config.decisive().items() if usual.get(key) != value}


def _figures(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The picture of each version's first completed run."""
    first: dict[str, Result] = {}
    for result in results:
        if result.status == "completed":
            first.setdefault(result.cell.config.algorithm.name, result)
    return [
        {
            "name": name,
            "about": f"{ALGORITHMS.get(name).about}.",
            "run": f"Seed {result.cell.config.seed}",
            "picture": inlined(partial(plot_lambda, result.cell.run_dir)),
        }
        for name, result in first.items()
    ]


def _guards(results: Sequence[Result]) -> tuple[float, float]:
    """lambda_max of the hinge and gamma of the inverse variance among the versions; NaN = none."""
    guards = [resolve(result.cell.config.algorithm).rule.guard for result in results]
    tops = [guard.lambda_max for guard in guards if isinstance(guard, Hinge)]
    gammas = [guard.gamma for guard in guards if isinstance(guard, InverseVariance)]
    return next(iter(tops), nan), next(iter(gammas), nan)
