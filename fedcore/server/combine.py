"""How client prototypes [N, C, D] become global ones [C, D]. Arrays in, arrays out.

Inputs are in client-id order, float64, and the fold runs over that order on every rank: the result
does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.registry import Registry

Combine = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(prototypes [N, C, D], label counts [N, C], previous global and anchors [C, D]) -> global [C, D].

Keyword arguments are settings (`algorithm.combine_settings`)."""

COMBINES: Registry[Combine] = Registry("algorithm.combine")


def _fold(prototypes: Tensor, weight: Tensor, previous: Tensor) -> Tensor:
    """Weighted mean over clients, weights [N, C]; a class of weight 0 keeps its previous row."""
    total = prototypes.new_zeros(prototypes.shape[1:])
    for client, share in zip(prototypes, weight, strict=True):  # in client-id order
        total = total + client * share[:, None]
    mass = weight.sum(0)[:, None]
    return (total / mass.clamp(min=1)).where(mass > 0, previous)


def mean_of_present(
    prototypes: Tensor, counts: Tensor, previous: Tensor, anchors: Tensor
) -> Tensor:
    """Mean over the clients that hold the class; our default."""
    return _fold(prototypes, (counts > 0).to(prototypes.dtype), previous)


def mean(prototypes: Tensor, counts: Tensor, previous: Tensor, anchors: Tensor) -> Tensor:
    """Mean over all clients, never-trained prototypes of absent classes included (published)."""
    return _fold(prototypes, (counts >= 0).to(prototypes.dtype), previous)


def by_samples(prototypes: Tensor, counts: Tensor, previous: Tensor, anchors: Tensor) -> Tensor:
    """Mean weighted by each client's samples of the class."""
    return _fold(prototypes, counts.to(prototypes.dtype), previous)


def server_optimised(
    prototypes: Tensor,
    counts: Tensor,
    previous: Tensor,
    anchors: Tensor,
    steps: int = 200,
    lr: float = 0.01,
    gamma: float = 1.0,
) -> Tensor:
    """G after `steps` of Adam on mean CE(P_k G^T, class) + gamma MSE(G, anchors).

    The mean runs over the prototypes of the classes each client holds; it starts at
    `mean_of_present`.
    """
    start = mean_of_present(prototypes, counts, previous, anchors)
    held = (counts > 0).to(prototypes.dtype)  # [N, C]
    classes = torch.arange(len(start)).expand(len(prototypes), -1)
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    for _ in range(int(steps)):
        logits = prototypes @ free.T  # [N, C, C]
        losses = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="none")
        fit = (losses * held.flatten()).sum() / held.sum().clamp(min=1)
        optimiser.zero_grad()
        (fit + gamma * F.mse_loss(free, anchors)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return free.detach()


for _combine in (mean_of_present, mean, by_samples, server_optimised):
    COMBINES.add(_combine.__name__, _combine)
