"""How far the clients are from each other: measured each round, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from fedcore.clients.layout import Tensors
from fedcore.server.comm import Comm
from fedcore.server.fusion import Models


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


def model_variance(
    comm: Comm, models: Models, averaged: Tensors, parameters: Collection[str]
) -> float:
    """sum_k share_k |w_k - w|^2 per parameter, w the averaged model. Collective.

    parameters: which of a model's tensors are parameters; batch statistics do not count.
    """
    size = sum(averaged[name].numel() for name in parameters)
    mine = {}
    for model in models:
        squares = [(model.tensors[n] - averaged[n]).double().square().sum() for n in parameters]
        total = float(torch.stack(squares).sum())  # sync: once a client and evaluation
        mine[model.client] = model.share * total / size
    parts = {int(k): v for part in comm.gather_json(mine) for k, v in part.items()}
    return math.fsum(parts[k] for k in sorted(parts))
