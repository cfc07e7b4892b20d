"""What checkpoints cost training, written while it waits and while it goes on; and going on again.

    PYTHONPATH=. .venv/bin/python bench/checkpoint.py [--model resnet18] [--clients 8] [--blocks 7]
    PYTHONPATH=. .venv/bin/torchrun --standalone --nproc_per_node=2 bench/checkpoint.py

Blocks of rounds of v14 on real digits take turns: without checkpoints, with one after every round
that training waits for, and with one that a thread writes meanwhile; the block ends when its last
file is complete. Percentages are of neighbouring blocks, so that the load of the machine falls on
all. Then the last checkpoint is verified and read back.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.lm_common import Spread, facts, keep, told
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.checkpoint_writer import Checkpoints
from fedcore.config import RunConfig
from fedcore.federation import Federation
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare
from launcher.build import build
from launcher.world import World, join

ARMS = {"none": None, "synchronous": False, "asynchronous": True}


def federation(config: RunConfig, here: World, folder: Path, asynchronous: bool) -> Federation:
    """A run that writes to a folder of its own."""
    checkpoints = Checkpoints(folder, here.comm, keep=2, asynchronous=asynchronous)
    return build(config, prepare.store_dir(config), here, Telemetry(), checkpoints, {})


def block(run: Federation, rounds: range, saves: bool) -> float:
    """Seconds of some rounds, until the last checkpoint of them is complete."""
    run.comm.barrier()
    began = time.perf_counter()
    for round in rounds:
        run._round(round)
        if saves:
            run.saving.start(run._contents, round + 1)
    run.saving.settle()
    run.comm.barrier()
    return time.perf_counter() - began


def size_of(folder: Path) -> int:
    """Bytes of a checkpoint."""
    return sum(file.stat().st_size for file in folder.iterdir())


def cost(config: RunConfig, here: World, folder: Path, given: Any) -> dict[str, Any]:
    """Percent of training time that each way of writing takes."""
    runs = {arm: federation(config, here, folder / arm, bool(how)) for arm, how in ARMS.items()}
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(-1, given.blocks):
        rounds = range((number + 1) * given.rounds, (number + 2) * given.rounds)
        for arm in ARMS if number % 2 else reversed(ARMS):
            took = block(runs[arm], rounds, arm != "none")
            if number >= 0:  # the first is a warm-up
                seconds[arm].append(took)
    bare = seconds["none"]
    found: dict[str, Any] = {"round_seconds": Spread.of([s / given.rounds for s in bare])._asdict()}
    for arm in ("synchronous", "asynchronous"):
        percent = [100 * (x / y - 1) for x, y in zip(seconds[arm], bare, strict=True)]
        in_all = 100 * (sum(seconds[arm]) / sum(bare) - 1)
        found[arm] = Spread.of(percent)._asdict() | {"in_all": in_all}
    return found


def back(config: RunConfig, here: World, folder: Path) -> dict[str, float]:
    """Seconds to find and verify the newest checkpoint, and to read it on every rank."""
    fresh = federation(config, here, folder, asynchronous=False)
    here.comm.barrier()
    began = time.perf_counter()
    checkpoint = Checkpoint(candidates(folder)[0])
    if here.comm.rank == 0:
        checkpoint.verify()
    here.comm.barrier()
    verified = time.perf_counter()
    fresh.resume(checkpoint)
    here.comm.barrier()
    return {"verify": verified - began, "read": time.perf_counter() - verified}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="small_cnn")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--per-round", type=int, help="clients that train in a round; all are kept")
    parser.add_argument("--epochs", type=int, default=2, help="local epochs of a round")
    parser.add_argument("--rounds", type=int, default=3, help="in a block")
    parser.add_argument("--blocks", type=int, default=9, help="of each kind")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/checkpoint.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        config = RunConfig.of(
            {
                "rounds": (given.blocks + 2) * given.rounds,
                "device": given.device,
                "data": {"source": "digits", "alpha": 1000, "store": str(Path(folder) / "store")},
                "clients": {
                    "count": given.clients,
                    "local_epochs": given.epochs,
                    "per_round": given.per_round,
                },
                "model": {"name": given.model},
                "evaluate": {"every": 10_000},
            }
        )
        here = join(config, lambda error: os._exit(5))
        if here.comm.rank == 0:
            prepare.make(config)
        here.comm.barrier()
        places = here.comm.gather_json(folder)
        found = facts(vars(given) | {"ranks": here.comm.size}, here.device)
        found["cost_percent"] = cost(config, here, Path(places[0]), given)
        newest = candidates(Path(places[0]) / "asynchronous")[0]
        found["bytes"] = size_of(newest)
        found["resume_seconds"] = back(config, here, Path(places[0]) / "asynchronous")
        here.comm.barrier()
    if here.comm.rank == 0:
        tell(found, given)
    here.leave(together=True)


def tell(found: dict[str, Any], given: Any) -> None:
    """A table, and the JSON."""
    per_round = Spread(**found["cost_percent"]["round_seconds"])
    print(f"{given.model}, {given.clients} clients, {found['settings']['ranks']} rank(s): ", end="")
    print(f"{found['bytes'] / 1e6:,.1f} MB after every round of {per_round.told('.2f')} s")
    for arm in ("synchronous", "asynchronous"):
        row = dict(found["cost_percent"][arm])
        in_all = row.pop("in_all")
        print(f"{arm}: {Spread(**row).told('.1f')} % of training time, in all {in_all:.1f} %")
    took = found["resume_seconds"]
    print(f"going on: verified in {took['verify']:.2f} s, read in {took['read']:.2f} s")
    print(told(found))
    keep(given.out, found)


if __name__ == "__main__":
    main()
    os._exit(0)
