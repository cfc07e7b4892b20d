"""Run by torchrun: every algorithm on tiny data in fp64, unbroken and stopped and resumed.

Prints one JSON object on rank 0: name -> what must not depend on the ranks or on the stop.

    every_algorithm.py NPZ STORE CHECKPOINTS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from fedcore.algorithms import ALGORITHMS
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config import RunConfig
from fedcore.errors import Stopped
from fedcore.federation import Federation
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare, world
from launcher.build import build
from launcher.rundir import RunDir
from tests.pausing import PauseWhen


def config_of(name: str, npz: str, store: str) -> RunConfig:
    data = {"source": "npz", "root": npz, "store": store, "alpha": 0.3, "validation": 0.2}
    return RunConfig.of(
        {
            "rounds": 3,
            "precision": "fp64",
            "data": data,
            "clients": {"count": 4, "local_epochs": 2, "batch_size": 8, "per_round": 3},
            "model": {"feature_dim": 12},
            "algorithm": {"name": name},
        }
    )


def proof(federation: Federation) -> list[Any]:
    out = federation.outcome
    return [out.prototypes_sha256, out.parameters_sha256, out.accuracy, out.lambda_effective]


def in_the_middle(run: Federation, rank: int) -> Callable[[], bool]:
    """Whether some steps of round 2 are over on this rank: after as many as its number says."""
    looks = count()
    return lambda: run.outcome.rounds == 2 and next(looks) >= rank + 1


def main() -> None:
    npz, store, checkpoints = sys.argv[1:]
    here = world.join(config_of("v4", npz, store), lambda error: None)
    if here.comm.rank == 0:
        prepare.make(config_of("v4", npz, store))
    here.comm.barrier()
    found = {}
    for name in ALGORITHMS.names():
        config, folder = config_of(name, npz, store), Path(checkpoints) / name

        def fresh(config: RunConfig = config, folder: Path = folder) -> Federation:
            shards = prepare.store_dir(config)
            checkpoints = RunDir(folder).checkpoints_of(config, here, "round")
            return build(config, shards, here, Telemetry(), checkpoints, {})

        whole = fresh()
        whole.run()
        stopped = fresh()
        stopped.saving.checkpoints.folder = folder / "stopped"
        stopped.pauses = PauseWhen(in_the_middle(stopped, here.comm.rank))
        try:
            stopped.run()
        except Stopped:
            resumed = fresh()
            resumed.resume(Checkpoint(candidates(folder / "stopped")[0]))
            resumed.run()
            again = fresh()  # from the last checkpoint: nothing is left to do but to sign
            again.resume(Checkpoint(candidates(folder / "stopped")[0]))
            again.run()
            runs = {"whole": whole, "resumed": resumed, "signed again": again}
            found[name] = {key: proof(run) for key, run in runs.items()}
    if here.comm.rank == 0:
        print("FOUND " + json.dumps(found), flush=True)
    here.leave(together=True)


if __name__ == "__main__":
    main()
