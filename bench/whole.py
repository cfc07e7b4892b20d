"""A whole run of v14 as published for CIFAR-100, on made-up images of that shape: time and phases.

    PYTHONPATH=. .venv/bin/python bench/whole.py [--device cuda] [--precision bf16] [--epochs 10]

Five clients with Dirichlet 0.05, ResNet-18, batch 512, two views, 50,000 images; some of the 100
epochs, from the command line as anyone starts it. The projection is for all 100, evaluated as often
as published. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import ranks
from bench.figures import Sheet, keep, show

PUBLISHED = 100  # epochs: ten rounds of ten


def words(given: argparse.Namespace, folder: str) -> list[str]:
    """The command's words after its name."""
    synthetic = {
        "samples": given.samples,
        "test_samples": max(100, given.samples // 5),
        "classes": 100,
        "size": 32,
        "channels": 3,
    }
    values = {
        "data.source": "synthetic",
        "data.synthetic": json.dumps(synthetic),
        "data.store": f"{folder}/store",
        "rounds": -(-given.epochs // 10),
        "clients.local_epochs": min(10, given.epochs),
        "clients.width": given.width,
        "model.name": given.model,
        "device": given.device,
        "precision": given.precision,
        "metrics.enabled": "false",
    }
    if given.batch:
        values["clients.batch_size"] = given.batch
    if given.feature_dim:
        values["model.feature_dim"] = given.feature_dim
    named = [f"{key}={value}" for key, value in values.items()]
    return ["--config", "paper/cifar100_v14", "--run-dir", f"{folder}/run", "--set", *named]


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The summary of the run, and the seconds from start to end."""
    with ranks.scratch() as folder:
        command = [sys.executable, "launcher/main.py", *words(given, folder)]
        began = time.perf_counter()
        subprocess.run(command, check=True, env=os.environ)
        took = time.perf_counter() - began
        summary: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return {"seconds": took, "summary": summary}


def sheet(found: dict[str, Any], given: argparse.Namespace) -> Sheet:
    """Seconds by phase, and the projection."""
    summary = found["summary"]
    phases, wall = summary["phase_seconds"], summary["wall_seconds"]
    views = 2 * summary["samples"] / wall
    rows = [[f"{given.epochs} epochs in all", f"{wall:.1f} s"]]
    rows += [[f"of that, {name}", f"{seconds:.1f} s"] for name, seconds in phases.items()]
    rows += [
        ["images (views) a second over all phases", f"{views:,.0f}"],
        ["start, data, and end beside", f"{found['seconds'] - wall:.1f} s"],
        [f"projected for {PUBLISHED} epochs", f"{wall * PUBLISHED / given.epochs / 60:.1f} min"],
        ["width of the lanes", str(summary.get("width", given.width))],
    ]
    return Sheet(
        f"v14, {given.model}, 5 clients with α = 0.05, {given.samples:,} images of 3x32x32 in 100 "
        f"classes, two views, {given.precision} (published: 110 minutes on one GPU).",
        ["", ""],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--epochs", type=int, default=10, help="a multiple of 10, or fewer")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, help="instead of 512")
    parser.add_argument("--feature-dim", type=int, help="instead of the model's own")
    parser.add_argument("--width", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/gpu_whole.json"))
    given = parser.parse_args()
    found = run(given)
    import torch

    from bench.lm_common import facts  # torch only now: the run has had the device to itself

    device = torch.device("cuda" if given.device == "auto" else given.device)
    found |= facts(vars(given), device)
    found["sheets"] = [sheet(found, given)._asdict()]
    show(found)
    keep(given.out, found)


if __name__ == "__main__":
    main()
