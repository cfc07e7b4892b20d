"""Every algorithm on mnist5k and digits at three alphas, three seeds each: the table in
docs/algorithms.md.

Runs two `fedcore compare` sweeps (resumable; some four hours of one CPU core in all) and prints one
Markdown table of what is complete.

    .venv/bin/python bench/all_algorithms.py [--jobs 2] [--seeds 3] [--only-table]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from fedcore.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
ALPHAS = (0.05, 0.1, 0.5)
# half the default job's rounds; the test set is read once, at the end
COMMON = ("rounds=5", "evaluate.every=100", "checkpoint.every=100")
DATA = {"mnist5k": (), "digits": ("data.source=digits", "clients.count=8")}


def out(data: str) -> Path:
    """Where the runs of one dataset lie."""
    return ROOT / "runs" / "all-algorithms" / data


def sweep(data: str, seeds: int, jobs: int) -> None:
    """Run what is not done yet."""
    words = ["default", "--seeds", str(seeds), "--jobs", str(jobs), "--out", str(out(data))]
    for name in ALGORITHMS.names():
        words += ["--algorithm", name]
    for alpha in ALPHAS:
        words += ["--alpha", str(alpha)]
    for override in (*COMMON, *DATA[data]):
        words += ["--set", override]
    command = [sys.executable, "-m", "launcher.commands", "compare", *words]
    subprocess.run(command, cwd=ROOT, check=True)


def results(data: str) -> dict[tuple[str, float], dict[int, dict[str, float]]]:
    """(algorithm, alpha) -> seed -> accuracy by read-out, with the algorithm's own as `own`."""
    found: dict[tuple[str, float], dict[int, dict[str, float]]] = {}
    for file in sorted(out(data).glob("*/summary.json")):
        summary = json.loads(file.read_text())
        alpha = summary["identity"]["data.alpha"]
        if summary["status"] == "completed":
            cell = found.setdefault((summary["algorithm"], alpha), {})
            cell[summary["seed"]] = {"own": summary["test_accuracy"], **summary["accuracy"]}
    return found


def cell(values: list[float]) -> str:
    """mean ± sample standard deviation, in percent; the number of seeds if it is not three."""
    if not values:
        return ""
    mean = f"{100 * statistics.fmean(values):.1f}"
    if len(values) > 1:
        mean += f" ± {100 * statistics.stdev(values):.1f}"
    return mean if len(values) == 3 else f"{mean} ({len(values)})"


def table() -> str:
    """A row an algorithm; own read-out everywhere, and the best ensemble at mnist5k, alpha 0.1."""
    heads = [f"{data} {alpha:g}" for data in DATA for alpha in ALPHAS]
    ensembles = ["feature_ensemble", "iffi", "output_ensemble"]
    head = ["", "own read-out", *heads, *[f"mnist5k 0.1 {name}" for name in ensembles]]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    found = {data: results(data) for data in DATA}
    for name, algorithm in ALGORITHMS:
        row = [f"`{name}`", algorithm.readout]
        for data in DATA:
            for alpha in ALPHAS:
                seeds = found[data].get((name, alpha), {})
                row.append(cell([accuracy["own"] for accuracy in seeds.values()]))
        seeds = found["mnist5k"].get((name, 0.1), {})
        row += [cell([accuracy[r] for accuracy in seeds.values()]) for r in ensembles]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only-table", action="store_true", help="of what is complete")
    given = parser.parse_args()
    if not given.only_table:
        for data in DATA:
            sweep(data, given.seeds, given.jobs)
    print(table())


if __name__ == "__main__":
    main()
