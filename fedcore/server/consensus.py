"""How far the clients are from each other: measured each round, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedcore.clients.layout import Tensors


def prototype_std(prototypes: Tensor, counts: Tensor | None = None) -> float:
    """Inter-client standard deviation of [N, C, D], mean over C and D; 0 for a single client.

    counts [N, C]: look at the holders of a class only, where the others have nothing to compare.
    """
    if counts is None:
        return float(prototypes.std(0, unbiased=False).mean())
    return _std_of_holders(prototypes, counts, least=1)


def unit_prototype_std(prototypes: Tensor, counts: Tensor) -> float:
    """`prototype_std` of unit prototypes [N, C, D] between the clients that hold a class.

    Mean over the classes that at least two clients hold (counts [N, C]); 0 if there is none.
    """
    return _std_of_holders(torch.nn.functional.normalize(prototypes, dim=2), counts, least=2)


def _std_of_holders(values: Tensor, counts: Tensor, least: int) -> float:
    """Over the clients that hold a class; mean over the classes that `least` or more hold."""
    held = (counts > 0).to(values.dtype)[:, :, None]  # [N, C, 1]
    holders = held.sum(0)  # [C, 1]
    mean = (values * held).sum(0) / holders.clamp(min=1)
    variance = ((values - mean).square() * held).sum(0) / holders.clamp(min=1)  # [C, D]
    shared = holders[:, 0] >= least
    return float(variance[shared].sqrt().mean()) if shared.any() else 0.0


def global_prototype_std(prototypes: Tensor) -> float:
    """Standard deviation of global prototypes [C, D] between classes, mean over D."""
    return float(prototypes.std(0, unbiased=False).mean())


def square_distances(models: Tensors, averaged: Tensors, parameters: Collection[str]) -> Tensor:
    """|w_k - w|^2 per parameter of K models [K] float64, w the averaged one.

    models: each [K, ...]. parameters: which tensors are parameters; batch statistics do not count.
    """
    squares = [
        (models[name] - averaged[name]).flatten(1).double().square().sum(1) for name in parameters
    ]
    return torch.stack(squares, 1).sum(1) / sum(averaged[name].numel() for name in parameters)


def model_variance(distances: Sequence[float], shares: Sequence[float]) -> float:
    """sum_k share_k |w_k - w|^2 per parameter of all clients' `square_distances`, in any order."""
    return math.fsum(share * d for share, d in zip(shares, distances, strict=True))
