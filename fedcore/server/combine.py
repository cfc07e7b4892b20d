"""How client prototypes become global ones [C, D]. Arrays in, arrays out.

Clients come in id order, in pieces of bounded size, float64; the fold runs over that order on every
rank: the result depends neither on the number of ranks nor on the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.registry import Registry
from fedcore.settings import Divisor


class Held(NamedTuple):
    """What n clients that follow one another have of the classes."""

    prototypes: Tensor  # [n, C, D] float64
    counts: Tensor  # [n, C] their samples of each class


Combine = Callable[[Iterable[Held], Tensor, Tensor], Tensor]
"""(all clients, to be gone through once; previous global and anchors [C, D]) -> global [C, D].

Keyword arguments are settings (`algorithm.combine_settings`)."""

COMBINES: Registry[Combine] = Registry("algorithm.combine")


def _fold(clients: Iterable[Held], weigh: Callable[[Tensor], Tensor], previous: Tensor) -> Tensor:
    """Weighted mean over clients; a class of weight 0 keeps its previous row.

    weigh: label counts [n, C] -> weights [n, C].
    """
    total = torch.zeros_like(previous)
    mass = total.new_zeros(len(previous), 1)
    for prototypes, counts in clients:
        weights = weigh(counts).to(total.dtype)[:, :, None]
        for client, weight in zip(prototypes, weights, strict=True):  # in client-id order
            total += client * weight
            mass += weight
    return (total / mass.clamp(min=1)).where(mass > 0, previous)


def mean_of_present(clients: Iterable[Held], previous: Tensor, anchors: Tensor) -> Tensor:
    """Mean over the clients that hold the class (our default); one that nobody holds stays."""
    return _fold(clients, lambda counts: counts > 0, previous)


def mean(clients: Iterable[Held], previous: Tensor, anchors: Tensor) -> Tensor:
    """Mean over all clients, never-trained prototypes of absent classes included (published)."""
    return _fold(clients, torch.ones_like, previous)


def by_samples(clients: Iterable[Held], previous: Tensor, anchors: Tensor) -> Tensor:
    """Mean weighted by each client's samples of the class."""
    return _fold(clients, lambda counts: counts, previous)


def server_optimised(
    clients: Iterable[Held],
    previous: Tensor,
    anchors: Tensor,
    steps: int = 200,
    lr: Divisor = 0.01,
    gamma: float = 1.0,
) -> Tensor:
    """G after `steps` of Adam on mean CE(P_k G^T, class) + gamma MSE(G, anchors).

    The mean runs over the prototypes of the classes each client holds, so it keeps those of all
    clients [N, C, D]; it starts at `mean_of_present`.
    """
    pieces = list(clients)
    start = mean_of_present(pieces, previous, anchors)
    prototypes = torch.cat([piece.prototypes for piece in pieces])
    held = torch.cat([piece.counts > 0 for piece in pieces]).to(prototypes.dtype)  # [N, C]
    classes = torch.arange(len(start)).expand(len(prototypes), -1)
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    for _ in range(steps):
        logits = prototypes @ free.T  # [N, C, C]
        losses = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="none")
        fit = (losses * held.flatten()).sum() / held.sum().clamp(min=1)
        optimiser.zero_grad()
        (fit + gamma * F.mse_loss(free, anchors)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return free.detach()


for _combine in (mean_of_present, mean, by_samples, server_optimised):
    COMBINES.add(_combine.__name__, _combine)
