"""Do the laws of weight decay hold in the optimisers' own arithmetic? A table, and JSON.

Weight RMS from random normal gradients at three scales against c sqrt(eta / (2 lam)); the weight of
each step's gradient from one-hot probes; what is left of the initialisation from zero gradients.

    .venv/bin/python bench/weight_rms.py [--d 20000] [--pull 1e-3] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.config_lm import LMConfig, OptimizerConfig, ScheduleConfig
from fedcore.lm.memory import flatness, gradient_weights, kept, law, long_run_std
from fedcore.lm.optim import SGDM, Decoupled, RMSProp, SignSGDM
from fedcore.lm.schedules import rates

SCALES = (1e-3, 1.0, 1e3)
Build = Callable[..., torch.optim.Optimizer]


def adamw(params: list[nn.Parameter], beta1: float = 0.9, beta2: float = 0.95) -> Any:
    """torch's AdamW, which multiplies lr and weight_decay."""
    return torch.optim.AdamW(params, lr=1.0, betas=(beta1, beta2), eps=1e-12)


def sgd(params: list[nn.Parameter]) -> Any:
    """torch's SGD; without momentum its L2 term is decoupled decay."""
    return torch.optim.SGD(params, lr=1.0)


def _own(kind: type[Decoupled], params: list[nn.Parameter], **settings: float) -> Any:
    """One of our optimisers on one group."""
    return kind([{"params": params, "lr": 1.0, "weight_decay": 0.0}], settings)


def sgdm(params: list[nn.Parameter], beta1: float = 0.9) -> Any:
    """The momentum as an average."""
    return _own(SGDM, params, beta1=beta1)


def rmsprop(params: list[nn.Parameter], beta2: float = 0.95) -> Any:
    """The gradient over its own root mean square."""
    return _own(RMSProp, params, beta2=beta2, eps=1e-12)


def signsgdm(params: list[nn.Parameter], beta1: float = 0.9) -> Any:
    """The sign of an averaged gradient."""
    return _own(SignSGDM, params, beta1=beta1)


def muon(params: list[nn.Parameter], beta1: float = 0.9, nesterov: bool = True) -> Any:
    """torch's Muon, with its factor sqrt(max(1, rows / columns)) on the update."""
    return torch.optim.Muon(params, lr=1.0, momentum=beta1, nesterov=nesterov)


def train(
    optimizer: Any,
    p: nn.Parameter,
    eta: np.ndarray,
    lam: np.ndarray,
    gradient: Callable[[int], Tensor],
) -> None:
    """Take every step, writing lr and weight_decay into the groups as a trainer does."""
    for step, (e, w) in enumerate(zip(eta.tolist(), lam.tolist(), strict=True)):
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = e, w
        p.grad = gradient(step)
        optimizer.step()


def rms_after(
    build: Build,
    eta: np.ndarray,
    lam: np.ndarray,
    *,
    shape: tuple[int, ...],
    scale: float = 1.0,
    mean: float = 0.0,
    start: float = 0.0,
    seed: int = 0,
) -> float:
    """RMS of weights that saw normal gradients of that mean and standard deviation."""
    draw = torch.Generator().manual_seed(seed)
    p = nn.Parameter(start * torch.randn(shape, generator=draw))
    train(build([p]), p, eta, lam, lambda _: mean + scale * torch.randn(shape, generator=draw))
    return float(p.detach().square().mean().sqrt())


def probe(build: Build, eta: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Weight of each step's gradient: parameter j has the gradient 1 at step j, else 0. [T]"""
    p = nn.Parameter(torch.zeros(eta.size, dtype=torch.float64))
    zeros = torch.zeros(eta.size, dtype=torch.float64)
    optimizer = build([p])
    hot = zeros.clone()

    def gradient(step: int) -> Tensor:
        hot[step - 1] = 0.0
        hot[step] = 1.0
        return hot

    train(optimizer, p, eta, lam, gradient)
    return -p.detach().numpy()


def left(build: Build, eta: np.ndarray, lam: np.ndarray) -> float:
    """theta_T / theta_0 under zero gradients."""
    p = nn.Parameter(torch.ones(1, dtype=torch.float64))
    train(build([p]), p, eta, lam, lambda _: torch.zeros(1, dtype=torch.float64))
    return float(p.detach())


def signs(params: list[nn.Parameter]) -> Any:
    """AdamW of which the update is known: without memory u = g / |g|, and 0 for g = 0."""
    return torch.optim.AdamW(params, lr=1.0, betas=(0.0, 0.0), eps=1e-12)


def steady(eta: float, lam: float, memories: float = 6.0) -> tuple[np.ndarray, np.ndarray]:
    """Constant rates for so many times T3."""
    steps = round(memories / (eta * lam))
    return np.full(steps, eta), np.full(steps, lam)


def schedule(
    name: str, steps: int, eta: float, lam: float, **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """eta and lam of every step under a schedule of the registry."""
    config = LMConfig(
        steps=steps,
        optimizer=OptimizerConfig(lr=eta, weight_decay=lam),
        schedule=ScheduleConfig(name=name, **settings),
    )
    shares = rates(config)
    return shares.eta_share * eta, shares.lam_share * lam


LAWS: dict[str, tuple[Build, OptimizerConfig]] = {
    "adamw": (adamw, OptimizerConfig()),
    "rmsprop": (rmsprop, OptimizerConfig(name="rmsprop")),
    "sgdm": (sgdm, OptimizerConfig(name="sgdm")),
    "signsgdm": (signsgdm, OptimizerConfig(name="signsgdm")),
    "muon": (muon, OptimizerConfig(name="muon")),
}


def laws(d: int, pull: float) -> Iterator[dict[str, Any]]:
    """RMS over sqrt(eta / (2 lam)) at rest, beside c: a row an optimiser and a gradient scale."""
    eta, lam = steady(1e-3, pull / 1e-3)
    for name, (build, config) in LAWS.items():
        shape = (100, 100) if name == "muon" else (d,)
        for scale in SCALES:
            rms = rms_after(build, eta, lam, shape=shape, scale=scale)
            std = long_run_std(config, shape, gradient_std=scale)
            assert std is not None
            yield {
                "optimizer": name,
                "gradient": scale,
                "measured": rms / law(1e-3, pull / 1e-3),
                "c": std,
            }


def flat(steps: int, pull: float) -> Iterator[dict[str, Any]]:
    """Largest over smallest weight and what is left of the start, from torch's AdamW."""
    for name in ("constant", "cosine", "ema_constant_wd", "ema_coupled_wd", "ema_sqrt_exact"):
        eta, lam = schedule(name, steps, 1e-2, pull / 1e-2)
        measured = probe(signs, eta, lam)
        yield {
            "schedule": name,
            "flatness": flatness(measured),
            "by formula": flatness(gradient_weights(eta, lam)),
            "left": left(signs, eta, lam),
            "left by formula": float(kept(eta, lam)[0]),
        }


def show(rows: list[dict[str, Any]]) -> None:
    """A Markdown table."""
    print("\n| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows:
        print(
            "| " + " | ".join(f"{v:.6g}" if isinstance(v, float) else v for v in row.values()), "|"
        )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=20_000)
    parser.add_argument("--pull", type=float, default=1e-3, help="lam eta")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    found = {"laws": list(laws(given.d, given.pull)), "flatness": list(flat(10_000, given.pull))}
    for rows in found.values():
        show(rows)
    print(f"\n{time.monotonic() - begin:.0f} s, torch {torch.__version__}")
    if given.out:
        given.out.write_text(json.dumps(found | {"pull": given.pull, "d": given.d}, indent=1))


if __name__ == "__main__":
    main()
