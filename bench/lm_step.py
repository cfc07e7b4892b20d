"""Whole training steps of ours beside a minimal GPT's of the same shapes, in turns, in one run.

Variants: ours in GPT-2's setting, the minimal loop of bench/minimal_gpt.py, and ours as it is by
default (SwiGLU, RMSNorm, RoPE; as information), each eager and compiled. A step is: draw a batch,
forward, backward, clip, optimiser, schedule. The ratio is the median over neighbouring blocks.

    PYTHONPATH=. .venv/bin/python bench/lm_step.py [--device cuda --precision bf16] [--no-compile]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lm_common as common
import torch
from minimal_gpt import MinimalGPT, MinimalLoop
from rich.console import Console
from rich.table import Table

from fedcore.config import RunConfig
from fedcore.config_lm import LMModelConfig
from fedcore.lm.count import flops_per_token, parameters
from fedcore.lm.model import GPT2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {
        "layers": 4,
        "width": 256,
        "heads": 4,
        "context": 256,
        "batch": 8,
        "vocab": 257,
        "steps": 3,  # in a block
        "repeats": 6,  # blocks of each variant
        "warmup": 2,
        "threads": 1,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--default-model", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--zero1", action="store_true", help="ours under DeepSpeed ZeRO 1 too")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/lm_step.json"))
    return parser.parse_args()


def model_of(given: argparse.Namespace, gpt2: bool) -> LMModelConfig:
    """GPT-2's setting, or the default one (8/3 d instead of 4 d: about as many parameters)."""
    shape = {name: getattr(given, name) for name in ("layers", "width", "heads", "context")}
    base = GPT2 if gpt2 else LMModelConfig()
    return LMModelConfig(**{**base.model_dump(), **shape, "tied": given.tied})


def ours(given: argparse.Namespace, model: LMModelConfig, **more: Any) -> common.OurStep:
    """Our step under the plain engine, or whatever `more` says."""
    lm = {
        "steps": total_steps(given),
        "batch_size": given.batch,
        "model": model.model_dump(),
        "schedule": {"name": "cosine"},
        **more,
    }
    config = RunConfig.of({"precision": given.precision, "lm": lm, "device": given.device})
    return common.OurStep(config, given.vocab, torch.device(given.device))


def minimal(given: argparse.Namespace, compiled: bool) -> MinimalLoop:
    shape = (given.layers, given.width, given.heads, given.context, given.vocab, given.tied)
    torch.manual_seed(0)
    model = MinimalGPT(*shape).to(given.device)
    want = sum(parameters(model_of(given, True), given.vocab).values())
    assert sum(p.numel() for p in model.parameters()) == want, "not the same model"
    data = common.synthetic(given.vocab)
    loop = MinimalLoop(
        model, data, given.batch, given.context, total_steps(given), given.precision == "bf16"
    )
    if compiled:
        loop.called = torch.compile(model)
    return loop


def total_steps(given: argparse.Namespace) -> int:
    return given.warmup + given.repeats * given.steps


def variants(given: argparse.Namespace) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Name and step of each, in the order in which they take turns."""
    gpt2, usual = model_of(given, True), model_of(given, False)
    for suffix, compiled in (("", False), (", compiled", True))[: 1 + given.compile]:
        yield f"ours{suffix}", ours(given, gpt2, compile=compiled)
        yield f"minimal{suffix}", minimal(given, compiled).step
        if given.default_model:
            yield f"ours, default model{suffix}", ours(given, usual, compile=compiled)
        if given.zero1:
            zero = {"engine": "deepspeed", "zero_stage": 1}
            yield f"ours, ZeRO 1{suffix}", ours(given, gpt2, compile=compiled, **zero)


def measure(given: argparse.Namespace) -> tuple[dict[str, list[common.Cost]], list[float]]:
    """Costs of a step by variant and block, and the rate of matrix products, taken in between."""
    device = torch.device(given.device)
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    steps = dict(variants(given))
    for name, step in steps.items():
        cost = common.timed(step, 0, given.warmup, device)
        print(f"warm: {name} ({given.warmup * cost.wall:.1f} s)", flush=True)
    times: dict[str, list[common.Cost]] = {name: [] for name in steps}
    rate: list[float] = []
    for block in range(given.repeats):
        # every second time backwards, so that a drift of the machine favours nobody
        order = list(steps.items())[:: -1 if block % 2 else 1]
        for name, step in order:
            first = given.warmup + block * given.steps
            times[name].append(common.timed(step, first, given.steps, device))
        rate += common.matmul_rate(device, dtype, 3)
    return times, rate


def rows(
    given: argparse.Namespace, times: dict[str, list[common.Cost]], peak: float
) -> dict[str, dict[str, Any]]:
    """Tokens/s, ratio to the minimal loop of the same kind, and share of the peak, by variant."""
    tokens = given.batch * given.context
    found = {}
    for name, costs in times.items():
        reference = times["minimal, compiled" if name.endswith("compiled") else "minimal"]
        rate = common.Spread.of([tokens / cost.wall for cost in costs])
        flops = flops_per_token(model_of(given, "default" not in name), given.vocab)
        card = common.card_peak() if given.device == "cuda" else None
        found[name] = {
            "tokens_per_second": rate,
            "ratio": common.Ratio.of(reference, costs),
            "share_of_matmul": rate.median * flops / peak,
            "mfu_of_card": rate.median * flops / card if card else None,
            "costs": costs,
        }
    return found


def table(given: argparse.Namespace, found: dict[str, dict[str, Any]]) -> Table:
    count = sum(parameters(model_of(given, True), given.vocab).values())
    shape = f"{given.layers} layers, width {given.width}, T {given.context}, B {given.batch}"
    sheet = Table(title=f"{count:,} parameters: {shape}, {given.precision} on {given.device}")
    heads = ("step", "tokens/s", "speed over minimal", "by CPU time", "of matmul rate", "card MFU")
    for head in heads:
        sheet.add_column(head, justify="left" if head == "step" else "right")
    for name, row in found.items():
        card = row["mfu_of_card"]
        sheet.add_row(
            name,
            row["tokens_per_second"].told(",.0f"),
            row["ratio"].wall.told(".3f"),
            row["ratio"].processor.told(".3f"),
            f"{row['share_of_matmul']:.1%}",
            f"{card:.1%}" if card else "",
        )
    return sheet


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.zero1:
        common.join(given.device, given.threads)  # DeepSpeed wants a group, if of one
    times, rate = measure(given)
    peak = common.Spread.of(rate)
    found = rows(given, times, peak.median)
    about = common.facts(vars(given), torch.device(given.device))
    Console(width=130).print(table(given, found))
    print(f"matmul {peak.told('.3e')} FLOP/s; {common.told(about)}")
    steps = {
        name: row
        | {"tokens_per_second": row["tokens_per_second"]._asdict(), "ratio": row["ratio"].facts()}
        for name, row in found.items()
    }
    common.keep(given.out, {**about, "matmul_flops": peak._asdict(), "steps": steps})


if __name__ == "__main__":
    main()
