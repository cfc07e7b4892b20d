"""The weighted mean of models over all ranks, with the same bits on any number of them.

Memory: 16 bytes a number while the sum is turned back into floats, beside the models themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedcore.server.comm import Comm
from fedcore.server.exact import ExactSum

Tensors = Mapping[str, Tensor]


def average_models(
    comm: Comm, models: Sequence[tuple[Tensors, float]], like: Tensors
) -> dict[str, Tensor]:
    """Weighted mean of client models over all ranks, the same bits on any number of ranks.

    models: (tensors, weight) of this rank's clients, weights summing to 1 over all ranks.
    like: tensors that give names, shapes and types. One MAX for the scale, one exact integer SUM.
    """
    bound = torch.zeros((), dtype=torch.float64, device=comm.device)
    for tensors, _ in models:
        for name in like:
            bound = torch.maximum(bound, tensors[name].detach().abs().max().to(torch.float64))
    bound = comm.max(bound[None])
    total = ExactSum(sum(v.numel() for v in like.values()), float(bound), comm.device)
    for tensors, weight in models:
        offset = 0
        for name, value in like.items():
            total.add(tensors[name].detach(), weight, offset)
            offset += value.numel()
    return _unflat(total.value(comm.sum(total.total)), like)


def _unflat(flat: Tensor, like: Tensors) -> dict[str, Tensor]:
    parts = torch.split(flat, [v.numel() for v in like.values()])
    result = {}
    for (name, value), part in zip(like.items(), parts, strict=True):
        shaped = part.view(value.shape)
        result[name] = (shaped if value.is_floating_point() else shaped.round()).to(value.dtype)
    return result
