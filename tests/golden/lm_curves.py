"""Golden curves of language models: 30 steps of every optimiser in float64.

python -m tests.golden.lm_curves      writes tests/golden/lm/*.json, and says what changed
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fedcore.config import RunConfig
from fedcore.lm.engine import PlainEngine, Trained
from fedcore.lm.model import TransformerLM
from fedcore.lm.optim import build_optimizer
from fedcore.lm.rates import GroupRates
from fedcore.lm.schedules import rates

FOLDER = Path(__file__).parent / "lm"
OPTIMIZERS = ("adamw", "sgdm", "rmsprop", "signsgdm", "muon")
FIELDS = ("loss", "norm", "rms")
STEPS = 30
Curves = dict[str, list[float]]


def curves(optimizer: str) -> Curves:
    """Loss, gradient norm and RMS of all weights at each of the 30 steps, on fixed tokens."""
    lm = {
        "steps": STEPS,
        "model": {"layers": 2, "width": 16, "heads": 2, "context": 12},
        "optimizer": {"name": optimizer, "lr": 0.01, "weight_decay": 0.3},
        "schedule": {"warmup": 5, "weight_decay": "tied"},
    }
    config = RunConfig.of({"precision": "fp64", "lm": lm})
    assert config.lm is not None
    model = TransformerLM(config.lm.model, 31, seed=0).double()
    optimiser = build_optimizer(model, config.lm.optimizer)
    group_rates = GroupRates(config.lm, rates(config.lm), model, optimiser)
    engine = PlainEngine(Trained(config, model, optimiser, torch.device("cpu")))
    tokens = torch.randint(31, (STEPS, 4, 13), generator=torch.Generator().manual_seed(0))
    found: Curves = {field: [] for field in FIELDS}
    for step in range(STEPS):
        group_rates.write(engine, step)
        loss, norm = engine.gradients(tokens[step]), engine.step()
        weights = torch.cat([p.flatten() for p in engine.parts()])
        values = (loss, norm, weights.square().mean().sqrt())
        for field, value in zip(FIELDS, values, strict=True):
            found[field].append(float(f"{float(value):.12g}"))
    return found


def stored(optimizer: str) -> Curves:
    """The golden curves of that optimiser."""
    found: Curves = json.loads((FOLDER / f"{optimizer}.json").read_text())
    return found


def largest_change(old: Curves, new: Curves) -> dict[str, float]:
    """Largest relative difference by field."""
    pairs = {field: zip(old[field], new[field], strict=True) for field in FIELDS}
    return {field: max(abs(a - b) / abs(a) for a, b in found) for field, found in pairs.items()}


def main() -> None:
    """Write all curves anew and print a table of what changed."""
    table = Table("optimizer", *FIELDS, title="largest relative change")
    for name in OPTIMIZERS:
        new, file = curves(name), FOLDER / f"{name}.json"
        if file.is_file() and (change := largest_change(stored(name), new)):
            table.add_row(name, *(f"{change[field]:.1e}" for field in FIELDS))
        lines = ",\n".join(f' "{field}": {json.dumps(new[field])}' for field in FIELDS)
        file.write_text("{\n" + lines + "\n}\n")
    Console().print(table)


if __name__ == "__main__":
    main()
