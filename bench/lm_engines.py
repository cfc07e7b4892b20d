"""Every engine's training step beside plain DDP's, in turns, in one run of two or more ranks.

The same model of 10M parameters or more lives in the process twice: under the plain engine and
under the one it is compared with. Blocks of steps alternate; the ratio is the median over
neighbouring blocks. Processor time, of this rank's threads, is steadier on a busy machine, but
knows no waiting. On CUDA the memory is told too that an engine holds between two steps.

    PYTHONPATH=. .venv/bin/torchrun --standalone --nproc_per_node=2 bench/lm_engines.py
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import lm_common as common
import torch
from rich.console import Console
from rich.table import Table

from fedcore.config import RunConfig
from fedcore.config_lm import LMModelConfig
from fedcore.lm.model import GPT2
from launcher.world import World

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},  # against itself: what the noise is
    "zero0": {"engine": "deepspeed", "zero_stage": 0},
    "zero1": {"engine": "deepspeed", "zero_stage": 1},
    "zero2": {"engine": "deepspeed", "zero_stage": 2},
    "zero3": {"engine": "deepspeed", "zero_stage": 3},
    "accelerate": {"engine": "accelerate"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, with commas")
    for name, value in {
        "layers": 4,
        "width": 448,
        "heads": 7,
        "context": 128,
        "batch": 8,  # over all ranks
        "vocab": 1024,
        "steps": 2,  # in a block
        "repeats": 6,  # blocks of each
        "warmup": 2,
        "threads": 1,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--gpt2", action="store_true", help="GPT-2's setting of that shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/lm_engines.json"))
    return parser.parse_args()


def built(given: argparse.Namespace, engine: dict[str, Any], here: World) -> common.OurStep:
    """Our step under that engine, on this rank."""
    shape = {name: getattr(given, name) for name in ("layers", "width", "heads", "context")}
    lm = {
        "steps": given.warmup + given.steps * given.repeats,
        "batch_size": given.batch,
        "model": {**(GPT2 if given.gpt2 else LMModelConfig()).model_dump(), **shape},
        **engine,
    }
    config = RunConfig.of({"precision": given.precision, "device": given.device, "lm": lm})
    ranks, rank = here.comm.size, here.comm.rank
    return common.OurStep(config, given.vocab, here.device, ranks=ranks, rank=rank)


def memory(device: torch.device) -> float:
    """MiB allocated on the device; 0 on a CPU, whose allocator does not tell."""
    return torch.cuda.memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


def compared(given: argparse.Namespace, name: str, plain: common.OurStep, here: World) -> Any:
    """Costs of a step under that engine and under `plain`, in turns."""
    before = memory(here.device)
    step = built(given, ENGINES[name], here)
    common.timed(step, 0, given.warmup, here.device)
    held = memory(here.device) - before
    costs: dict[str, list[common.Cost]] = {"engine": [], "plain": []}
    for block in range(given.repeats):
        pair = [("engine", step), ("plain", plain)][:: -1 if block % 2 else 1]
        for which, one in pair:
            here.comm.barrier()
            first = given.warmup + block * given.steps
            costs[which].append(common.timed(one, first, given.steps, here.device))
    parameters = step.parameters
    step.engine.close()
    del step
    gc.collect()
    return {
        "parameters": parameters,
        "ratio": common.Ratio.of(costs["engine"], costs["plain"]),
        "costs": costs,
        "held_mib": held,
    }


def table(given: argparse.Namespace, found: dict[str, Any], ranks: int) -> Table:
    parameters = next(iter(found.values()))["parameters"]
    sheet = Table(
        title=f"{parameters:,} parameters, {ranks} ranks, T {given.context}, batch {given.batch}, "
        f"{given.precision} on {given.device}"
    )
    for head in ("engine", "ms a step", "time over plain", "CPU time over plain", "MiB held"):
        sheet.add_column(head, justify="left" if head == "engine" else "right")
    for name, row in found.items():
        milliseconds = common.Spread.of([1e3 * cost.wall for cost in row["costs"]["engine"]])
        ratio, cpu = (spread.told(".3f") for spread in row["ratio"])
        held = f"{row['held_mib']:.0f}" if row["held_mib"] else ""
        sheet.add_row(name, milliseconds.told(".0f"), ratio, cpu, held)
    return sheet


def main() -> None:
    given = arguments()
    here = common.join(given.device, given.threads)
    plain = built(given, ENGINES["plain"], here)
    common.timed(plain, 0, given.warmup, here.device)
    found = {name: compared(given, name, plain, here) for name in given.engines.split(",")}
    plain.engine.close()
    about = common.facts(vars(given), here.device)
    if here.comm.rank == 0:
        Console(width=120).print(table(given, found, here.comm.size))
        print(common.told(about))
        engines = {name: row | {"ratio": row["ratio"].facts()} for name, row in found.items()}
        common.keep(given.out, {**about, "engines": engines})
    here.leave(together=True)


if __name__ == "__main__":
    main()
