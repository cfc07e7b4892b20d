"""Mean features of each class: what clients upload that have no prototypes of their own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.batch import Batch
from fedcore.clients.lanes import over_clients
from fedcore.clients.layout import Tensors
from fedcore.clients.state import ClientState
from fedcore.clients.step import Lane, Setup, Targets, look


@torch.no_grad()
def mean_features(
    setup: Setup, part: ClientState, fixed: Lane, targets: Targets, batches: Iterable[Batch]
) -> Tensor:
    """Mean feature z of each class [K, C, D], of K clients (Tan et al. 2022).

    0 for a class that a client does not hold.
    """

    def sums(params: Tensors, buffers: Tensors, sample: Batch, lane: Lane) -> Tensor:
        view = look(setup, params, buffers, sample, lane, targets)
        rows = F.one_hot(view.labels, len(view.prototypes)).to(view.features.dtype)
        rows = rows * view.weight[:, None]
        return torch.cat([rows.T @ view.features, rows.sum(0)[:, None]], 1)

    total = F.pad(torch.zeros_like(part.params["prototypes"]), (0, 1))  # the last: how many
    setup.model.eval()
    try:
        for batch in batches:
            k = len(batch.labels)
            working = part.first(k)
            found = over_clients(sums, working.params, working.buffers, batch, fixed.first(k))
            total[:k] += found
    finally:
        setup.model.train()
    return total[:, :, :-1] / total[:, :, -1:].clamp(min=1)
