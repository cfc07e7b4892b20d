"""Sums over clients that are bit-identical on any number of ranks, in one fused all-reduce.

A float sum depends on its order, and with it on which rank owns which client. Here each client's
contribution is rounded once to a 64-bit integer on a scale known to all ranks; integer addition is
associative, so ranks may add and reduce in any order. The rounding error is below 2^-60 of the
largest magnitude per client, far below float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BITS = 61  # sums stay below 2^61 in magnitude: head-room for rounding


class ExactSum:
    """Accumulates sum_k w_k x_k, for w_k >= 0 with sum_k w_k <= 1 and |x_k| <= bound.

    bound: a number, or a tensor [] on the device, which is then not waited for. total: int64 [size]
    to add to, a part of a larger message; of its own if none is given.
    """

    def __init__(
        self,
        size: int,
        bound: float | Tensor,
        device: torch.device,
        total: Tensor | None = None,
    ) -> None:
        self.scale: float | Tensor
        if isinstance(bound, Tensor):
            exponent = torch.frexp(bound.double().clamp(min=1e-30)).exponent
            one = torch.ones((), dtype=torch.float64, device=device)
            self.scale = torch.ldexp(one, BITS - exponent)
        else:
            self.scale = math.ldexp(1.0, BITS - math.frexp(max(bound, 1e-30))[1])
        fresh = torch.zeros(size, dtype=torch.int64, device=device)
        self.total = fresh if total is None else total

    def add(self, values: Tensor, weight: Tensor | float, at: int = 0) -> None:
        """Add weight * values (flattened) at offset `at`. `weight` broadcasts against `values`."""
        # a power of two: the product with the weight rounds as it would without the scale
        scaled = values.to(torch.float64).mul(weight * self.scale).round_().to(torch.int64)
        self.total[at : at + scaled.numel()] += scaled.flatten()

    def add_lane(self, values: Tensor, weights: Tensor, at: int = 0) -> None:
        """Add sum_k weights[k] * values[k] (flattened) at offset `at`: the integers that `add`
        gives client by client. values [K, ...], weights [K] float64."""
        # the scale is a power of two: to scale the weights rounds nothing
        factors = (weights * self.scale).view(-1, *[1] * (values.dim() - 1))
        scaled = (values * factors).round_().to(torch.int64).flatten(1)
        self.total[at : at + scaled.shape[1]] += scaled[0] if len(scaled) == 1 else scaled.sum(0)

    def value(self, total: Tensor) -> Tensor:
        """The float64 sum that the (reduced) integers `total` stand for."""
        return total.to(torch.float64) / self.scale
