"""How far the clients are from each other: measured each round, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedcore.clients.layout import Tensors


class Spread:
    """Standard deviation between clients of their values for each class.

    Taken piece by piece: means and squared deviations are merged (Chan, Golub, LeVeque 1983), so
    the pieces' prototypes need not be in memory together.
    """

    def __init__(self, least: int = 1) -> None:
        self.least = least  # clients that hold a class, or it does not count
        self._holders = self._mean = self._squares = torch.zeros(1, 1, dtype=torch.float64)

    def add(self, values: Tensor, held: Tensor) -> None:
        """Take some more clients' values [n, C, D], float64; held [n, C]: which classes count."""
        share = held[:, :, None].to(values.dtype)  # [n, C, 1]
        holders = share.sum(0)  # [C, 1]
        mean = (values * share).sum(0) / holders.clamp(min=1)  # [C, D]
        off = (values - mean).square_().mul_(share).sum(0)
        both = self._holders + holders
        apart = mean - self._mean
        self._squares = self._squares + off + apart**2 * self._holders * holders / both.clamp(min=1)
        self._mean = self._mean + apart * holders / both.clamp(min=1)
        self._holders = both

    def value(self) -> float:
        """Mean over D and over the classes that at least `least` clients hold; 0 without any."""
        shared = self._holders[:, 0] >= self.least
        variance = (self._squares / self._holders.clamp(min=1))[shared]
        return float(variance.sqrt().mean()) if len(variance) else 0.0


def global_prototype_std(prototypes: Tensor) -> float:
    """Standard deviation of global prototypes [C, D] between classes, mean over D."""
    return float(prototypes.std(0, unbiased=False).mean())


def square_distances(models: Tensors, averaged: Tensors, parameters: Collection[str]) -> Tensor:
    """Mean squared distance per parameter of K models from the averaged one: [K], float64.

    models: by name, each [K, ...]; averaged: each [...]. parameters: names of the tensors that
    count; batch statistics do not.
    """
    squares = [
        (models[name] - averaged[name]).flatten(1).double().square().sum(1) for name in parameters
    ]
    return torch.stack(squares, 1).sum(1) / sum(averaged[name].numel() for name in parameters)


def model_variance(distances: Sequence[float], shares: Sequence[float]) -> float:
    """sum_k share_k |w_k - w|^2 per parameter, of all clients' `square_distances` in any order."""
    return math.fsum(share * d for share, d in zip(shares, distances, strict=True))
