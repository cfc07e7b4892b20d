"""A million small images over ten thousand clients: made, verified, read; time and peak memory.

    PYTHONPATH=. .venv/bin/python bench/many_clients.py [--samples 1000000] [--clients 10000]

Each step is a process of its own, whose peak resident memory the kernel reports. A tenth of the
samples and clients is done first: memory that grew with the data would show. Reading is that of two
ranks, each of whom streams one epoch of its own clients; every file they open is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.lm_common import facts, keep, told

RANKS = 2


class Step:
    """A command, its seconds, the peak of its resident memory, and what it printed."""

    def __init__(self, *words: str) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.seconds = time.perf_counter() - began
        self.peak_mb = usage.ru_maxrss / 1024
        if status:
            assert self.process.stderr is not None
            raise SystemExit(f"{words} failed:\n{self.process.stderr.read()}")


def settings(store: str, samples: int, clients: int) -> list[str]:
    """Words after `fedcore shards make default`."""
    synthetic = {"samples": samples, "test_samples": 1000, "size": 8}
    values = {
        "data.source": "synthetic",
        "data.synthetic": json.dumps(synthetic),
        "data.alpha": 1.0,
        "data.store": store,
        "clients.count": clients,
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def measured(samples: int, clients: int) -> dict[str, Any]:
    """Make, verify, load the manifest, read."""
    fedcore = str(Path(sys.executable).with_name("fedcore"))
    found: dict[str, Any] = {"samples": samples, "clients": clients}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as store:
        make = Step(fedcore, "shards", "make", "default", *settings(store, samples, clients))
        folder = make.output.strip()
        steps = {"make": make, "verify": Step(fedcore, "shards", "verify", folder)}
        own = [sys.executable, __file__, "--read", folder]
        steps |= {f"read, rank {rank}": Step(*own, "--rank", str(rank)) for rank in range(RANKS)}
        found["bytes"] = sum(f.stat().st_size for f in Path(folder).rglob("*.tar"))
        found["manifest_bytes"] = (Path(folder) / "manifest.json").stat().st_size
    for name, step in steps.items():
        found[name] = {"seconds": step.seconds, "peak_mb": step.peak_mb}
        if name.startswith("read"):
            found[name] |= json.loads(step.output)
    return found


def read(folder: Path, rank: int) -> dict[str, Any]:
    """One epoch of this rank's clients; which files of the folder were opened."""
    from data_shards.manifest import Manifest
    from data_shards.read import ShardedData

    opened: set[str] = set()
    root = str(folder.resolve())

    def note(event: str, words: tuple[Any, ...]) -> None:
        if event == "open" and str(words[0]).startswith(root):
            opened.add(str(words[0])[len(root) + 1 :])

    sys.addaudithook(note)
    began = time.perf_counter()
    manifest = Manifest.load(folder)
    loaded = time.perf_counter()
    own = range(rank, len(manifest.clients), RANKS)
    data = ShardedData(
        folder.resolve(),
        manifest,
        own,
        batch_size=64,
        views=1,
        seed=0,
        device=torch.device("cpu"),
        dtype=torch.float32,
        augment=False,
        streaming=True,
    )
    samples = sum(
        int(batch.weight.sum()) for k in own if data.samples(k) for batch in data.epoch([k], 0, 0)
    )
    wanted = {shard.file for k in own for shard in manifest.clients[k].shards}
    return {
        "manifest_seconds": loaded - began,
        "epoch_seconds": time.perf_counter() - loaded,
        "samples_read": samples,
        "files_opened": len(opened),
        "files_of_others": len(opened - wanted - {"manifest.json"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/many_clients.json"))
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read, given.rank)))
        return
    found = facts({"samples": given.samples, "clients": given.clients}, torch.device("cpu"))
    found["runs"] = [measured(given.samples // part, given.clients // part) for part in (10, 1)]
    for run in found["runs"]:
        print(
            f"{run['samples']:,} samples, {run['clients']:,} clients: "
            f"{run['bytes'] / 1e6:,.0f} MB of tars, manifest {run['manifest_bytes'] / 1e6:.1f} MB"
        )
        for name in ("make", "verify", *(f"read, rank {rank}" for rank in range(RANKS))):
            step = run[name]
            print(f"  {name}: {step['seconds']:.1f} s, peak {step['peak_mb']:,.0f} MB", end="")
            print(
                f"; manifest in {step['manifest_seconds']:.2f} s, {step['samples_read']:,} samples "
                f"in {step['epoch_seconds']:.1f} s, {step['files_opened']:,} files opened, "
                f"{step['files_of_others']} of other clients"
                if "samples_read" in step
                else ""
            )
    print(told(found))
    keep(given.out, found)


if __name__ == "__main__":
    main()
