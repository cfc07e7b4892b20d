"""The default job against its references: v14, v4, FedAvg after one round, central training.

Same data, model and number of local epochs; three seeds each (of the partition, the start and every
draw). Prints a table of test accuracy, mean and standard deviation over seeds, in Markdown.

    .venv/bin/python bench/baselines.py [--seeds 3] [--ranks 2] [--out runs/bench/accuracy.md]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
READOUTS = ("output_ensemble", "iffi", "feature_ensemble", "averaged", "local_mean")

# one-round FedAvg trains as many local epochs as v14 does in all its rounds
RUNS = {
    "v14": ["--config", "default"],
    "v4": ["--config", "default", "--set", "algorithm.name=v4"],
    "fedavg, one round": ["--config", "fedavg", "--set", "rounds=1", "clients.local_epochs=20"],
    "central": ["--config", "central"],
    "fedavg, ten rounds": ["--config", "fedavg"],
}


def run(name: str, words: list[str], seed: int, ranks: int) -> dict[str, float]:
    """Accuracy by read-out of one run; a completed run is not run again."""
    folder = ROOT / "runs" / "baselines" / f"{name.replace(', ', '-').replace(' ', '-')}-s{seed}"
    own = ["--run-dir", str(folder), "--set", f"seed={seed}", "evaluate.every=100"]
    agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command = [sys.executable, *agent, "launcher/main.py", *words, *own, "metrics.enabled=false"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads((folder / "summary.json").read_text())["accuracy"]


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: a row a run, a column a read-out, mean +- std in percent."""
    lines = ["| run | " + " | ".join(READOUTS) + " |", "|---" * (1 + len(READOUTS)) + "|"]
    for name, seeds in results.items():
        cells = []
        for readout in READOUTS:
            values = [100 * accuracy[readout] for accuracy in seeds]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.1f} ± {spread:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all, print the table, and put it into a file when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = {
        name: [run(name, words, seed, given.ranks) for seed in range(given.seeds)]
        for name, words in RUNS.items()
    }
    text = table(results)
    print(text)
    if given.out:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
        ).stdout.strip()
        head = (
            f"Test accuracy in %, mean ± standard deviation over {given.seeds} seeds, "
            f"on 1,000 held-out images of `mnist5k`; 16 clients, alpha 0.1. Made by "
            f"`python bench/baselines.py` on {os.cpu_count()} CPU cores ({platform.machine()}), "
            f"commit {commit}.\n\n"
        )
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(head + text + "\n")


if __name__ == "__main__":
    main()
