"""Does the device of this rank compute? A product, against the same one in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from launcher.doctor.check import Check

SIDE = 512  # rows and columns: large enough for the kernels that training uses
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}  # relative; float32 may be TF32


def computing(device: torch.device) -> Iterator[Check]:
    """One finding: wrong numbers are a broken GPU, an error a broken installation."""
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(SIDE, SIDE, generator=generator, dtype=torch.float64) for _ in "ab")
    wrong = {}
    for kind, tolerance in TOLERANCE.items():
        error = _error(one.to(kind), two.to(kind), device)
        if not error <= tolerance:  # nan is not
            wrong[str(kind).removeprefix("torch.")] = f"{error:.1e}"
    said = ", ".join(f"{kind} off by {error}" for kind, error in wrong.items())
    found = f"{device.type}: {said or 'a product as in float64, in float32 and bfloat16'}"
    yield Check("computing", not wrong, found, "another node: this device computes wrongly")


def _error(one: torch.Tensor, two: torch.Tensor, device: torch.device) -> float:
    """Relative error of the product on the device, against float64 on the CPU."""
    exact = one.double() @ two.double()
    found = (one.to(device) @ two.to(device)).double().cpu()
    return float((found - exact).norm() / exact.norm())
