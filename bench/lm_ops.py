"""The functions of fedcore/lm/ops.py beside their formulas written out, forward and backward.

Prints one Markdown table: milliseconds, median and quartiles.

    .venv/bin/python bench/lm_ops.py [--device cpu] [--threads 1] [--repeats 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedcore.lm import ops

B, T, D, HIDDEN, HEADS, VOCAB = 8, 256, 256, 704, 4, 257
Function = Callable[[Tensor], Tensor]


def milliseconds(function: Function, x: Tensor, repeats: int) -> list[float]:
    """Sorted times of a forward and backward pass."""
    times = []
    for _ in range(repeats + 3):
        x.grad = None
        start = time.perf_counter()
        function(x).sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times[3:])


def pairs(device: str) -> dict[str, tuple[Function, Function, tuple[int, ...]]]:
    """Name -> ours, the formula, the shape of its argument."""
    targets = torch.randint(VOCAB, (B, T), device=device)
    weight = torch.ones(D, device=device)
    turns = ops.turns(1e4, T, D // HEADS).float().to(device)

    def log_sum_exp(z: Tensor) -> Tensor:
        z = z - z.amax(-1, keepdim=True).detach()
        return (z.exp().sum(-1).log() - z.gather(-1, targets[..., None]).squeeze(-1)).mean()

    def rms(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + ops.NORM_EPS) * weight

    def real(x: Tensor) -> Tensor:
        return ops.turn_pairs(x.reshape(*x.shape[:-1], -1, 2), turns.unsqueeze(-3)).flatten(-2)

    return {
        "cross_entropy": (lambda z: ops.cross_entropy(z, targets), log_sum_exp, (B, T, VOCAB)),
        "rmsnorm": (lambda x: ops.rmsnorm(x, weight), rms, (B, T, D)),
        "swiglu": (lambda x: ops.swiglu(x, x), lambda x: x * x.sigmoid() * x, (B, T, HIDDEN)),
        "rotate": (lambda x: ops.rotate(x, turns), real, (B, T, HEADS, D // HEADS)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| function | ours | its formula |\n|---|---|---|")
    for name, (ours, formula, shape) in pairs(args.device).items():
        cells = []
        for function in (ours, formula):
            x = torch.randn(shape, device=args.device, requires_grad=True)
            times = milliseconds(function, x, args.repeats)
            low, middle, high = (times[len(times) * q // 4] for q in (1, 2, 3))
            cells.append(f"{middle:.2f} ({low:.2f} ... {high:.2f})")
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
