"""Sums over clients that are bit-identical on any number of ranks, in one fused all-reduce.

A float sum depends on its order, and with it on which rank owns which client. Here each client's
contribution is rounded once to a 64-bit integer on a scale known to all ranks; integer addition is
associative, so ranks may add and reduce in any order. The rounding error is below 2^-60 of the
largest magnitude per client, far below float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BITS = 61  # sums stay below 2^61 in magnitude: head-room for rounding
FLOAT_BITS = 52  # of whole numbers held in float64, which is exact up to 2^53


class ExactSum:
    """Accumulates sum_k w_k x_k, for w_k >= 0 with sum_k w_k <= 1 and |x_k| <= bound."""

    def __init__(self, size: int, bound: float, device: torch.device) -> None:
        exponent = math.frexp(max(bound, 1e-30))[1]  # bound < 2^exponent
        self.scale = math.ldexp(1.0, BITS - exponent)
        self.total = torch.zeros(size, dtype=torch.int64, device=device)

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


class ExactRow:
    """The same for rows that are added one after another: whole numbers, but held in float64.

    That is exact up to 2^53, and takes a third of the time: CPUs convert slowly to int64. The
    rounding error is 2^-52 of the bound instead of 2^-61. bound: of each number, or an expanded one
    of all; it lies on the device and is not waited for.
    """

    def __init__(self, bound: Tensor) -> None:
        same = bound.stride() == (0,)
        exponent = torch.frexp((bound[:1] if same else bound).double().clamp(min=1e-30)).exponent
        one = torch.ones_like(exponent, dtype=torch.float64)
        self.scale = torch.ldexp(one, FLOAT_BITS - exponent)  # [1] or [n]
        self._total = torch.zeros(len(bound), dtype=torch.float64, device=bound.device)
        self._room = torch.empty_like(self._total)

    def add(self, values: Sequence[Tensor], weight: float) -> None:
        """Add weight times all of `values`, flattened and one behind the other."""
        pieces = torch.split(self._room, [part.numel() for part in values])
        for piece, part in zip(pieces, values, strict=True):
            piece.copy_(part.reshape(-1))
        # in place: a lack of memory in here would leave a sum with half a lane in it. The scale is
        # a power of two and rounds nothing
        self._total += self._room.mul_(self.scale).mul_(weight).round_()

    @property
    def total(self) -> Tensor:
        """The whole numbers as int64, to be summed over ranks."""
        return self._total.to(torch.int64)

    def value(self, total: Tensor) -> Tensor:
        """The float64 sum that the (reduced) integers `total` stand for."""
        return total.to(torch.float64) / self.scale
