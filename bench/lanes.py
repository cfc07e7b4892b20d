"""How many clients to train at once: width x model x batch x precision, on this device.

    PYTHONPATH=. .venv/bin/python bench/lanes.py [--device cuda] [--models small_cnn resnet18]

All widths train the same clients on batches that lie ready, in turns (on a GPU one after another):
samples a second, the ratio to width 1 of neighbouring blocks, memory (CUDA: the peak allocated
beyond the batches; its clients' states among it), and the share of the rate of a matrix product
measured in the same run, counting the FLOPs of one forward and backward pass. FedAvg's loss, so
that the network is what counts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench import engine
from bench.figures import Sheet, Spread, in_turns, keep, ratio, show
from bench.lm_common import card_peak, facts, matmul_rate, settle
from fedcore.config import RunConfig
from launcher.build import build_objects

SHAPES = {"small_cnn": (1, 28, 28), "bench_cnn": (3, 32, 32), "resnet18": (3, 32, 32)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Case(NamedTuple):
    """What stays the same while the width changes."""

    model: str
    batch_size: int
    precision: str

    def __str__(self) -> str:
        return f"{self.model}, B {self.batch_size}, {self.precision}"


def configuration(case: Case, given: argparse.Namespace, width: int) -> RunConfig:
    """Clients of FedAvg with plain images."""
    return RunConfig.of(
        {
            "rounds": engine.NEVER,
            "device": given.device,
            "precision": case.precision,
            "clients": {
                "count": clients_of(given),
                "local_epochs": 1,
                "batch_size": case.batch_size,
                "views": 1,
                "width": width,
                "lr": 0.001,
                "out_of_memory": "fail",
            },
            "model": {"name": case.model, "channels_last": given.channels_last},
            "algorithm": {"name": "fedavg"},
        }
    )


def clients_of(given: argparse.Namespace) -> int:
    """As many as the widest lane."""
    return max(given.widths)


def measured(case: Case, given: argparse.Namespace, device: torch.device) -> dict[int, Any]:
    """Samples a second and memory by width."""
    steps = max(1, given.samples // (clients_of(given) * case.batch_size))
    shape = SHAPES[case.model]
    images = torch.randn(2, 1, case.batch_size, *shape, device=device)
    labels = torch.randint(10, (2, case.batch_size), device=device)
    samples = clients_of(given) * steps * case.batch_size
    memory: dict[int, int | None] = {}

    def arms(widths: list[int]) -> dict[int, list[float]]:
        """Rates of those widths, in turns."""
        made: dict[str, Callable[[], float]] = {}
        for width in widths:
            data = engine.InMemory(images, labels, steps, channels_last=given.channels_last)
            config, before = configuration(case, given, width), allocated(device)
            try:
                _, train = engine.trainer(config, data, clients_of(given), width, device)
                train(0)
            except (RuntimeError, MemoryError) as error:
                print(f"{case}, width {width}: {str(error).splitlines()[0]}", flush=True)
                continue
            memory[width] = None if before is None else peak(device) - before
            made[str(width)] = timed(train, samples)
        return {int(k): v for k, v in in_turns(made, given.blocks).items()}

    # a GPU of one's own is steady, and could not hold all widths' activations side by side
    sets = [[width] for width in given.widths] if device.type == "cuda" else [given.widths]
    rates = {width: found for each in sets for width, found in arms(each).items()}
    first = rates[min(rates)]
    return {
        width: {
            "samples_per_second": Spread.of(found)._asdict(),
            "ratio": ratio(found, first)._asdict(),
            "memory": memory[width],
        }
        for width, found in rates.items()
    }


def timed(train: Callable[[int], None], samples: int) -> Callable[[], float]:
    """A round as a block, in samples a second."""
    numbers = iter(range(1, engine.NEVER))

    def block() -> float:
        began = time.perf_counter()
        train(next(numbers))
        return samples / (time.perf_counter() - began)

    return block


def allocated(device: torch.device) -> int | None:
    """Bytes in use on a CUDA device, from which on the peak is counted."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device)


def flops(case: Case) -> float:
    """Of one sample's forward and backward pass."""
    config = RunConfig.of({"model": {"name": case.model}, "algorithm": {"name": "fedavg"}})
    _, model, _ = build_objects(config, SHAPES[case.model], 10)
    with FlopCounterMode(display=False) as counter:
        value: nn.Module = model
        value(torch.randn(2, *SHAPES[case.model])).sum().backward()
    return counter.get_total_flops() / 2


def sheet(found: dict[str, Any]) -> Sheet:
    """A row for each case and width."""
    card, rows = found["card_peak"], []
    for name, case in found["cases"].items():
        for width, values in case["widths"].items():
            rate = Spread(**values["samples_per_second"])
            speed = rate.median * case["flops"]
            memory = values["memory"]
            rows.append(
                [
                    name,
                    str(width),
                    rate.told(",.0f"),
                    Spread(**values["ratio"]).told(".2f"),
                    "" if memory is None else f"{memory / 1e9:.2f}",
                    f"{speed / case['matmul_flops']:.1%}",
                    f"{speed / card:.1%}" if card else "",
                ]
            )
    steps = "channels last" if found["settings"]["channels_last"] else "channels first"
    return Sheet(
        f"Clients trained at once ({steps}): samples a second, ratio to width 1 of neighbouring "
        "blocks, peak memory on the device beyond the batches, FLOP/s over those of a matrix "
        "product of the same precision in the same run, and over the card's bf16 peak.",
        ["case", "width", "samples/s", "over width 1", "GB", "of matmul", "of bf16 peak"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["small_cnn", "bench_cnn"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32, 64])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--precisions", nargs="+", choices=DTYPES, default=["fp32"])
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--samples", type=int, default=1024, help="of a block, about")
    parser.add_argument("--blocks", type=int, default=5, help="of each width")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/lanes.json"))
    given = parser.parse_args()
    device = engine.join(RunConfig.of({"device": given.device})).device
    found = facts(vars(given), device)
    found |= {"card_peak": card_peak() if device.type == "cuda" else None, "cases": {}}
    for model in given.models:
        for precision in given.precisions:
            for batch_size in given.batches:
                case = Case(model, batch_size, precision)
                settle(device)
                found["cases"][str(case)] = {
                    "flops": flops(case),
                    "matmul_flops": Spread.of(matmul_rate(device, DTYPES[precision])).median,
                    "widths": measured(case, given, device),
                }
                gc.collect()
                found["sheets"] = [sheet(found)._asdict()]
                keep(given.out, found)  # what is there if time runs out
    show(found)


if __name__ == "__main__":
    main()
