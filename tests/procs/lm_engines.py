"""Run by torchrun: the same 50 steps under every engine, and each state taken on by another one.

Prints one JSON object on rank 0: case -> losses, norms and the weights that were measured.

    lm_engines.py STORE CHECKPOINTS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config import RunConfig
from fedcore.errors import Stopped
from fedcore.lm.train import LMRun
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare_text, world
from launcher.lm_job import LanguageModel
from launcher.rundir import RunDir
from tests.lm_toy import LMKept
from tests.pausing import PauseWhen

STEPS = 50
DEEPSPEED = {f"zero{s}": {"engine": "deepspeed", "zero_stage": s} for s in range(4)}
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accelerate": {"engine": "accelerate"},
    **DEEPSPEED,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain, checkpointed activations": {"activation_checkpointing": True},
    "plain in parts": {"accumulate": 2},
    "accelerate in parts": {"engine": "accelerate", "accumulate": 2},
    "zero2 in parts": {**DEEPSPEED["zero2"], "accumulate": 2},
    "zero3 offloaded": {**DEEPSPEED["zero3"], "offload": "all"},
}
TAKEN_ON = [  # a state of the first, at step 20, goes on under the second
    ("plain", "zero3"),
    ("zero3", "plain"),
    ("zero1", "zero2"),
    ("zero2", "zero1"),
    ("zero0", "accelerate"),
    ("accelerate", "zero0"),
]
STOP = 20
BF16 = ("plain", "zero0", "zero1", "zero3")


def config_of(store: str, engine: dict[str, Any], precision: str = "fp32") -> RunConfig:
    lm = {
        "steps": STEPS,
        "batch_size": 8,
        "log_every": 1,
        "data": {"limit": 40_000},
        # an odd width: shards of every stage end within a parameter
        "model": {"layers": 2, "width": 36, "heads": 2, "hidden": 65, "context": 24},
        "optimizer": {"lr": 0.01, "weight_decay": 0.5},
        "schedule": {"warmup": 5, "weight_decay": "linear"},
        "monitor": {"every": 10},
    }
    values = {"precision": precision, "lm": {**lm, **engine}, "data": {"store": store}}
    return RunConfig.of(values | {"evaluate": {"every": STEPS}, "checkpoint": {"every": STEPS}})


class Case:
    """One run of these processes."""

    def __init__(self, config: RunConfig, here: world.World, folder: Path) -> None:
        self.kind, self.kept, self.here = LanguageModel(config), LMKept(), here
        self.kind.open(prepare_text.store_dir(config))
        run = RunDir(folder)
        run.path.mkdir(parents=True, exist_ok=True)
        self.run: LMRun = self.kind.build(here, Telemetry([self.kept]), run, {})

    def go(self, stop: int = STEPS) -> None:
        """Run to the end, or up to `stop`."""
        self.run.ledger.pauses = PauseWhen(lambda: self.run.outcome.steps == stop)
        try:
            self.run.run()
        except Stopped:
            assert stop < STEPS

    def found(self) -> dict[str, Any]:
        measured = {e.step: e.weight_rms | e.update_ratio | e.layer_rms for e in self.kept.lines}
        self.kind.close()
        return {
            "loss": {e.step: e.loss for e in self.kept.lines},
            "norm": {e.step: e.gradient_norm for e in self.kept.lines},
            "rms": {step: values for step, values in measured.items() if values},
            "held_out": self.run.outcome.final_eval_loss,
        }


def main() -> None:
    store, checkpoints = sys.argv[1:]
    here = world.join(config_of(store, DEEPSPEED["zero0"]), lambda error: None)
    if here.comm.rank == 0:
        prepare_text.make(config_of(store, {}))
    here.comm.barrier()
    found = {}
    cases = ENGINES if here.comm.size == 1 else ENGINES | VARIANTS
    for name, engine in cases.items():
        case = Case(config_of(store, engine), here, Path(checkpoints) / name)
        case.go()
        found[name] = case.found()
    for one, other in TAKEN_ON if here.comm.size > 1 else ():
        folder = Path(checkpoints) / f"{one} to {other}"
        first = Case(config_of(store, ENGINES[one]), here, folder)
        first.go(STOP)
        first.kind.close()
        second = Case(config_of(store, ENGINES[other]), here, folder)
        second.run.resume(Checkpoint(candidates(folder / "checkpoints")[0]))
        second.go()
        found[f"{one} to {other}"] = second.found()
    for name in BF16 if here.comm.size > 1 else ():
        case = Case(
            config_of(store, ENGINES[name], "bf16"), here, Path(checkpoints) / f"{name} bf16"
        )
        case.go()
        found[f"{name} bf16"] = case.found()
    if here.comm.rank == 0:
        print("FOUND " + json.dumps(found))
    here.leave(together=True)


if __name__ == "__main__":
    main()
